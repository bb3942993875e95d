//! The accounting file of a model with a GPU.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::gpu_account::holds(data));
