//! Typed fields of a configuration, in either of its forms, with their bounds.

use crate::architecture::{Architecture, Field, Fixed};
use crate::error::ConfigError;
use crate::source::{Configuration, Metadata, Value};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

/// Most bytes of `config.json`.
const MAX_TEXT: usize = 4 << 20;

/// Configuration after its text has been read.
pub(crate) enum Parsed<'a> {
    /// Object of `config.json`.
    Json(Map<String, Json>),
    /// Metadata of GGUF.
    Gguf(&'a dyn Metadata),
}

pub(crate) fn parse<'a>(configuration: &Configuration<'a>) -> Result<Parsed<'a>, ConfigError> {
    match configuration {
        Configuration::Json(text) => object("config.json", text).map(Parsed::Json),
        Configuration::Gguf(metadata) => Ok(Parsed::Gguf(*metadata)),
    }
}

/// Object in a JSON text.
pub(crate) fn object(file: &'static str, text: &str) -> Result<Map<String, Json>, ConfigError> {
    if text.len() > MAX_TEXT {
        return Err(ConfigError::File { file, reason: format!("it has more than {MAX_TEXT} bytes") });
    }
    serde_json::from_str(text).map_err(|error| ConfigError::file(file, &error))
}

/// Access to the fields of a configuration.
#[derive(Clone, Copy)]
pub(crate) enum Reader<'a> {
    /// Fields of `config.json`; those of the language model may lie in an object of their own.
    Json {
        /// Object of the fields.
        fields: &'a Map<String, Json>,
    },
    /// Keys of GGUF.
    Gguf {
        /// Keys.
        metadata: &'a dyn Metadata,
        /// First part of the keys: `general.architecture`.
        prefix: &'a str,
    },
}

impl<'a> Reader<'a> {
    pub(crate) fn new(parsed: &'a Parsed<'a>) -> Self {
        match parsed {
            Parsed::Json(fields) => Self::Json { fields },
            Parsed::Gguf(metadata) => Self::Gguf { metadata: *metadata, prefix: "" },
        }
    }

