//! NVML over simulated cards: the documented calls that say what devices there are, how much of their memory is taken,
//! and by whom. Whoever opens `libnvidia-ml.so.1` calls it; the driver beside it is not asked, the card's file is.
//!
//! The memory of a process is that which the driver counts on real cards: memory that is not managed, and contexts.
//! Managed memory is part of the device's total only: users report it, with and without an answer from NVIDIA, in
//! Syllo/nvtop issue 213, gpuopenanalytics/pynvml issue 63 (60 GB of `cudaMallocManaged` shown as 5) and rapidsai/rmm
//! issue 2259; no page of the documentation was found on either.
//!
//! Nothing is kept between calls but the count of initialisations: a card is opened, asked and closed, so that a fork
//! inherits nothing.

mod board;
mod entries;
mod processes;
mod shapes;
mod telemetry;

use std::ffi::{CStr, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

/// `nvmlReturn_t`, without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Uninitialized,
    InvalidArgument,
    NotSupported,
    NotFound,
    InsufficientSize,
    DriverNotLoaded,
    GpuIsLost,
    VersionMismatch,
    Unknown,
}

/// Codes that have a name in `nvmlErrorString`.
const STRINGS: &[(c_uint, &CStr)] = &[
    (0, c"Success"),
    (Failure::Uninitialized.code(), c"Uninitialized"),
    (Failure::InvalidArgument.code(), c"Invalid Argument"),
    (Failure::NotSupported.code(), c"Not Supported"),
    (Failure::NotFound.code(), c"Not Found"),
    (Failure::InsufficientSize.code(), c"Insufficient Size"),
    (Failure::DriverNotLoaded.code(), c"Driver Not Loaded"),
    (13, c"Function Not Found"),
    (Failure::GpuIsLost.code(), c"GPU is lost"),
    (Failure::VersionMismatch.code(), c"Argument version mismatch"),
];

impl Failure {
    const fn code(self) -> c_uint {
        match self {
            Self::Uninitialized => 1,
            Self::InvalidArgument => 2,
            Self::NotSupported => 3,
            Self::NotFound => 6,
            Self::InsufficientSize => 7,
            Self::DriverNotLoaded => 9,
            Self::GpuIsLost => 15,
            Self::VersionMismatch => 25,
            Self::Unknown => 999,
        }
    }

    fn string(code: c_uint) -> &'static CStr {
        STRINGS.iter().find(|(known, _)| *known == code).map_or(c"Unknown Error", |(_, string)| *string)
    }
}

/// Number of `nvmlInit` minus that of `nvmlShutdown`.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// Counts an initialisation.
///
/// # Errors
/// Fails when there is no card.
fn initialise() -> Result<(), Failure> {
    if board::all().is_empty() {
        return Err(Failure::DriverNotLoaded);
    }
    INITIALISED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Takes one back.
fn shut_down() -> Result<(), Failure> {
    let less = INITIALISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    less.map(|_| ()).map_err(|_| Failure::Uninitialized)
}

fn initialised() -> Result<(), Failure> {
    if INITIALISED.load(Ordering::Relaxed) == 0 { Err(Failure::Uninitialized) } else { Ok(()) }
}
