//! Files of the kernel's NVIDIA module about one card: `/proc/driver/nvidia` as the sandbox of a model shows it, and
//! the card's place in `/sys`.
//!
//! The driver's libraries read `params` to learn whether they have to make device files themselves: the answer is no,
//! as container runtimes give it (libnvidia-container, `mount_procfs`; gVisor's nvproxy), because a model may not make
//! any. Of `gpus` only the entry of the model's own card is shown. Called by [`super::root`] before it covers the
//! host's `/proc`. A host without the module, such as one with a simulated card, has nothing to show.

use super::step::{Step, StepError};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Where the module's files are, on the host and inside.
pub(super) const PROC: &str = "/proc/driver/nvidia";
/// Read-only parts of `/sys` that the libraries look into: whether the module is there and of which version, and the
/// size of blocks of memory, for cards that share theirs with the host.
pub(super) const SYS: [&str; 3] =
    ["/sys/module/nvidia", "/sys/module/nvidia_uvm", "/sys/devices/system/memory/block_size_bytes"];
/// Files for all cards.
const COMMON: [&str; 3] = ["params", "registry", "version"];
/// The most that is read of one file, in bytes.
const FILE_MAX: u64 = 64 * 1024;
/// The most cards that are looked at.
const CARDS_MAX: usize = 256;

/// Files and card address that a sandbox shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Files below [`PROC`] with their content.
    pub(super) files: Vec<(PathBuf, String)>,
    /// The card's address on the PCI bus, "0000:01:00.0".
    pub(super) bus: Option<String>,
}

/// Collects the files to show to a sandbox with these device files; none without a card.
pub(super) fn card(devices: &[PathBuf]) -> Result<Shown, StepError> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("nvidia")?.parse().ok();
    devices.iter().find_map(number).map_or_else(|| Ok(Shown::default()), |minor| shown(Path::new(PROC), minor))
}

/// Collects the files to show of the card with this device file number; `host` is [`PROC`] of the host.
fn shown(host: &Path, minor: u32) -> Result<Shown, StepError> {
    let step = || format!("read {}", host.display());
    let mut shown = Shown::default();
    for name in COMMON {
        if let Some(text) = read(&host.join(name)).step(step)? {
            shown.files.push((name.into(), text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")));
        }
    }
    for entry in entries(&host.join("gpus")).step(step)? {
        let name = Path::new("gpus").join(&entry).join("information");
        let Some(text) = read(&host.join(&name)).step(step)? else { continue };
        if minor_of(&text) == Some(minor) {
            shown.files.push((name, text));
            shown.bus = Some(entry).filter(|entry| is_bus_address(entry));
            break;
        }
    }
    Ok(shown)
}

/// The number of the card's device file, by the line `Device Minor: 0`.
fn minor_of(information: &str) -> Option<u32> {
    let value = information.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    value.trim().parse().ok()
}

/// Domain, bus, device and function: nothing else becomes part of a path.
fn is_bus_address(text: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.';
    text.len() <= 32 && text.contains(':') && !text.contains("..") && text.bytes().all(part)
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(|_| Some(text)),
    }
}

fn entries(dir: &Path) -> io::Result<Vec<String>> {
    let found = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    found.take(CARDS_MAX).map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_card_is_shown_and_no_device_file_is_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"),
            ("version", "NVRM version: x\n"),
            ("suspend", "secret\n"),
            ("gpus/0000:01:00.0/information", "Model: \t\t One\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 1\n"),
            ("gpus/0000:41:00.0/information", "Model: \t\t Two\nDevice Minor: \t 0\n"),
            ("gpus/0000:41:00.0/power", "secret\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let Shown { files, bus } = shown(dir.path(), 0).unwrap();
        let names: Vec<_> = files.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["params", "version", "gpus/0000:41:00.0/information"]);
        assert_eq!(files[0].1, "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n");
        assert_eq!(bus.as_deref(), Some("0000:41:00.0"));
        let none = shown(dir.path(), 7).unwrap();
        assert_eq!((none.files.len(), none.bus), (2, None));
    }

    #[test]
    fn a_host_without_the_module_shows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shown(&dir.path().join("nvidia"), 0).unwrap(), Shown::default());
    }

    #[test]
    fn only_an_address_becomes_part_of_a_path() {
        for (text, is) in [("0000:01:00.0", true), ("..", false), ("0:..", false), ("0000:01/0", false), ("x", false)] {
            assert_eq!(is_bus_address(text), is, "{text}");
        }
    }
}
