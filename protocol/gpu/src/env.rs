//! The shim's configuration. In the sandbox of a GPU model everything is at a fixed place ([`inside`]), the limit and the
//! mode stand in the accounting file there, and no variable changes any of it. Elsewhere environment variables say it;
//! with none of them set the shim passes everything through, unchanged.

/// The limit of the instance, over all its processes, in bytes (decimal).
pub const LIMIT_BYTES: &str = "OMNI_GPU_LIMIT_BYTES";
/// `unified` or `device`; `device` when it is not set.
pub const MODE: &str = "OMNI_GPU_MODE";
/// The accounting file; without it one is made that only a process and its forks share.
pub const ACCOUNT: &str = "OMNI_GPU_ACCOUNT";
/// The control socket; without it nothing is moved.
pub const CONTROL: &str = "OMNI_GPU_CONTROL";
/// The directory with the driver's real `libcuda.so.1`; without it the loader's search path decides.
pub const DRIVER: &str = "OMNI_GPU_DRIVER";

/// Where things are inside the sandbox of a GPU model.
pub mod inside {
    /// Ours: the shim and the proxy `libcuda.so.1`. First in the library path.
    pub const DIR: &str = "/gpu";
    /// The shim, preloaded by [`PRELOAD`].
    pub const SHIM: &str = "/gpu/libomni_cuda.so";
    /// Where glibc, and no other C library, reads what to preload into every program, whatever its environment.
    pub const PRELOAD: &str = "/etc/ld.so.preload";
    /// A library without symbols that needs the shim first and the real driver second: what a caller finds that opens
    /// the driver with `RTLD_DEEPBIND`, and so passes a preload by.
    pub const PROXY: &str = "/gpu/libcuda.so.1";
    /// The driver's own libraries.
    pub const DRIVER: &str = "/gpu/driver";
    /// The accounting file.
    pub const ACCOUNT: &str = "/gpu/account";
    /// The control socket.
    pub const CONTROL: &str = "/gpu/control.sock";
}
