//! Files of safetensors of a model, with their index and `config.json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::safetensors::holds(data));
