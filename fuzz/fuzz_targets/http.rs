//! Requests of a client on a connection of the data listener.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::http::holds(data));
