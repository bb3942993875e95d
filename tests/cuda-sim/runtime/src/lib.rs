//! `libcudart_double.so`: a double of the CUDA runtime, for programs written against `cudaMalloc`. It is not libcudart.
//!
//! The real one cannot run on the simulated driver: before its first call it asks for an undocumented export table, which
//! the simulator does not have. This double has the calls about memory, devices and streams, with the prototypes and the
//! error codes of the documentation, and does what the documentation says through the documented driver API: it opens
//! `libcuda.so.1`, finds `cuGetProcAddress_v2` by `dlsym` and everything else through that, with the versions that the
//! real one asks for. Tests use it to see that the shim meets a program that never names the driver.
//!
//! Invariants: a driver code that the runtime documents is the runtime's code too (the enumerations share their
//! numbers); a failure is remembered for the thread until `cudaGetLastError`; nothing panics.

mod device;
mod driver;
mod error;
mod memory;
mod properties;
mod stream;
