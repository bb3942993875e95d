//! `libcuda.so.1` as a model's programs find it: a library without symbols of its own that needs the shim and then the
//! real driver.
//!
//! A function looked up in its handle is the shim's, or the driver's where the shim has none. A preload alone is not
//! enough: a library that is opened with `RTLD_DEEPBIND` searches its own needed libraries before preloaded ones, and
//! `dlmopen` preloads nothing. Everything about it is in its dynamic section, which `build.rs` writes.
//!
//! Built with `panic=abort`, as `make build` does, it has nothing but that section; without it the standard library
//! comes along, because Rust has to unwind.
#![cfg_attr(panic = "abort", no_std)]

/// Required by the compiler; nothing here can panic.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
