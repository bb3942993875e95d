//! Validation of answers that must be JSON, for engines that do not constrain their output. Nothing is repaired: an answer of another
//! form is an error that names the place.
#![forbid(unsafe_code)]

mod cost;

use cost::{Cost, Extent};
use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator as Schema};
use omni_generation::{InvalidCode, InvalidRequest, ResponseFormat};
use serde_json::Value;

/// Longest schema, in bytes.
const LONGEST: usize = 256 * 1024;
/// Bytes that a compiled regular expression of a schema may take.
const PATTERN: usize = 1 << 20;
/// Bytes that all of them may take together: a millisecond compiles some 70 KiB.
const PATTERNS: usize = 16 << 20;
/// Most regular expressions of a schema.
const MOST_PATTERNS: usize = 1024;
/// Characters of a violation that its message repeats.
const SHOWN: usize = 200;

/// Validator of one request's answers.
#[derive(Debug)]
pub enum Validator {
    /// A JSON object.
    Object,
    /// JSON that a schema accepts.
    Schema(Box<Compiled>),
}

/// Schema, ready to validate.
#[derive(Debug)]
pub struct Compiled {
    schema: Schema,
    cost: Cost,
}

/// Answer of another form than was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The answer is no JSON.
    #[error("it is no JSON: {0}")]
    NotJson(String),
    /// The answer is JSON, and no object.
    #[error("it is JSON, but no object")]
    NotObject,
    /// The schema does not accept the answer.
    #[error("it does not fit the schema at {}: {message}", if place.is_empty() { "(root)" } else { place })]
    Schema {
        /// JSON Pointer of the place; empty for the whole answer.
        place: String,
        /// Reason.
        message: String,
    },
    /// The schema and the answer are too large together.
    #[error("it is too large to be validated with this schema")]
    TooLarge,
}

impl Validator {
    /// The validator of a format; `None`: any text is right.
    ///
    /// # Errors
    /// The schema is none, too large, or refers to another document.
    pub fn new(format: &ResponseFormat) -> Result<Option<Self>, InvalidRequest> {
        let schema = match format {
            ResponseFormat::Text => return Ok(None),
            ResponseFormat::JsonObject => return Ok(Some(Self::Object)),
            ResponseFormat::JsonSchema { schema, .. } => schema.get(),
        };
        let refused = |message: String| {
            InvalidRequest::new("response_format.json_schema", message).with_code(InvalidCode::Schema)
        };
        if schema.len() > LONGEST {
            return Err(refused(format!("the schema is longer than {LONGEST} bytes")));
        }
        let schema: Value = serde_json::from_str(schema).map_err(|error| refused(error.to_string()))?;
        let cost = Cost::new(&schema).map_err(|message| refused(shortened(&message)))?;
        // Expressions without backtracking: a client's pattern takes linear time.
        let count = patterns(&schema);
        if count > MOST_PATTERNS {
            return Err(refused(format!("the schema has {count} patterns: there may be {MOST_PATTERNS}")));
        }
        let most = PATTERN.min(PATTERNS / count.max(1));
        let patterns = PatternOptions::regex().size_limit(most).dfa_size_limit(most);
        let compiled = jsonschema::options().with_pattern_options(patterns).build(&schema);
        match compiled {
            Ok(schema) => Ok(Some(Self::Schema(Box::new(Compiled { schema, cost })))),
            Err(error) => Err(refused(unusable(&error))),
        }
    }

    /// Validates an answer.
    ///
    /// # Errors
    /// The first place that is wrong.
    pub fn validate(&self, answer: &str) -> Result<(), Violation> {
        let value: Value = serde_json::from_str(answer).map_err(|error| Violation::NotJson(error.to_string()))?;
        match self {
            Self::Object => {
                if value.is_object() {
                    Ok(())
                } else {
                    Err(Violation::NotObject)
                }
            }
            Self::Schema(schema) => schema.validate(&value),
        }
    }
}

impl Compiled {
    fn validate(&self, value: &Value) -> Result<(), Violation> {
        let extent = Extent::of(value);
        if !self.cost.allows(extent) {
            return Err(Violation::TooLarge);
        }
        if self.schema.is_valid(value) {
            return Ok(());
        }
        let unplaced =
            || Violation::Schema { place: String::new(), message: "the schema does not accept it".to_owned() };
        if !self.cost.allows_search(extent) {
            return Err(unplaced());
        }
        let error = self.schema.validate(value).err().ok_or_else(unplaced)?;
        Err(Violation::Schema { place: error.instance_path().to_string(), message: shortened(&error.to_string()) })
    }
}

fn unusable(error: &ValidationError<'_>) -> String {
    let message = shortened(&format!("the schema cannot be used: {error}"));
    match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            format!("{message}, or too large, or has look-around or back-references")
        }
        _ => message,
    }
}

/// The number of regular expressions in a schema.
fn patterns(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| match (key.as_str(), member) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(inner)) => inner.len() + patterns(member),
                _ => patterns(member),
            })
            .sum(),
        Value::Array(items) => items.iter().map(patterns).sum(),
        _ => 0,
    }
}

