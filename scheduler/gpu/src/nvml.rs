//! NVML, the driver's library for those who watch cards: what cards there are, what is in use, and by which process.
//!
//! Opened once by [`super::probe`]'s thread, which alone calls it: any call may take long, or not come back when the
//! driver is stuck. What comes from the driver is checked: texts are cut and cleaned, lists are bounded, a driver that
//! lacks a call is an error and not an end.
#![allow(unsafe_code, reason = "calls into the driver's library, which is a C interface")]

use libloading::Library;
use omni_config::node::GpuUuid;
use omni_log::chain;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

/// The library, as every driver installs it.
pub(super) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Longest name and uuid that NVML writes (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`, `NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const TEXT: usize = 96;
/// More processes than this on one card are not counted.
const PROCESSES: usize = 1024;
/// `NVML_VALUE_NOT_AVAILABLE`: the driver knows the process and not its memory.
const NOT_AVAILABLE: u64 = u64::MAX;

/// `NVML_ERROR_GPU_IS_LOST`: it has fallen off the bus or has otherwise become inaccessible.
const GPU_IS_LOST: c_int = 15;
/// `NVML_ERROR_RESET_REQUIRED`: it must be reset before it can be used again.
const RESET_REQUIRED: c_int = 16;

type Handle = *mut c_void;
type DeviceText = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
type RunningProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_t`, as the calls of version 2 and 3 have it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A call that did not work, and what the driver says of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NvmlError {
    /// The library is not there, or lacks a call.
    #[error("{0}")]
    Library(String),
    /// The driver's own words.
    #[error("{call}: {message}")]
    Call {
        /// Which.
        call: &'static str,
        /// The driver's words for it.
        message: String,
    },
    /// The card is gone, or useless until somebody resets it.
    #[error("the card is lost: {0}")]
    Lost(String),
}

/// A card, as it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: GpuUuid,
    pub(super) minor: u32,
    pub(super) name: String,
    pub(super) total_bytes: u64,
}

/// A process on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// All that the driver gave it, its context too.
    pub(super) bytes: u64,
}

/// Memory in use on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) used_bytes: u64,
    /// Processes whose memory the driver knows.
    pub(super) processes: Vec<Process>,
}

/// The library, initialised.
#[derive(Debug)]
pub(super) struct Nvml {
    shutdown: unsafe extern "C" fn() -> c_int,
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    handle: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    uuid: DeviceText,
    name: DeviceText,
    minor: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    memory: unsafe extern "C" fn(Handle, *mut Memory) -> c_int,
    processes: RunningProcesses,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Holds the code that the functions above are in.
    _library: Library,
}

impl Nvml {
    /// Loads and initialises it, from a path or by its name.
    pub(super) fn open(file: &OsStr) -> Result<Self, NvmlError> {
        let failed = |error: libloading::Error| NvmlError::Library(chain(&error));
        // SAFETY: the file is the driver's library, named by the operator or found where the linker finds every
        // library of this machine; its initialisers are those that any program which uses the driver runs.
        let library = unsafe { Library::new(file) }.map_err(failed)?;
        let init: unsafe extern "C" fn() -> c_int = symbol(&library, "nvmlInit_v2")?;
        let nvml = Self {
            shutdown: symbol(&library, "nvmlShutdown")?,
            count: symbol(&library, "nvmlDeviceGetCount_v2")?,
            handle: symbol(&library, "nvmlDeviceGetHandleByIndex_v2")?,
            uuid: symbol(&library, "nvmlDeviceGetUUID")?,
            name: symbol(&library, "nvmlDeviceGetName")?,
            minor: symbol(&library, "nvmlDeviceGetMinorNumber")?,
            memory: symbol(&library, "nvmlDeviceGetMemoryInfo")?,
            processes: symbol(&library, "nvmlDeviceGetComputeRunningProcesses_v3")
                .or_else(|_| symbol(&library, "nvmlDeviceGetComputeRunningProcesses_v2"))?,
            error: symbol(&library, "nvmlErrorString")?,
            _library: library,
        };
        // SAFETY: takes nothing; may be called from any thread, any number of times.
        let result = unsafe { init() };
        nvml.check("nvmlInit_v2", result)?;
        Ok(nvml)
    }

    /// How many cards this process may see.
    pub(super) fn count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        // SAFETY: writes one number, into ours.
        let result = unsafe { (self.count)(&raw mut count) };
        self.check("nvmlDeviceGetCount_v2", result).map(|()| count)
    }

    /// Properties of a card.
    pub(super) fn identity(&self, index: u32) -> Result<Identity, NvmlError> {
        let device = self.device(index)?;
        let uuid = self.text("nvmlDeviceGetUUID", self.uuid, device)?;
        let name = self.text("nvmlDeviceGetName", self.name, device)?;
        let mut minor = 0;
        // SAFETY: the handle is from the library, which is initialised; writes one number, into ours.
        let result = unsafe { (self.minor)(device, &raw mut minor) };
        self.check("nvmlDeviceGetMinorNumber", result)?;
        let total_bytes = self.memory(device)?.total;
        let odd = |_| NvmlError::Library(format!("the driver names the card `{uuid}`, which is no uuid"));
        Ok(Identity { uuid: uuid.parse().map_err(odd)?, minor, name, total_bytes })
    }

    /// Memory in use on a card now.
    pub(super) fn read(&self, index: u32) -> Result<Use, NvmlError> {
        let device = self.device(index)?;
        let used_bytes = self.memory(device)?.used;
        let mut list = vec![ProcessInfo::default(); PROCESSES];
        let mut count = PROCESSES as c_uint;
        // SAFETY: the handle is from the library; it writes at most as many entries as `count` says, which is the
        // list's length, in the form that these versions of the call have, and how many there were into `count`.
        let result = unsafe { (self.processes)(device, &raw mut count, list.as_mut_ptr()) };
        self.check("nvmlDeviceGetComputeRunningProcesses", result)?;
        list.truncate(count as usize);
        let known = list.into_iter().filter(|process| process.used != NOT_AVAILABLE);
        let processes = known.map(|process| Process { pid: process.pid, bytes: process.used }).collect();
        Ok(Use { used_bytes, processes })
    }

    fn device(&self, index: u32) -> Result<Handle, NvmlError> {
        let mut device = null_mut();
        // SAFETY: writes one pointer, into ours. Handles stay valid while the library is initialised; one is asked
        // for anew each time, since a card may have been lost and found again.
        let result = unsafe { (self.handle)(index, &raw mut device) };
        self.check("nvmlDeviceGetHandleByIndex_v2", result).map(|()| device)
    }

    fn memory(&self, device: Handle) -> Result<Memory, NvmlError> {
        let mut memory = Memory::default();
        // SAFETY: the handle is from the library; writes one `nvmlMemory_t`, into ours.
        let result = unsafe { (self.memory)(device, &raw mut memory) };
        self.check("nvmlDeviceGetMemoryInfo", result).map(|()| memory)
    }

    fn text(&self, call: &'static str, function: DeviceText, device: Handle) -> Result<String, NvmlError> {
        let mut bytes = [0_u8; TEXT];
        // SAFETY: the handle is from the library; it writes at most as many bytes as it is told, which is one less than
        // there are, so that the text ends within them in any case.
        let result = unsafe { function(device, bytes.as_mut_ptr().cast(), (TEXT - 1) as c_uint) };
        self.check(call, result)?;
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default();
        Ok(text.chars().filter(|character| !character.is_control()).collect())
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), NvmlError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: takes any number; answers a constant text of the library, or nothing.
        let text = unsafe { (self.error)(result) };
        let message = if text.is_null() {
            format!("error {result}")
        } else {
            // SAFETY: not null, ends with NUL, and is never changed or freed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(match result {
            GPU_IS_LOST | RESET_REQUIRED => NvmlError::Lost(message),
            _ => NvmlError::Call { call, message },
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes nothing; counted by the library, so that others in this process keep theirs.
        let _ = unsafe { (self.shutdown)() }; // nobody is left who could do anything about it
    }
}

/// A function of the library.
fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, NvmlError> {
    // SAFETY: every caller asks for the type that NVML's documentation gives the function of this name, and keeps the
    // library for as long as the function.
    let found = unsafe { library.get::<F>(name) };
    found.map(|function| *function).map_err(|error| NvmlError::Library(chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_said_so() {
        for file in ["/nonexistent/libnvidia-ml.so.1", "libc.so.6"] {
            let NvmlError::Library(message) = Nvml::open(OsStr::new(file)).unwrap_err() else {
                panic!("{file}: not of the library");
            };
            assert!(!message.is_empty());
        }
    }
}
