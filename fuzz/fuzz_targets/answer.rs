//! Answers of a model, as frames of its data connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::answer::holds(data));