fn shortened(message: &str) -> String {
    match message.char_indices().nth(SHOWN) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn validator(schema: &str) -> Result<Validator, InvalidRequest> {
        let schema = RawValue::from_string(schema.to_owned()).unwrap();
        Ok(Validator::new(&ResponseFormat::JsonSchema { name: "s".into(), schema })?.unwrap())
    }

    #[test]
    fn an_answer_of_another_form_names_the_place() {
        let person = r#"{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}"#;
        let schema = validator(person).unwrap();
        assert_eq!(schema.validate(r#" {"age": 3} "#), Ok(()));
        for (answer, place) in [(r#"{"age": "3"}"#, "/age"), ("{}", "")] {
            let Err(Violation::Schema { place: found, .. }) = schema.validate(answer) else { panic!("{answer}") };
            assert_eq!(found, place, "{answer}");
            let shown = schema.validate(answer).unwrap_err().to_string();
            let named = if place.is_empty() { "(root)" } else { place };
            assert!(shown.starts_with(&format!("it does not fit the schema at {named}: ")), "{shown}");
        }
        for answer in ["", "```json\n{\"age\": 3}\n```", "{\"age\": 3", "{\"age\": 3} and more"] {
            assert!(matches!(schema.validate(answer), Err(Violation::NotJson(_))), "{answer}");
        }
    }

    #[test]
    fn an_object_is_any_object() {
        let object = Validator::new(&ResponseFormat::JsonObject).unwrap().unwrap();
        assert_eq!(object.validate("{\"a\": [1]}"), Ok(()));
        assert_eq!(object.validate("[1]"), Err(Violation::NotObject));
        assert!(Validator::new(&ResponseFormat::Text).unwrap().is_none());
    }

    #[test]
    fn schemas_that_cannot_be_used_are_refused() {
        for schema in [
            r#"{"type": "nothing"}"#,
            r#"{"pattern": "("}"#,
            r#"{"pattern": "(?=a)b"}"#,
            r#"{"$ref": "https://example.org/schema.json"}"#,
            r#"{"pattern": "a{1,1000}{1,1000}{1,1000}"}"#,
        ] {
            let error = validator(schema).unwrap_err();
            assert_eq!(
                (error.code, error.parameter.as_deref()),
                (InvalidCode::Schema, Some("response_format.json_schema"))
            );
        }
        assert!(validator(&format!("{{\"title\": \"{}\"}}", "x".repeat(LONGEST))).is_err());
    }

    #[test]
    fn alternatives_of_a_recursive_schema_take_little_time() {
        let child = r##""properties": {"child": {"$ref": "#/$defs/node"}}"##;
        let kind = |name: &str| format!(r#"{{{child}, "required": ["{name}"]}}"#);
        let kinds = ["a", "b", "c", "d"].map(kind).join(", ");
        let schema = format!(r##"{{"$defs": {{"node": {{"anyOf": [{kinds}]}}}}, "$ref": "#/$defs/node"}}"##);
        let schema = validator(&schema).unwrap();
        let nested = |last: &str| format!("{}{last}{}", r#"{"a": 1, "child": "#.repeat(40), "}".repeat(40));
        assert_eq!(schema.validate(&nested(r#"{"d": 1}"#)), Ok(()));
        assert!(matches!(schema.validate(&nested("{}")), Err(Violation::Schema { .. })));
        let Err(Violation::Schema { message, .. }) = schema.validate(r#"{"x": 1}"#) else { panic!() };
        assert!(message.contains("anyOf"), "{message}");
    }

    #[test]
    fn references_that_multiply_are_refused() {
        let level = |at: usize| {
            format!(r##""d{at}": {{"anyOf": [{{"$ref": "#/$defs/d{0}"}}, {{"$ref": "#/$defs/d{0}"}}]}}"##, at + 1)
        };
        let levels = (0..40).map(level).collect::<Vec<_>>().join(", ");
        let error =
            validator(&format!(r##"{{"$defs": {{{levels}, "d40": {{"type": "string"}}}}, "$ref": "#/$defs/d0"}}"##));
        assert_eq!(error.unwrap_err().code, InvalidCode::Schema);
    }

    #[test]
    fn patterns_share_their_memory() {
        let schema = |count: usize, repeated: usize| {
            let property = |at| format!(r#""p{at}": {{"pattern": "[\\w\\W]{{{repeated}}}{at}"}}"#);
            let properties = (0..count).map(property).collect::<Vec<_>>().join(", ");
            validator(&format!(r#"{{"properties": {{{properties}}}}}"#))
        };
        assert!(schema(1, 500).is_ok());
        assert!(schema(200, 5).is_ok());
        assert!(schema(200, 500).is_err());
        let error = schema(1025, 1).unwrap_err();
        assert_eq!(error.message, "the schema has 1025 patterns: there may be 1024");
        let error = validator(r#"{"pattern": "^(?!a)b$"}"#).unwrap_err();
        assert!(error.message.ends_with("look-around or back-references"), "{error:?}");
    }

    #[test]
    fn an_answer_too_large_for_its_schema_is_refused() {
        let many = |count: usize| vec!["1"; count].join(",");
        let schema = validator(&format!(r#"{{"items": {{"enum": [{}]}}}}"#, many(50_000))).unwrap();
        assert_eq!(schema.validate(&format!("[{}]", many(1000))), Ok(()));
        assert_eq!(schema.validate(&format!("[{}]", many(10_000))), Err(Violation::TooLarge));
    }

    #[test]
    fn recursive_schemas_end() {
        let schema = validator(r##"{"type": "array", "items": {"$ref": "#"}}"##).unwrap();
        assert_eq!(schema.validate("[[], [[]]]"), Ok(()));
        assert!(schema.validate(&"[".repeat(100_000)).is_err());
    }
}
