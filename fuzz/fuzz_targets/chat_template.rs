//! The chat template of a model, with a client's texts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::chat_template::holds(data));
