//! What a model sends of its answers, as frames of its data connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::answer::holds(data));
