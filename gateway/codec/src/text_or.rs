//! A text, or an array or object in its place.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A text, or an array or object in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextOr<T> {
    /// Text.
    Text(String),
    /// The array or object.
    Other(T),
}

impl TextOr<Vec<String>> {
    /// All texts.
    #[must_use]
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text],
            Self::Other(texts) => texts,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, an array or an object, as the parameter has it")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(TextOr::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<Self::Value, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(sequence)).map(TextOr::Other)
    }
}

impl<T: JsonSchema> JsonSchema for TextOr<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("TextOr{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let other = generator.subschema_for::<T>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, other] })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_and_an_array_of_texts_are_read() {
        let parse = |json: &str| serde_json::from_str::<TextOr<Vec<String>>>(json).map(TextOr::into_vec);
        assert_eq!(parse(r#""a""#).unwrap(), ["a"]);
        assert_eq!(parse(r#"["a", "b"]"#).unwrap(), ["a", "b"]);
        for bad in ["1", "null", "[1]", "{}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
