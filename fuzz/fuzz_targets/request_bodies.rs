//! Bodies of requests in the APIs of generated text.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::request_bodies::holds(data));
