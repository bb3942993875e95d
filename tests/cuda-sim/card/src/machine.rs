//! A machine with simulated cards, and the driver's libraries beside it.

use crate::{Card, Settings};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The environment variable by which the simulated driver finds a machine's directory.
pub const DIRECTORY: &str = "OMNI_CUDA_SIM";
/// Cards that a machine can have.
pub const CARDS: u8 = 16;

impl Card {
    /// See [`create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(dir: &Path, settings: &[Settings]) -> io::Result<Vec<Self>> {
        create(dir, settings)
    }
}

/// Makes a machine: `dir` with a card for each of the settings and the two other files of a driver, for every user to
/// read and write. Existing cards are made anew.
///
/// # Errors
/// When there are more than [`CARDS`], or the files cannot be made.
pub fn create(dir: &Path, settings: &[Settings]) -> io::Result<Vec<Card>> {
    if settings.len() > usize::from(CARDS) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a machine has at most {CARDS} cards")));
    }
    fs::create_dir_all(dir)?;
    let file = |name: &str| -> io::Result<PathBuf> {
        let path = dir.join(name);
        let file = File::create(&path)?;
        // Independent of the umask: models run as users of their own.
        file.set_permissions(Permissions::from_mode(0o666))?;
        Ok(path)
    };
    file("nvidiactl")?;
    file("nvidia-uvm")?;
    let card = |(number, settings): (usize, &Settings)| Card::set_up(&file(&format!("nvidia{number}"))?, settings);
    settings.iter().enumerate().map(card).collect()
}

/// Output of a build beside the programs of its profile: for tests, whose own programs lie one directory deeper.
///
/// # Errors
/// When there is no such file; the error explains how it is made.
pub fn built(name: &str) -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let file = test.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join(name);
    if file.exists() {
        return Ok(file);
    }
    let message = format!("{} is not there: `cargo build --workspace --lib --bins` makes it", file.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Makes a directory of driver libraries: the built simulator under the names that programs look for.
///
/// # Errors
/// When there is no such library, or the directory cannot be made.
pub fn driver_dir(libcuda_sim: &Path, dir: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let [libcuda, nvml] = ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| dir.join(name));
    for path in [&libcuda, &nvml] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // A copy: a build that goes on would take the library away under a test that runs. One file for both names: the
    // loader knows it again, and both have one state.
    fs::copy(libcuda_sim, &libcuda)?;
    fs::hard_link(&libcuda, &nvml)?;
    Ok(dir.to_owned())
}

/// "24GiB", "512MiB", "4096": bytes.
///
/// # Errors
/// Describes the error in the text.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        unit => return Err(format!("{unit:?} is no unit: B, KiB, MiB, GiB or TiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size like 24GiB"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too large"))
}

#[test]
fn sizes() {
    assert_eq!(size("24GiB"), Ok(24 << 30));
    assert_eq!(size("7"), Ok(7));
    for bad in ["", "GiB", "1GB", "-1", "99999999TiB", "1 GiB"] {
        assert!(size(bad).is_err(), "{bad}");
    }
}
