//! Types of the driver's C interface as this library uses them: result codes, pointers of callers, descriptions of memory.
//!
//! A pointer is only reached through [`Out`] and [`In`], so that the code that uses them is safe.
#![allow(unsafe_code, reason = "pointers that callers of the driver give")]

/// Result of every function of the driver.
pub(crate) type CUresult = i32;

pub(crate) const SUCCESS: CUresult = 0;
pub(crate) const INVALID_VALUE: CUresult = 1;
pub(crate) const OUT_OF_MEMORY: CUresult = 2;
/// `CUDA_ERROR_INVALID_CONTEXT` and `_CONTEXT_IS_DESTROYED`.
pub(crate) const CONTEXT_IS_GONE: [CUresult; 2] = [201, 709];
/// `CUDA_ERROR_NOT_SUPPORTED`: the answer for an entry that this driver does not have.
pub(crate) const NOT_SUPPORTED: CUresult = 801;

/// Pointer to which the driver API writes: null, or writable as the API's contract says.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Pointer from which the driver API reads: null, or readable as the API's contract says.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> Out<T> {
    /// Points to a local place that outlives the call it is given to.
    pub(crate) fn of(place: &mut T) -> Self {
        Self(place)
    }

    /// Points to the first of local places that outlive the call they are given to.
    pub(crate) fn array(places: &mut [T]) -> Self {
        Self(places.as_mut_ptr())
    }

    /// Null, for an answer that is not wanted.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Reads the value; `None` for null.
    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: not null, so the caller's, who has to give what the API asks for.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Points to a value of another type at the same place, which the API's contract has to allow.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Writes the value; does nothing for null.
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `get`.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

impl<T: Copy> In<T> {
    /// Points to a local value that outlives the call it is given to.
    pub(crate) fn of(value: &T) -> Self {
        Self(value)
    }

    /// Reads the value; `None` for null.
    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: not null, so the caller's, who has to give what the API asks for.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Element `number` of the array that begins here.
    pub(crate) fn at(self, number: usize) -> Self {
        Self(if self.0.is_null() { self.0 } else { self.0.wrapping_add(number) })
    }
}

/// A context, stream, event, pool, graph, node, array or physical allocation: an opaque value.
pub(crate) type Handle = u64;

/// `CUmemLocation`: type and id.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub kind: i32,
    pub id: i32,
}

impl Location {
    pub(crate) const DEVICE: i32 = 1;
    pub(crate) const HOST: i32 = 2;
    /// `HOST`, `HOST_NUMA` and `HOST_NUMA_CURRENT`.
    pub(crate) fn is_host(self) -> bool {
        matches!(self.kind, 2..=4)
    }
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    pub allocation_type: i32,
    pub handle_types: i32,
    pub location: Location,
    pub security: u64,
    pub max_bytes: usize,
    pub usage: u16,
    rest: [u8; 54],
}

impl PoolProperties {
    pub(crate) fn new(allocation_type: i32, location: Location) -> Self {
        Self { allocation_type, handle_types: 0, location, security: 0, max_bytes: 0, usage: 0, rest: [0; 54] }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProperties {
    allocation_type: i32,
    handle_types: i32,
    pub location: Location,
    metadata: u64,
    flags: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AllocNodeParams {
    pool: [u64; 11],
    access: u64,
    access_count: usize,
    pub bytes: usize,
    address: u64,
}
