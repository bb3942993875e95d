//! Inputs as texts or token ids: one or several of either.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Text.
    Text(String),
    /// Tokens of the model's own vocabulary.
    Tokens(Vec<u32>),
}

/// Inputs of a request: a text, an array of texts, an array of token ids, or an array of such arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs(pub Vec<Input>);

/// Element of an array.
enum Element {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, an array of strings, or token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Inputs, E> {
        Ok(Inputs(vec![Input::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Inputs, A::Error> {
        let (mut inputs, mut tokens) = (Vec::new(), Vec::new());
        while let Some(element) = sequence.next_element()? {
            match element {
                Element::Token(token) if inputs.is_empty() => tokens.push(token),
                Element::Text(text) if tokens.is_empty() && !matches!(inputs.last(), Some(Input::Tokens(_))) => {
                    inputs.push(Input::Text(text));
                }
                Element::Tokens(ids) if tokens.is_empty() && !matches!(inputs.last(), Some(Input::Text(_))) => {
                    inputs.push(Input::Tokens(ids));
                }
                Element::Token(_) | Element::Text(_) | Element::Tokens(_) => {
                    return Err(A::Error::custom("an array has to have texts, token ids or arrays of token ids alone"));
                }
            }
        }
        if !tokens.is_empty() {
            inputs.push(Input::Tokens(tokens));
        }
        Ok(Inputs(inputs))
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a token id or an array of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, token: u64) -> Result<Element, E> {
        u32::try_from(token).map(Element::Token).map_err(|_| E::custom("a token id has 32 bits"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Element, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = sequence.next_element()? {
            tokens.push(token);
        }
        Ok(Element::Tokens(tokens))
    }
}

impl JsonSchema for Inputs {
    fn schema_name() -> Cow<'static, str> {
        "Inputs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let token = schemars::json_schema!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
        let tokens = schemars::json_schema!({ "type": "array", "minItems": 1, "items": token });
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } },
                tokens,
                { "type": "array", "minItems": 1, "items": tokens },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_tokens_are_read() {
        let read = |json: &str| serde_json::from_str::<Inputs>(json).map(|inputs| inputs.0);
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(read(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("[1, 2]").unwrap(), [Input::Tokens(vec![1, 2])]);
        assert_eq!(read("[[1], [2, 3]]").unwrap(), [Input::Tokens(vec![1]), Input::Tokens(vec![2, 3])]);
        assert_eq!(read("[]").unwrap(), []);
        for bad in ["1", "null", "[1, \"a\"]", "[\"a\", 1]", "[[1], 1]", "[-1]", "[1.5]", "[4294967296]", "{}"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
