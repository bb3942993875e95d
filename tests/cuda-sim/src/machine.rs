//! The cards that this process sees, found once by `cuInit`; forks; what every call asks before it begins.

use crate::error::Error;
use omni_cuda_card::{CARDS, Card, DIRECTORY, Settings};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Device, in the order of the API's ordinals.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) card: Card,
    pub(crate) settings: Settings,
    /// N of `nvidiaN`.
    pub(crate) minor: u8,
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
static BEGINNING: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

/// Version of a driver without a card.
const DRIVER: u32 = 12090;

/// Finds the cards, once. In the child of a fork nothing works, as with the real driver.
///
/// # Errors
/// When there is no card, or one of the driver's files is missing.
pub(crate) fn begin() -> Result<(), Error> {
    let _alone = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    if DEVICES.get().is_none() {
        name_thread().map_err(|_| Error::OPERATING_SYSTEM)?;
        let found = devices()?;
        if DEVICES.set(found).is_ok() {
            crate::abi::hear_of_forks();
        }
    }
    Ok(())
}

/// Names this thread, as it is named already, in the way in which the driver names a thread of its own: by the kernel's file, as `fopen` opens it.
/// Measured with driver 580: `cuInit` fails where that cannot be written.
fn name_thread() -> io::Result<()> {
    let thread = fs::canonicalize("/proc/thread-self")?;
    let number = thread.file_name().unwrap_or_default();
    let comm = Path::new("/proc/self/task").join(number).join("comm");
    let name = fs::read(&comm)?;
    OpenOptions::new().write(true).create(true).truncate(true).open(&comm)?.write_all(name.trim_ascii_end())
}

/// # Errors
/// `cuInit` was not called, or this is the child of a fork.
pub(crate) fn all() -> Result<&'static [Device], Error> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    DEVICES.get().map(Vec::as_slice).ok_or(Error::NOT_INITIALIZED)
}

/// # Errors
/// As [`all`], or there is no such device.
pub(crate) fn device(ordinal: i32) -> Result<(usize, &'static Device), Error> {
    let devices = all()?;
    let ordinal = usize::try_from(ordinal).map_err(|_| Error::INVALID_DEVICE)?;
    devices.get(ordinal).map(|device| (ordinal, device)).ok_or(Error::INVALID_DEVICE)
}

/// The driver's version; known before `cuInit`, and asked for with every entry that is looked up.
pub(crate) fn version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    let first = || cards().first().map(|(_, card)| card.settings().driver);
    VERSION.get().copied().or_else(|| first().map(|found| *VERSION.get_or_init(|| found))).unwrap_or(DRIVER)
}

/// Slow calls that a test asked for.
pub(crate) fn delay(symbol: &str) {
    let Some(devices) = DEVICES.get() else { return };
    for device in devices.iter().filter(|device| device.card.has_slow_call()) {
        let faults = device.card.faults();
        if faults.slow_call == symbol {
            std::thread::sleep(Duration::from_millis(faults.slow_milliseconds));
        }
    }
}

/// Runs in the child of a fork: what its parent holds is not its, nor kept by it when the parent dies.
pub(crate) fn forked() {
    if !FORKED.swap(true, Ordering::Relaxed) {
        for device in DEVICES.get().into_iter().flatten() {
            omni_cuda_card::close_after_fork(device.card.descriptor());
        }
    }
}

fn devices() -> Result<Vec<Device>, Error> {
    let opens = |name: &str| OpenOptions::new().read(true).write(true).open(directory().join(name)).is_ok();
    let cards = cards();
    if !opens("nvidiactl") || cards.is_empty() {
        return Err(Error::NO_DEVICE);
    }
    if !opens("nvidia-uvm") {
        return Err(Error::UNKNOWN);
    }
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let uuids: Vec<String> = cards.iter().map(|(_, card)| card.settings().uuid_text()).collect();
    let order = chosen(visible.as_deref().map(OsStr::to_string_lossy).as_deref(), &uuids);
    let mut cards: Vec<_> = cards.into_iter().map(Some).collect();
    let device = |at: usize| cards.get_mut(at).and_then(Option::take);
    let devices: Vec<Device> = order
        .into_iter()
        .filter_map(device)
        .map(|(minor, card)| Device { settings: card.settings(), card, minor })
        .collect();
    if devices.is_empty() { Err(Error::NO_DEVICE) } else { Ok(devices) }
}

pub(crate) fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).map_or_else(|| Path::new("/dev").to_owned(), PathBuf::from)
}

/// The cards that can be opened, by number.
pub(crate) fn cards() -> Vec<(u8, Card)> {
    let directory = directory();
    let open = |number: u8| Card::open(&directory.join(format!("nvidia{number}"))).ok().map(|card| (number, card));
    (0..CARDS).filter_map(open).collect()
}

/// Cards that `CUDA_VISIBLE_DEVICES` leaves: ordinals or beginnings of UUIDs, up to the first without a meaning; none
/// at all when one is named twice.
fn chosen(visible: Option<&str>, uuids: &[String]) -> Vec<usize> {
    let Some(visible) = visible else { return (0..uuids.len()).collect() };
    let one = |text: &str| -> Option<usize> {
        if text.starts_with("GPU-") {
            let mut matches = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(text));
            let (first, second) = (matches.next(), matches.next());
            first.filter(|_| second.is_none()).map(|(at, _)| at)
        } else {
            text.parse().ok().filter(|at| *at < uuids.len())
        }
    };
    let found: Vec<usize> = visible.split(',').map_while(|text| one(text.trim())).collect();
    let twice = found.iter().enumerate().any(|(at, device)| found[..at].contains(device));
    if twice { Vec::new() } else { found }
}

#[test]
fn visible_devices() {
    let uuids = ["GPU-aa00", "GPU-aa11", "GPU-bb00"].map(str::to_owned);
    let table: &[(Option<&str>, &[usize])] = &[
        (None, &[0, 1, 2]),
        (Some(""), &[]),
        (Some("2,0"), &[2, 0]),
        (Some(" 1 , 2"), &[1, 2]),
        (Some("1,-1,0"), &[1]),
        (Some("0,7,1"), &[0]),
        (Some("0,0"), &[]),
        (Some("GPU-bb"), &[2]),
        (Some("GPU-bb00,GPU-aa1"), &[2, 1]),
        (Some("GPU-aa"), &[]),
        (Some("MIG-1"), &[]),
    ];
    for (visible, expected) in table {
        assert_eq!(chosen(*visible, &uuids), *expected, "{visible:?}");
    }
}
