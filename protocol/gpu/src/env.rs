//! Configuration of the shim. In the sandbox of a GPU model everything is at a fixed place ([`inside`]), limit and mode
//! are in the accounting file there, and no variable changes any of it. Elsewhere environment variables configure it;
//! with none of them set the shim passes everything through, unchanged.

/// Limit of the instance, over all its processes, in bytes (decimal).
pub const LIMIT_BYTES: &str = "OMNI_GPU_LIMIT_BYTES";
/// `unified` or `device`; `device` when it is not set.
pub const MODE: &str = "OMNI_GPU_MODE";
/// Accounting file; without it one is made that only a process and its forks share.
pub const ACCOUNT: &str = "OMNI_GPU_ACCOUNT";
/// Control socket; without it nothing is moved.
pub const CONTROL: &str = "OMNI_GPU_CONTROL";
/// Directory with the driver's real `libcuda.so.1`; without it the loader's search path decides.
pub const DRIVER: &str = "OMNI_GPU_DRIVER";

/// Paths inside the sandbox of a GPU model.
pub mod inside {
    /// Folder of the shim and of the proxy `libcuda.so.1`. First in the library path.
    pub const DIR: &str = "/gpu";
    /// The shim, preloaded by [`PRELOAD`].
    pub const SHIM: &str = "/gpu/libomni_cuda.so";
    /// File in which glibc, and no other C library, finds libraries to preload into every program, whatever its
    /// environment.
    pub const PRELOAD: &str = "/etc/ld.so.preload";
    /// Library without symbols that needs the shim first and the real driver second: found by a caller that opens the
    /// driver with `RTLD_DEEPBIND`, and so passes a preload by.
    pub const PROXY: &str = "/gpu/libcuda.so.1";
    /// Folder of the driver's own libraries.
    pub const DRIVER: &str = "/gpu/driver";
    /// Accounting file.
    pub const ACCOUNT: &str = "/gpu/account";
    /// Control socket.
    pub const CONTROL: &str = "/gpu/control.sock";
}
