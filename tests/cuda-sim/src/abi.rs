//! The C side of every entry: exported symbols, and what callers' pointers are read and written through.
//!
//! `api!` turns a safe function into exported symbols; nothing else in this crate exports. What a caller passes is
//! believed as far as C allows: a pointer is NULL (answered with `CUDA_ERROR_INVALID_VALUE`) or points to what the API's
//! declaration says.
#![allow(unsafe_code, reason = "exported symbols; pointers of C callers; the handler of forks")]

use crate::error::{Answer, Error};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

/// Handle: an opaque number of this driver.
pub(crate) type Handle = u64;

/// An exported symbol and its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    pub(crate) address: *const (),
}

// SAFETY: the address of a function, for callers to call.
unsafe impl Sync for Symbol {}
// SAFETY: as above.
unsafe impl Send for Symbol {}

/// Exports functions: `fn cuName | cuName_ptsz(argument: Type) = function;`. The second name is the form for the
/// per-thread default stream. Lists them as `SYMBOLS`.
macro_rules! api {
    ($(
        fn $symbol:ident $(| $per_thread:ident)? ($($argument:ident: $type:ty),* $(,)?) = $function:ident;
    )*) => {
        $($crate::abi::entry! { ($($argument: $type),*) $function $symbol $($per_thread)? })*
        /// Exports of this module.
        pub(crate) const SYMBOLS: &[$crate::abi::Symbol] = &[
            $(
                $crate::abi::Symbol { name: stringify!($symbol), address: $symbol as *const () },
                $($crate::abi::Symbol { name: stringify!($per_thread), address: $per_thread as *const () },)?
            )*
        ];
    };
}
pub(crate) use api;

/// Defines a function under its names.
macro_rules! entry {
    ($arguments:tt $function:ident $symbol:ident $per_thread:ident) => {
        $crate::abi::entry! { @ $arguments $function $symbol false }
        $crate::abi::entry! { @ $arguments $function $per_thread true }
    };
    ($arguments:tt $function:ident $symbol:ident) => {
        $crate::abi::entry! { @ $arguments $function $symbol false }
    };
    (@ ($($argument:ident: $type:ty),*) $function:ident $symbol:ident $per_thread:literal) => {
        #[allow(unsafe_code, non_snake_case, reason = "exported under the API's name")]
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> u32 {
            // `self`: an argument may have the function's name.
            $crate::abi::enter(stringify!($symbol), $per_thread, move || self::$function($($argument),*))
        }
    };
}
pub(crate) use entry;

/// Exports entries that are not simulated.
macro_rules! stubs {
    ($($symbol:ident)*) => {
        $(
            #[allow(unsafe_code, non_snake_case, reason = "exported under the API's name")]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol() -> u32 {
                $crate::error::Error::NOT_SUPPORTED.0
            }
        )*
        /// Every stub.
        pub(crate) const SYMBOLS: &[$crate::abi::Symbol] =
            &[$($crate::abi::Symbol { name: stringify!($symbol), address: $symbol as *const () },)*];
    };
}
pub(crate) use stubs;

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Every call of an implemented entry goes through here.
pub(crate) fn enter(symbol: &'static str, per_thread: bool, call: impl FnOnce() -> Answer) -> u32 {
    crate::machine::delay(symbol);
    let before = PER_THREAD.replace(per_thread);
    let answer = call();
    PER_THREAD.set(before);
    answer.map_or_else(|error| error.0, |()| 0)
}

/// Stream 0 is the thread's own in the current call.
pub(crate) fn per_thread() -> bool {
    PER_THREAD.get()
}

/// Pointer to which a caller wants a value written.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Errors
    /// The pointer is NULL.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }

    /// # Errors
    /// The pointer is NULL.
    pub(crate) fn put(self, value: T) -> Answer {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// Writes a value that may be unwanted (NULL).
    pub(crate) fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, so the caller's memory for one value of this type (see the file's header).
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The caller said that there is room for so many.
    pub(crate) fn put_all(self, values: &[T]) -> Answer {
        self.check()?;
        // SAFETY: not NULL, and the caller has room for these (see the file's header).
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), self.0.cast(), size_of_val(values)) };
        Ok(())
    }

    /// Reads the present value.
    ///
    /// # Errors
    /// The pointer is NULL.
    pub(crate) fn get(self) -> Result<T, Error> {
        In(self.0.cast_const()).get()
    }
}

impl Out<c_void> {
    /// Points to a value of another type at the same place.
    pub(crate) fn of<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

/// Pointer from which values of the caller are read.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// # Errors
    /// The pointer is NULL.
    pub(crate) fn get(self) -> Result<T, Error> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's memory with one value of this type, which any bytes are (plain C types).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// # Errors
    /// The pointer is NULL, and `count` is not 0.
    pub(crate) fn get_all(self, count: usize) -> Result<Vec<T>, Error> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's memory with `count` values of this type, which any bytes are.
        Ok((0..count).map(|at| unsafe { self.0.wrapping_add(at).read_unaligned() }).collect())
    }
}

impl In<c_char> {
    /// # Errors
    /// The pointer is NULL.
    pub(crate) fn text(self) -> Result<String, Error> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not NULL, so a C string of the caller.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// A place for `T` of which the caller says how many bytes it has.
pub(crate) fn out_at<T>(address: u64) -> Out<T> {
    Out(std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)))
}

/// A function of the caller with one argument, called on a thread of ours (`cuLaunchHostFunc`).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct HostFunction(Option<extern "C" fn(*mut c_void)>);

impl HostFunction {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn call(self, data: u64) {
        if let Some(function) = self.0 {
            function(std::ptr::with_exposed_provenance_mut(usize::try_from(data).unwrap_or(0)));
        }
    }
}

/// Callback of the caller with the stream and a result (`cuStreamAddCallback`).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct StreamCallback(Option<extern "C" fn(Handle, u32, *mut c_void)>);

impl StreamCallback {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn call(self, stream: Handle, data: u64) {
        if let Some(function) = self.0 {
            function(stream, 0, std::ptr::with_exposed_provenance_mut(usize::try_from(data).unwrap_or(0)));
        }
    }
}

extern "C" fn forked() {
    crate::machine::forked();
}

/// Registers [`crate::machine::forked`] to run in the child of every fork.
pub(crate) fn hear_of_forks() {
    // SAFETY: a function of this library, which is never unloaded: Rust's thread-locals keep it.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}
