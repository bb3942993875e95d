//! Packets of the socket between shims and worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::gpu_control::holds(data));
