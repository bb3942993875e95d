//! `omni.toml`, by a model's author: refused with messages about its own keys, or read as it is written.

use omni_config::Manifest;

/// Reads a manifest.
///
/// # Panics
/// A refusal does not say what is wrong with the text, or a manifest written out reads as another.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Manifest::parse(&text) {
        Err(error) => crate::refusal::holds(&text, error.0.listed(), &error.to_string()),
        Ok(manifest) => {
            let written = manifest.to_toml().expect("what was read can be written");
            assert_eq!(Manifest::parse(&written).as_ref(), Ok(&manifest), "{written}");
            let instance = manifest.resources.memory;
            assert!(manifest.zygote_memory().is_none_or(|zygote| zygote <= instance && zygote.bytes() > 0));
        }
    }
}
