//! Exports of `libnvidia-ml.so.1`. A device's handle is its index and one, and no pointer.
#![allow(unsafe_code, reason = "exported C functions")]

use super::board::{self, Board};
use super::shapes::{MEMORY_V2, Memory, MemoryV2, NO_INSTANCE, Pci, ProcessV1, ProcessV2, Utilization};
use super::{Failure, initialise, initialised, processes, shut_down};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// `nvmlDevice_t`.
pub(super) type Device = usize;
/// Pointer to which an answer is written: null from a caller is `None`.
pub(super) type Out<'a, T> = Option<&'a mut T>;

fn code(result: Result<(), Failure>) -> c_uint {
    result.err().map_or(0, Failure::code)
}

/// Writes what `find` finds, once NVML is initialised.
pub(super) fn answer<T>(out: Out<'_, T>, find: impl FnOnce() -> Result<T, Failure>) -> c_uint {
    let answer = |out: &mut T| {
        *out = find()?;
        Ok(())
    };
    code(initialised().and_then(|()| out.ok_or(Failure::InvalidArgument)).and_then(answer))
}

pub(super) fn of(device: Device) -> Result<Board, Failure> {
    let index = device.checked_sub(1).ok_or(Failure::InvalidArgument)?;
    board::all().into_iter().nth(index).ok_or(Failure::InvalidArgument)
}

/// The handle of the first card that fits.
fn find(is_it: impl Fn(&Board) -> bool) -> Result<Device, Failure> {
    board::all().iter().position(is_it).map(|index| index + 1).ok_or(Failure::NotFound)
}

/// Writes a text with its end.
///
/// # Safety
/// `out` is null or has `length` bytes.
pub(super) unsafe fn text(out: *mut c_char, length: c_uint, find: impl FnOnce() -> Result<String, Failure>) -> c_uint {
    let write = |text: String| {
        if out.is_null() {
            return Err(Failure::InvalidArgument);
        }
        if text.len() >= length as usize {
            return Err(Failure::InsufficientSize);
        }
        // SAFETY: text and end are not longer than `length`; a string of ours is not in the caller's memory.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
        // SAFETY: its end is within `length`.
        let end = unsafe { out.add(text.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Ok(())
    };
    code(initialised().and_then(|()| find()).and_then(write))
}

/// Writes a list; the caller passes the room there is, and gets the room that was needed.
///
/// # Safety
/// `out` has room for as many as `count` says, or is null and `count` says 0.
unsafe fn list<T: Copy>(count: Out<'_, c_uint>, out: *mut T, find: impl FnOnce() -> Result<Vec<T>, Failure>) -> c_uint {
    let write = |count: &mut c_uint| {
        let found = find()?;
        let room = *count as usize;
        *count = c_uint::try_from(found.len()).unwrap_or(c_uint::MAX);
        if found.len() > room {
            return Err(Failure::InsufficientSize);
        }
        if found.is_empty() {
            return Ok(());
        }
        if out.is_null() {
            return Err(Failure::InvalidArgument);
        }
        // SAFETY: not more than the caller has room for; our list is not in the caller's memory.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), out, found.len()) };
        Ok(())
    };
    code(initialised().and_then(|()| count.ok_or(Failure::InvalidArgument)).and_then(write))
}

/// Begins; counted.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_uint {
    code(initialise())
}

/// As `nvmlInit_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> c_uint {
    nvmlInit_v2()
}

/// As `nvmlInit_v2`: both flags are about cards that are absent or not attached, and the simulated ones are always
/// both.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_uint {
    nvmlInit_v2()
}

/// Takes one `nvmlInit` back.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_uint {
    code(shut_down())
}

/// Text for a code.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    Failure::string(result).as_ptr()
}

/// The driver's version, of the first card.
///
/// # Safety
/// `out` is null or has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { text(out, length, || of(1).map(|board| board::driver_version(&board.settings))) }
}

/// The library's version.
///
/// # Safety
/// `out` is null or has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { text(out, length, || of(1).map(|board| format!("12.{}", board::driver_version(&board.settings)))) }
}

/// The newest CUDA that the driver serves; needs no `nvmlInit`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: Out<'_, c_int>) -> c_uint {
    let write = |out: &mut c_int| {
        let board = of(1).map_err(|_| Failure::DriverNotLoaded)?;
        *out = c_int::try_from(board.settings.driver).map_err(|_| Failure::Unknown)?;
        Ok(())
    };
    code(out.ok_or(Failure::InvalidArgument).and_then(write))
}

/// As `nvmlSystemGetCudaDriverVersion_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(out: Out<'_, c_int>) -> c_uint {
    nvmlSystemGetCudaDriverVersion_v2(out)
}

/// Number of cards.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(out: Out<'_, c_uint>) -> c_uint {
    answer(out, || c_uint::try_from(board::all().len()).map_err(|_| Failure::Unknown))
}

/// As `nvmlDeviceGetCount_v2`, which differs for cards that the caller may not use.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount(out: Out<'_, c_uint>) -> c_uint {
    nvmlDeviceGetCount_v2(out)
}

/// The handle of a card by its place.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: Out<'_, Device>) -> c_uint {
    answer(out, || of(index as usize + 1).map(|_| index as usize + 1))
}

