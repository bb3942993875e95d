//! The one thing about a card that NVML does not tell: whether managed memory may be used by processor and card at a
//! time (`concurrentManagedAccess`), without which nothing can be moved while a model has it.
//!
//! Asked once, by [`super::probe`]'s thread. No context is made: the driver is initialised and asked for attributes.
#![allow(unsafe_code, reason = "calls into the driver's library, which is a C interface")]

use libloading::Library;
use omni_log::chain;
use std::collections::BTreeMap;
use std::ffi::{OsStr, c_int, c_uint};
use std::fmt::Write as _;

/// The library, as every driver installs it.
pub(super) const LIBRARY: &str = "libcuda.so.1";
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: c_int = 89;
/// The driver has places for no more cards.
const MOST_CARDS: c_int = 64;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// Support by each card that the driver lets this process use, by the card's uuid in NVML's form.
pub(super) fn concurrent_managed_access(file: &OsStr) -> Result<BTreeMap<String, bool>, String> {
    // SAFETY: the file is the driver's library, named by the operator or found where the linker finds every library of
    // this machine; its initialisers are those that any program which uses the driver runs.
    let library = unsafe { Library::new(file) }.map_err(|error| chain(&error))?;
    let init: Init = symbol(&library, "cuInit")?;
    let count: Count = symbol(&library, "cuDeviceGetCount")?;
    let get: Get = symbol(&library, "cuDeviceGet")?;
    let uuid: Uuid = symbol(&library, "cuDeviceGetUuid_v2").or_else(|_| symbol(&library, "cuDeviceGetUuid"))?;
    let attribute: Attribute = symbol(&library, "cuDeviceGetAttribute")?;
    // The driver keeps threads and registrations of its own once it is initialised: its code has to stay.
    std::mem::forget(library);

    // SAFETY: takes no memory; 0 is the one value that is allowed.
    check("cuInit", unsafe { init(0) })?;
    let mut cards = 0;
    // SAFETY: writes one number, into ours.
    check("cuDeviceGetCount", unsafe { count(&raw mut cards) })?;
    let mut access = BTreeMap::new();
    for ordinal in 0..cards.clamp(0, MOST_CARDS) {
        let (mut device, mut bytes, mut value) = (0, [0; 16], 0);
        // SAFETY: writes one number, into ours.
        check("cuDeviceGet", unsafe { get(&raw mut device, ordinal) })?;
        // SAFETY: the device is one that the driver has just named; writes 16 bytes, into ours.
        check("cuDeviceGetUuid", unsafe { uuid(&raw mut bytes, device) })?;
        // SAFETY: as above; writes one number, into ours.
        let result = unsafe { attribute(&raw mut value, CONCURRENT_MANAGED_ACCESS, device) };
        check("cuDeviceGetAttribute", result)?;
        access.insert(nvml_form(bytes), value != 0);
    }
    Ok(access)
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: every caller asks for the type that the driver's documentation gives the function of this name, and the
    // library stays loaded.
    let found = unsafe { library.get::<F>(name) };
    found.map(|function| *function).map_err(|error| chain(&error))
}

fn check(call: &str, result: c_int) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{call} answered {result}")) }
}

/// `GPU-` and the bytes in groups of 4, 2, 2, 2 and 6.
fn nvml_form(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}"); // writing to memory does not fail
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::node::GpuUuid;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = [0x01, 0x23, 0xab, 0xcd, 0x45, 0x67, 0x89, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
        assert_eq!(nvml_form(bytes), "GPU-0123abcd-4567-89ef-0123-456789abcdef");
        assert!(nvml_form(bytes).parse::<GpuUuid>().is_ok());
    }

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_said_so() {
        for file in ["/nonexistent/libcuda.so.1", "libc.so.6"] {
            assert!(!concurrent_managed_access(OsStr::new(file)).unwrap_err().is_empty());
        }
    }
}
