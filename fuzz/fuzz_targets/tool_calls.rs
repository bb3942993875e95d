//! Answers of models with tool calls and reasoning.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omni_properties::tool_calls::holds(data));