    /// Reader of the object that holds the fields of this architecture.
    pub(crate) fn enter(self, architecture: &Architecture) -> Self {
        match self {
            Self::Json { fields } => {
                let section = architecture.section.and_then(|name| fields.get(name)).and_then(Json::as_object);
                Self::Json { fields: section.unwrap_or(fields) }
            }
            Self::Gguf { metadata, .. } => Self::Gguf { metadata, prefix: architecture.gguf.unwrap_or_default() },
        }
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf { .. })
    }

    /// Name of the architecture.
    pub(crate) fn architecture(&self) -> Result<Cow<'a, str>, ConfigError> {
        match self {
            Self::Json { fields } => {
                let class = fields.get("architectures").and_then(|list| list.get(0)).and_then(Json::as_str);
                let name = class.or_else(|| fields.get("model_type").and_then(Json::as_str));
                name.map(Cow::Borrowed).ok_or_else(|| ConfigError::Missing { field: "architectures".to_owned() })
            }
            Self::Gguf { metadata, .. } => match metadata.value("general.architecture") {
                Some(Value::Text(name)) => Ok(Cow::Borrowed(name)),
                _ => Err(ConfigError::Missing { field: "general.architecture".to_owned() }),
            },
        }
    }

    /// Value of a field of `config.json` alone.
    pub(crate) fn json(&self, name: &str) -> Option<&'a Json> {
        match self {
            Self::Json { fields } => fields.get(name).filter(|value| !value.is_null()),
            Self::Gguf { .. } => None,
        }
    }

    /// Name of a field as its file has it.
    pub(crate) fn name(&self, field: &Field) -> String {
        match self {
            Self::Json { .. } => field.json.to_owned(),
            Self::Gguf { prefix, .. } => format!("{prefix}.{}", field.gguf),
        }
    }

    /// Value of a field, `None`: absent or null.
    pub(crate) fn value(&self, field: &Field) -> Option<Scalar<'a>> {
        match *self {
            Self::Json { fields } => match fields.get(field.json)? {
                Json::Null => None,
                Json::Bool(flag) => Some(Scalar::Flag(*flag)),
                Json::Number(number) => match number.as_u64() {
                    Some(whole) => Some(Scalar::Whole(whole)),
                    None => number.as_f64().map(Scalar::Number),
                },
                Json::String(text) => Some(Scalar::Text(text)),
                Json::Array(_) => Some(Scalar::Other("a list")),
                Json::Object(_) => Some(Scalar::Other("an object")),
            },
            Self::Gguf { metadata, prefix } => {
                if field.gguf.is_empty() {
                    return None;
                }
                Some(match metadata.value(&format!("{prefix}.{}", field.gguf))? {
                    Value::Unsigned(whole) => Scalar::Whole(whole),
                    Value::Number(number) => Scalar::Number(f64::from(number)),
                    Value::Flag(flag) => Scalar::Flag(flag),
                    Value::Text(text) => Scalar::Text(text),
                    Value::Other => Scalar::Other("neither a number nor a text"),
                })
            }
        }
    }

    /// Whole number from 1 to `most`: the field's value, or its default.
    pub(crate) fn size(&self, field: &Field, most: usize) -> Result<Option<usize>, ConfigError> {
        match self.whole(field, most)? {
            Some(0) => Err(ConfigError::field(self.name(field), 0, "which is not supported: it must be at least 1")),
            size => Ok(size),
        }
    }

    /// Whole number from 1 to `most` of a field that must be there, or have a default.
    pub(crate) fn required(&self, field: &Field, most: usize) -> Result<usize, ConfigError> {
        self.size(field, most)?.ok_or_else(|| ConfigError::Missing { field: self.name(field) })
    }

    /// Whole number from 0 to `most`: the field's value, or its default.
    pub(crate) fn whole(&self, field: &Field, most: usize) -> Result<Option<usize>, ConfigError> {
        let value = match self.value(field) {
            None => return Ok(field.default.map(|number| number as usize)),
            Some(Scalar::Whole(value)) => value,
            Some(Scalar::Number(value)) if value.fract() == 0.0 && (0.0..=1e15).contains(&value) => value as u64,
            Some(other) => return Err(ConfigError::field(self.name(field), other, "which is not a whole number")),
        };
        match usize::try_from(value).ok().filter(|size| *size <= most) {
            Some(size) => Ok(Some(size)),
            None => Err(ConfigError::field(self.name(field), value, format!("which is above {most}"))),
        }
    }

    /// Number: the field's value, or its default.
    pub(crate) fn number(&self, field: &Field) -> Result<Option<f64>, ConfigError> {
        match self.value(field) {
            None => Ok(field.default),
            Some(Scalar::Whole(value)) => Ok(Some(value as f64)),
            Some(Scalar::Number(value)) if value.is_finite() => Ok(Some(value)),
            Some(other) => Err(ConfigError::field(self.name(field), other, "which is not a number")),
        }
    }

    /// Number above 0 of a field that must be there, or have a default.
    pub(crate) fn positive(&self, field: &Field) -> Result<f64, ConfigError> {
        let value = self.number(field)?.ok_or_else(|| ConfigError::Missing { field: self.name(field) })?;
        if value > 0.0 && (value as f32).is_finite() && value as f32 > 0.0 {
            return Ok(value);
        }
        Err(ConfigError::field(self.name(field), value, "which is not a number above 0"))
    }

    /// Flag.
    pub(crate) fn flag(&self, field: &Field) -> Result<Option<bool>, ConfigError> {
        match self.value(field) {
            None => Ok(None),
            Some(Scalar::Flag(flag)) => Ok(Some(flag)),
            Some(other) => Err(ConfigError::field(self.name(field), other, "which is neither true nor false")),
        }
    }

    /// Text.
    pub(crate) fn text(&self, field: &Field) -> Result<Option<&'a str>, ConfigError> {
        match self.value(field) {
            None => Ok(None),
            Some(Scalar::Text(text)) => Ok(Some(text)),
            Some(other) => Err(ConfigError::field(self.name(field), other, "which is not a text")),
        }
    }

    /// Refuses values of fields for which there are no operations.
    pub(crate) fn refuse_unsupported(&self, architecture: &Architecture) -> Result<(), ConfigError> {
        for (field, fixed) in architecture.fixed {
            let Some(value) = self.value(field) else { continue };
            let supported = match (*fixed, value) {
                (Fixed::Number(wanted), Scalar::Whole(found)) => found as f64 == wanted,
                (Fixed::Number(wanted), Scalar::Number(found)) => found == wanted,
                (Fixed::Flag(wanted), Scalar::Flag(found)) => found == wanted,
                (Fixed::Text(wanted), Scalar::Text(found)) => found == wanted,
                _ => false,
            };
            if !supported {
                let reason = match *fixed {
                    Fixed::Number(wanted) => format!("which is not supported: only {wanted} is"),
                    Fixed::Flag(wanted) => format!("which is not supported: only {wanted} is"),
                    Fixed::Text(wanted) => format!("which is not supported: only {wanted:?} is"),
                    Fixed::Absent => "which is not supported".to_owned(),
                };
                return Err(ConfigError::field(self.name(field), value, reason));
            }
        }
        Ok(())
    }
}

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'a> {
    /// Whole number that is not negative.
    Whole(u64),
    /// Other number.
    Number(f64),
    /// Flag.
    Flag(bool),
    /// Text.
    Text(&'a str),
    /// Value of another type, in words.
    Other(&'static str),
}

impl std::fmt::Display for Scalar<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(value) => write!(formatter, "{value}"),
            Self::Number(value) => write!(formatter, "{value}"),
            Self::Flag(value) => write!(formatter, "{value}"),
            Self::Text(value) => write!(formatter, "{value:?}"),
            Self::Other(words) => formatter.write_str(words),
        }
    }
}
