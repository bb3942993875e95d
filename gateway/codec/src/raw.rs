//! JSON whose keys stay in their order: schemas, and objects of the client's own form.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Most arrays and objects inside each other.
const DEEPEST: usize = 64;
/// Most members of an object.
const MOST_MEMBERS: usize = 1024;

/// A JSON object as the client wrote it. Invariant: at most [`DEEPEST`] levels.
#[derive(Debug, Clone)]
pub struct Object(Box<RawValue>);

impl Object {
    /// The object's text.
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The object as raw JSON.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        &self.0
    }

    /// The object as raw JSON of its own.
    #[must_use]
    pub fn into_raw(self) -> Box<RawValue> {
        self.0
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if !raw.get().starts_with('{') {
            return Err(D::Error::custom("it has to be an object"));
        }
        check_depth(&raw)?;
        Ok(Self(raw))
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for Object {
    fn schema_name() -> Cow<'static, str> {
        "Object".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "object", "additionalProperties": true })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Members of a JSON object, in their order and without duplicates.
#[derive(Debug, Clone, Default)]
pub struct RawMembers(pub Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for RawMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = RawMembers;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMembers, A::Error> {
        let mut members = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<Box<RawValue>>()?;
            check_depth(&value)?;
            if members.len() == MOST_MEMBERS {
                return Err(A::Error::custom(format_args!("it has more than {MOST_MEMBERS} members")));
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom("a member appears twice"));
            }
            members.push((name, value));
        }
        Ok(RawMembers(members))
    }
}

impl JsonSchema for RawMembers {
    fn schema_name() -> Cow<'static, str> {
        "Members".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "object", "additionalProperties": true })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Checks that readers of the value need no deep recursion.
///
/// # Errors
/// More than [`DEEPEST`] levels.
pub fn check_depth<E: Error>(raw: &RawValue) -> Result<(), E> {
    if depth(raw.get()) > DEEPEST {
        return Err(E::custom(format_args!("it has more than {DEEPEST} levels of arrays and objects")));
    }
    Ok(())
}

/// Levels of arrays and objects in valid JSON.
fn depth(json: &str) -> usize {
    let (mut level, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                level += 1;
                deepest = deepest.max(level);
            }
            b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_outside_of_strings() {
        for (json, expected) in [("1", 0), ("{}", 1), (r#"{"a": [1, {}], "b": []}"#, 3), (r#"["[[\"[[", "\\"]"#, 1)] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }

    #[test]
    fn objects_keep_the_order_of_their_keys_and_have_a_depth() {
        let text = r#"{"z": 1, "a": {"y": 2, "b": 3}}"#;
        assert_eq!(serde_json::from_str::<Object>(text).unwrap().get(), text);
        let members = serde_json::from_str::<RawMembers>(text).unwrap();
        assert_eq!(members.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["z", "a"]);
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(DEEPEST), "]".repeat(DEEPEST));
        for (json, expected) in
            [("[1]", "it has to be an object"), (deep.as_str(), "it has more than 64 levels of arrays and objects")]
        {
            let error = serde_json::from_str::<Object>(json).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(serde_json::from_str::<RawMembers>(r#"{"a": 1, "a": 2}"#).unwrap_err().to_string().contains("twice"));
    }
}
