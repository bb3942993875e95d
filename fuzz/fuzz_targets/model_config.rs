//! The `config.json` of a model of the engine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::model_config::holds(data));
