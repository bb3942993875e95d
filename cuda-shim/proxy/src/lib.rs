//! `libcuda.so.1` as a model's programs find it: a library without a symbol of its own, that needs the shim and then the
//! real driver.
//!
//! Whoever looks a function up in its handle finds the shim's first, and the driver's where the shim has none. A preload
//! alone would not do: a library that is opened with `RTLD_DEEPBIND` looks into what it needs itself before it looks at
//! preloaded ones, and `dlmopen` preloads nothing. Everything about it is in its dynamic section, which `build.rs` writes.
//!
//! Built with `panic=abort`, as `make build` does, it is nothing but that section; a debug build carries the standard
//! library along, because without it Rust cannot unwind.
#![cfg_attr(panic = "abort", no_std)]

/// The compiler wants one; nothing here can panic.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
