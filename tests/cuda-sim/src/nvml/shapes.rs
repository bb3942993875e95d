//! The structures of NVML's interface, as its header (12.9) lays them out.

use std::ffi::{c_char, c_uint};

/// `nvmlMemory_t`, bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) free: u64,
    /// Includes the driver's own memory.
    pub(super) used: u64,
}

/// `nvmlMemory_v2_t`, bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MemoryV2 {
    /// The caller writes [`MEMORY_V2`].
    pub(super) version: c_uint,
    pub(super) total: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
    /// Without what is reserved.
    pub(super) used: u64,
}

/// `nvmlMemory_v2`: size of the structure, and its version in the highest byte.
pub(super) const MEMORY_V2: c_uint = 40 | 2 << 24;
const _: () = assert!(size_of::<MemoryV2>() == 40);

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProcessV1 {
    pub(super) pid: c_uint,
    pub(super) used: u64,
}

/// `nvmlProcessInfo_v2_t`, which `_v2` and `_v3` of the calls fill.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProcessV2 {
    pub(super) pid: c_uint,
    pub(super) used: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

/// `gpu_instance` and `compute_instance` on a card that is not divided.
pub(super) const NO_INSTANCE: c_uint = u32::MAX;

/// `nvmlUtilization_t`, percent.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Pci {
    pub(super) bus_id_legacy: [c_char; 16],
    pub(super) domain: c_uint,
    pub(super) bus: c_uint,
    pub(super) device: c_uint,
    /// Device and vendor: no vendor is `ffff`.
    pub(super) device_id: c_uint,
    pub(super) subsystem_id: c_uint,
    pub(super) bus_id: [c_char; 32],
}

/// `nvmlBAR1Memory_t`, bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bar1 {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}
