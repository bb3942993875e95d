//! GGUF files of a model.
#![no_main]

// Panics of the tokenizers crate are caught; others still end the run, which catches them itself.
libfuzzer_sys::fuzz_target!(
    init: drop(std::panic::take_hook()),
    |data: &[u8]| omni_properties::gguf::holds(data)
);