/// As `nvmlDeviceGetHandleByIndex_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, out: Out<'_, Device>) -> c_uint {
    nvmlDeviceGetHandleByIndex_v2(index, out)
}

/// Handle by "GPU-…".
///
/// # Safety
/// `uuid` is null or a string with its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: Out<'_, Device>) -> c_uint {
    answer(out, || {
        // SAFETY: what the caller promises.
        let uuid = unsafe { string(uuid) }?;
        find(|board| board.settings.uuid_text() == uuid)
    })
}

/// Handle by "0000:01:00.0", with four or eight digits of the domain, in any case.
///
/// # Safety
/// `bus` is null or a string with its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, out: Out<'_, Device>) -> c_uint {
    answer(out, || {
        // SAFETY: what the caller promises.
        let bus = unsafe { string(bus) }?;
        find(|board| [4, 8].iter().any(|digits| board.bus_id(*digits).eq_ignore_ascii_case(bus)))
    })
}

/// # Safety
/// `text` is null or a string with its end, which lives as long as the answer.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::InvalidArgument);
    }
    // SAFETY: not null, and what the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::InvalidArgument)
}

/// The product's name.
///
/// # Safety
/// `out` is null or has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(device: Device, out: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { text(out, length, || of(device).map(|board| board.settings.name)) }
}

/// "GPU-…".
///
/// # Safety
/// `out` is null or has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { text(out, length, || of(device).map(|board| board.settings.uuid_text())) }
}

/// N of `/dev/nvidiaN`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Device, out: Out<'_, c_uint>) -> c_uint {
    answer(out, || of(device).map(|board| c_uint::from(board.minor)))
}

/// The card's place among those that this process sees.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Device, out: Out<'_, c_uint>) -> c_uint {
    answer(out, || of(device).and_then(|_| c_uint::try_from(device - 1).map_err(|_| Failure::InvalidArgument)))
}

/// Place on the PCI bus.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, out: Out<'_, Pci>) -> c_uint {
    fn padded<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
        let mut bytes = text.bytes();
        std::array::from_fn(|_| c_char::from_ne_bytes([bytes.next().unwrap_or(0)]))
    }
    answer(out, || {
        let board = of(device)?;
        Ok(Pci {
            bus_id_legacy: padded(&board.bus_id(4)),
            domain: 0,
            bus: board.bus(),
            device: 0,
            device_id: c_uint::MAX,
            subsystem_id: c_uint::MAX,
            bus_id: padded(&board.bus_id(8)),
        })
    })
}

/// Major and minor compute capability.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: Out<'_, c_int>,
    minor: Out<'_, c_int>,
) -> c_uint {
    let capability = || of(device).map(|board| board.settings.capability);
    let whole = |number: u32| c_int::try_from(number).map_err(|_| Failure::Unknown);
    match answer(major, || whole(capability()?.0)) {
        0 => answer(minor, || whole(capability()?.1)),
        failed => failed,
    }
}

/// Total and used memory of the whole card.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, out: Out<'_, Memory>) -> c_uint {
    answer(out, || of(device)?.memory())
}

/// The same, with the driver's own memory apart: none.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: Out<'_, MemoryV2>) -> c_uint {
    let version = out.as_ref().map(|out| out.version);
    answer(out, || match version {
        Some(MEMORY_V2) => {
            let Memory { total, free, used } = of(device)?.memory()?;
            Ok(MemoryV2 { version: MEMORY_V2, total, reserved: 0, free, used })
        }
        _ => Err(Failure::VersionMismatch),
    })
}

/// Kernels do not run: 0 percent.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, out: Out<'_, Utilization>) -> c_uint {
    answer(out, || of(device).map(|_| Utilization::default()))
}

/// Processes with a context on the card.
///
/// # Safety
/// `out` has room for as many as `count` says, or is null and `count` says 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Device,
    count: Out<'_, c_uint>,
    out: *mut ProcessV1,
) -> c_uint {
    let shape = |used: processes::Used| ProcessV1 { pid: used.pid, used: used.bytes };
    // SAFETY: what the caller promises.
    unsafe { list(count, out, || Ok(of(device)?.processes()?.into_iter().map(shape).collect())) }
}

/// The same, with the instances of a divided card.
///
/// # Safety
/// As for [`nvmlDeviceGetComputeRunningProcesses`].
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Device,
    count: Out<'_, c_uint>,
    out: *mut ProcessV2,
) -> c_uint {
    let shape = |used: processes::Used| ProcessV2 {
        pid: used.pid,
        used: used.bytes,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    // SAFETY: what the caller promises.
    unsafe { list(count, out, || Ok(of(device)?.processes()?.into_iter().map(shape).collect())) }
}

/// The same.
///
/// # Safety
/// As for [`nvmlDeviceGetComputeRunningProcesses`].
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: Out<'_, c_uint>,
    out: *mut ProcessV2,
) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { nvmlDeviceGetComputeRunningProcesses_v2(device, count, out) }
}

/// Processes that draw: none on these cards.
///
/// # Safety
/// As for [`nvmlDeviceGetComputeRunningProcesses`].
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: Out<'_, c_uint>,
    out: *mut ProcessV2,
) -> c_uint {
    // SAFETY: what the caller promises.
    unsafe { list(count, out, || of(device).map(|_| Vec::new())) }
}
