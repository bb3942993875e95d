//! Telemetry that monitors read of every card: temperature, power, clocks, modes, links. Numbers of an idle card.
#![allow(unsafe_code, reason = "exported C functions")]

use super::Failure;
use super::entries::{Device, Out, answer, of, text};
use super::shapes::{Bar1, Pci};
use std::ffi::{c_char, c_uint};

/// Exports questions whose answer is one number that is the same for every card.
macro_rules! numbers {
    ($( $symbol:ident($($argument:ident: $type:ty),*) = $answer:expr; )*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "` of a card that does nothing.")]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol(device: Device, $($argument: $type,)* out: Out<'_, c_uint>) -> c_uint {
                $( let _ = $argument; )*
                answer(out, || of(device).map(|_| $answer))
            }
        )*
    };
}

/// Milliwatts: idle, and the most.
const IDLE: c_uint = 25_000;
const POWER_LIMIT: c_uint = 300_000;
/// MHz.
const CLOCK: c_uint = 1_410;

numbers! {
    nvmlDeviceGetTemperature(sensor: c_uint) = 30;
    nvmlDeviceGetTemperatureThreshold(threshold: c_uint) = 90;
    nvmlDeviceGetFanSpeed() = 0;
    nvmlDeviceGetPowerUsage() = IDLE;
    nvmlDeviceGetPowerManagementLimit() = POWER_LIMIT;
    nvmlDeviceGetPowerManagementDefaultLimit() = POWER_LIMIT;
    nvmlDeviceGetEnforcedPowerLimit() = POWER_LIMIT;
    nvmlDeviceGetPowerManagementMode() = 1;
    nvmlDeviceGetPowerState() = 0;
    nvmlDeviceGetPerformanceState() = 0;
    nvmlDeviceGetClockInfo(clock: c_uint) = CLOCK;
    nvmlDeviceGetMaxClockInfo(clock: c_uint) = CLOCK;
    nvmlDeviceGetApplicationsClock(clock: c_uint) = CLOCK;
    nvmlDeviceGetPersistenceMode() = 1;
    nvmlDeviceGetComputeMode() = 0;
    nvmlDeviceGetDisplayMode() = 0;
    nvmlDeviceGetDisplayActive() = 0;
    nvmlDeviceGetBrand() = 3;
    nvmlDeviceGetArchitecture() = 7;
    nvmlDeviceGetMultiGpuBoard() = 0;
    nvmlDeviceGetBoardId() = 1;
    nvmlDeviceGetNumGpuCores() = 6_912;
    nvmlDeviceGetMemoryBusWidth() = 5_120;
    nvmlDeviceGetCurrPcieLinkGeneration() = 4;
    nvmlDeviceGetMaxPcieLinkGeneration() = 4;
    nvmlDeviceGetCurrPcieLinkWidth() = 16;
    nvmlDeviceGetMaxPcieLinkWidth() = 16;
    nvmlDeviceGetPcieThroughput(counter: c_uint) = 0;
}

/// Exports questions about what these cards do not have.
macro_rules! absent {
    ($( $symbol:ident; )*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "`: not supported here.")]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol(device: Device) -> c_uint {
                of(device).map_or_else(Failure::code, |_| Failure::NotSupported.code())
            }
        )*
    };
}

absent! {
    nvmlDeviceGetEccMode;
    nvmlDeviceGetTotalEccErrors;
    nvmlDeviceGetMigMode;
    nvmlDeviceGetMaxMigDeviceCount;
    nvmlDeviceGetMigDeviceHandleByIndex;
    nvmlDeviceGetNvLinkState;
    nvmlDeviceGetNvLinkVersion;
    nvmlDeviceGetSerial;
    nvmlDeviceGetVbiosVersion;
    nvmlDeviceGetSamples;
    nvmlDeviceGetProcessUtilization;
    nvmlDeviceGetAccountingMode;
    nvmlDeviceGetAttributes_v2;
    nvmlDeviceGetFieldValues;
    nvmlDeviceGetNumaNodeId;
}

/// Load of the encoder, none: percent, and the period in microseconds.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEncoderUtilization(
    device: Device,
    percent: Out<'_, c_uint>,
    period: Out<'_, c_uint>,
) -> c_uint {
    match answer(percent, || of(device).map(|_| 0)) {
        0 => answer(period, || Ok(1_000_000)),
        failure => failure,
    }
}

/// Load of the decoder, none.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDecoderUtilization(
    device: Device,
    percent: Out<'_, c_uint>,
    period: Out<'_, c_uint>,
) -> c_uint {
    nvmlDeviceGetEncoderUtilization(device, percent, period)
}

/// Millijoules since the driver was loaded.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: Device, out: Out<'_, u64>) -> c_uint {
    answer(out, || of(device).map(|_| 0))
}

/// Reasons for slow clocks, as bits: idle.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, out: Out<'_, u64>) -> c_uint {
    answer(out, || of(device).map(|_| 1))
}

/// The window through which the host sees the card.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBAR1MemoryInfo(device: Device, out: Out<'_, Bar1>) -> c_uint {
    answer(out, || of(device).map(|_| Bar1 { total: 256 << 20, free: 256 << 20, used: 0 }))
}

/// As `nvmlDeviceGetPciInfo_v3`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v2(device: Device, out: Out<'_, Pci>) -> c_uint {
    super::entries::nvmlDeviceGetPciInfo_v3(device, out)
}

/// The name of a process's program.
///
/// # Safety
/// `out` is null or has `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, out: *mut c_char, length: c_uint) -> c_uint {
    let name = || {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| Failure::NotFound)?;
        Ok(program.to_string_lossy().into_owned())
    };
    // SAFETY: what the caller promises.
    unsafe { text(out, length, name) }
}
