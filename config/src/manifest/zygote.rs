//! `[python]`: the modules that a model's instances share by fork, and how strictly packages are verified.
//!
//! Read by [`super::Manifest::parse`]; applied by the worker. Invariant: a module to preload has a Python name.

use serde::{Serialize, Serializer};
use toml::de::DeValue;

use super::program::is_identifier;
use crate::kind::{Mismatch, boolean, string};
use crate::reader::Section;

/// Longest name of a module, in bytes.
const MODULE_LIMIT: usize = 200;

/// `[python]`: how instances begin, and from what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Python {
    /// Modules that the zygote imports, in this order.
    pub preload: Vec<String>,
    /// Use of a zygote that instances are forked from.
    pub zygote: ZygoteUse,
    /// True if each installed package must match a hash in `requirements.txt`.
    pub require_hashes: bool,
}

impl Python {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            preload: section.list("preload", module),
            zygote: section.get("zygote", zygote_use, ZygoteUse::default()),
            require_hashes: section.get("require-hashes", boolean, false),
        }
    }
}

/// Use of a zygote: a process that has imported the modules already, and that instances are forked from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZygoteUse {
    /// Where it gains something: with modules to preload, or several instances.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Serialize for ZygoteUse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::On => serializer.serialize_bool(true),
            Self::Off => serializer.serialize_bool(false),
        }
    }
}

fn zygote_use(value: &DeValue<'_>) -> Result<ZygoteUse, Mismatch> {
    match (value.as_bool(), value.as_str()) {
        (Some(true), _) => Ok(ZygoteUse::On),
        (Some(false), _) => Ok(ZygoteUse::Off),
        (None, Some("auto")) => Ok(ZygoteUse::Auto),
        (None, _) => Err(Mismatch::expected("true, false or \"auto\"")),
    }
}

fn module(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let is_module = |name: &String| name.len() <= MODULE_LIMIT && name.split('.').all(is_identifier);
    string(value)
        .ok()
        .filter(is_module)
        .ok_or_else(|| Mismatch::expected("the name of a module, such as \"numpy\" or \"safetensors.numpy\""))
}
