//! The node's configuration.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::node::holds(data));
