//! The `omni.toml` of a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::manifest::holds(data));
