//! How a function of ours takes the place of the driver's, and how ours call the driver's others.
//!
//! [`hooks!`] makes the exported function, the way through to the real one, and the table by which `dlsym` and
//! `cuGetProcAddress` find ours. A body is safe code: what the caller points to is reached through [`Out`] and [`In`].
#![allow(unsafe_code, reason = "exported functions, and the pointers that their callers give")]

/// What every function of the driver returns.
pub(crate) type CUresult = i32;

pub(crate) const SUCCESS: CUresult = 0;
pub(super) const INVALID_VALUE: CUresult = 1;
pub(super) const OUT_OF_MEMORY: CUresult = 2;
/// `CUDA_ERROR_INVALID_CONTEXT` and `_CONTEXT_IS_DESTROYED`.
pub(crate) const CONTEXT_IS_GONE: [CUresult; 2] = [201, 709];
/// What a caller gets from an entry that this driver does not have.
pub(crate) const NOT_SUPPORTED: CUresult = 801;

/// A pointer through which a caller of the driver API wants an answer: null, or writable as the API's contract says.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A pointer to something that a caller of the driver API describes: null, or readable as the API's contract says.
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
    /// To a place of ours that outlives the call it is given to.
    pub(crate) fn of(place: &mut T) -> Self {
        Self(place)
    }

    /// To the first of places of ours that outlive the call it is given to.
    pub(crate) fn array(places: &mut [T]) -> Self {
        Self(places.as_mut_ptr())
    }

    /// Nowhere.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// `None` for null.
    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: not null, so the caller's, who has to give what the API asks for.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// To a value of another type at the same place, which the API's contract has to allow.
    pub(super) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Nothing for null.
    pub(super) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `get`.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

impl<T: Copy> In<T> {
    /// To a value of ours that outlives the call it is given to.
    pub(crate) fn of(value: &T) -> Self {
        Self(value)
    }

    /// `None` for null.
    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: not null, so the caller's, who has to give what the API asks for.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// The element `number` of the array that begins here.
    pub(super) fn at(self, number: usize) -> Self {
        Self(if self.0.is_null() { self.0 } else { self.0.wrapping_add(number) })
    }
}

/// Functions of the driver that ours take the place of: `fn name(arguments) |real| body;`. `real` is the driver's own.
/// Where this library is not wanted, and where the body asks for it, the call goes straight on.
macro_rules! hooks {
    ($( fn $symbol:ident($($name:ident: $type:ty),* $(,)?) |$real:ident| $body:expr; )*) => {
        $(
            #[allow(unsafe_code, reason = "exported under the driver's name")]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol($($name: $type),*) -> $crate::hooks::entry::CUresult {
                $crate::real::pass();
                let Some(entry) = $crate::real::function!(
                    $symbol as unsafe extern "C" fn($($type),*) -> $crate::hooks::entry::CUresult
                ) else {
                    return $crate::hooks::entry::NOT_SUPPORTED;
                };
                // SAFETY: the arguments are of the types that the function has, and the caller's, or as good.
                let $real = move |$($name: $type),*| unsafe { entry($($name),*) };
                if !$crate::active() {
                    return $real($($name),*);
                }
                $body
            }
        )*

        /// Ours for an exported symbol of the driver.
        pub(super) fn find(symbol: &str) -> Option<*const std::ffi::c_void> {
            match symbol {
                $( stringify!($symbol) => Some($symbol as *const std::ffi::c_void), )*
                _ => None,
            }
        }
    };
}

/// Functions of the driver that ours call. One that this driver does not have says [`NOT_SUPPORTED`].
macro_rules! driver {
    ($( fn $symbol:ident($($name:ident: $type:ty),* $(,)?); )*) => {
        $(
            #[allow(unsafe_code, non_snake_case, clippy::too_many_arguments, reason = "the driver's function, as it is")]
            pub(super) fn $symbol($($name: $type),*) -> $crate::hooks::entry::CUresult {
                let Some(entry) = $crate::real::function!(
                    $symbol as unsafe extern "C" fn($($type),*) -> $crate::hooks::entry::CUresult
                ) else {
                    return $crate::hooks::entry::NOT_SUPPORTED;
                };
                // SAFETY: the types are the header's; pointers are places of ours, or the caller's.
                unsafe { entry($($name),*) }
            }
        )*
    };
}

pub(crate) use driver;
pub(super) use hooks;
