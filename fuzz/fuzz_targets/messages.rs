//! Messages of all wires between our own processes, and frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::messages::holds(data));
