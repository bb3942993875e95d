//! Structures and numbers of the virtual memory calls.

use crate::error::Error;
use crate::machine;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    /// Means something to devices and NUMA nodes only; anything may stand here otherwise.
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) windows: u64,
    /// Compression, GPUDirect RDMA, usage: accepted, without any effect.
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const DESCRIPTOR: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
pub(super) const NO_ACCESS: u32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`, `_READWRITE`.
pub(super) const ACCESS: [u32; 3] = [NO_ACCESS, 1, 3];
/// Unit of handles, their mappings and their addresses: a page of device memory, 2 MiB.
pub(super) const GRANULARITY: u64 = 2 << 20;

impl Location {
    const DEVICE: u32 = 1;
    const HOST: u32 = 2;
    const HOST_NUMA: u32 = 3;
    const HOST_NUMA_CURRENT: u32 = 4;

    /// The device that it names; None for the host.
    ///
    /// # Errors
    /// When there is no such device, or it is no place.
    pub(crate) fn device(self) -> Result<Option<usize>, Error> {
        match self.kind {
            Self::DEVICE => machine::device(self.id).map(|(ordinal, _)| Some(ordinal)),
            Self::HOST | Self::HOST_NUMA | Self::HOST_NUMA_CURRENT => Ok(None),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    /// Canonical form of all locations that mean the same.
    pub(crate) fn normal(self) -> Self {
        match self.kind {
            Self::DEVICE => self,
            kind => Self { kind, id: 0 },
        }
    }
}

impl Properties {
    /// # Errors
    /// When they describe memory that cannot be had. Returns the device, None for the host.
    pub(super) fn check(&self) -> Result<Option<usize>, Error> {
        machine::all()?;
        if self.kind != PINNED {
            return Err(Error::INVALID_VALUE);
        }
        if self.handle_types & !DESCRIPTOR != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        self.location.device()
    }
}
