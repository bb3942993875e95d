//! Bounds of JSON schemas, before anything is compiled.
//!
//! The compiler multiplies out: alternatives of several `anyOf`, `oneOf`, `enum` and `type` that hold together, and
//! definitions whose `$ref` has other keywords beside it. A schema of some kilobytes could so take all memory. The
//! bound is computed from the schema alone, as the number of nodes and of alternatives after all of that.

use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Most levels of a schema's JSON.
const DEPTH: usize = 64;
/// Most nodes of a schema after it was multiplied out.
const NODES: f64 = 50_000.0;
/// Most comparisons of alternatives of `oneOf`, and pairs of an object's properties.
const COMPARISONS: f64 = 1_000_000.0;
/// Most `$ref` of a schema: the compiler follows them in depth.
const REFERENCES: usize = 256;
/// Most properties of an object: each that may be left out adds to the items of the parser's row.
const PROPERTIES: usize = 512;
/// Most regular expressions of a schema.
const PATTERNS: usize = 64;
/// Most bytes of a regular expression.
const PATTERN_BYTES: usize = 1024;

/// Keywords that combine whole schemas at one place.
const COMBINING: [&str; 6] = ["allOf", "anyOf", "oneOf", "$ref", "const", "enum"];
/// Keywords without effect on what is valid.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords whose value is a schema.
const SCHEMA: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
/// Keywords whose value has a schema for each name.
const SCHEMAS: [&str; 2] = ["patternProperties", "properties"];
/// Keywords with a count, and its largest value. Each character of a text with a bound is a state of the lexer.
const COUNTS: [(&str, u32); 6] = [
    ("maxItems", 100_000),
    ("maxLength", 4096),
    ("maxProperties", 100_000),
    ("minItems", 100_000),
    ("minLength", 4096),
    ("minProperties", 100_000),
];

/// Size of a schema after it was multiplied out.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: f64,
    alternatives: f64,
}

const ONE: Size = Size { nodes: 1.0, alternatives: 1.0 };

impl Size {
    /// Size where both hold.
    fn and(self, other: Self) -> Self {
        Self {
            nodes: self.nodes * other.alternatives + other.nodes * self.alternatives,
            alternatives: self.alternatives * other.alternatives,
        }
    }

    /// Size where either holds.
    fn or(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, alternatives: self.alternatives + other.alternatives }
    }
}

/// Checks the bounds of a schema beside others, which have so many nodes. Returns the nodes of all.
///
/// # Errors
/// The schema is beyond a bound, which the text says.
pub(crate) fn check(schema: &Value, others: f64) -> Result<f64, String> {
    let mut totals = Totals::default();
    totals.add(schema, 0)?;
    let mut measure = Measure { root: schema, known: HashMap::new(), named: Vec::new(), comparisons: 0.0 };
    let mut nodes = others + measure.size(schema, false).nodes;
    let mut done = HashSet::new();
    while let Some(reference) = measure.named.pop() {
        if let Some(target) = target(schema, reference).filter(|_| done.insert(reference)) {
            nodes += measure.size(target, false).nodes;
        }
    }
    if nodes > NODES {
        return Err(format!(
            "its alternatives and references multiply to {nodes:.0} nodes, and {NODES:.0} are allowed"
        ));
    }
    if measure.comparisons > COMPARISONS {
        return Err("its oneOf has too many alternatives, or its objects too many properties".to_owned());
    }
    Ok(nodes)
}

/// Sums over the whole of a schema's JSON.
#[derive(Debug, Default)]
struct Totals {
    references: usize,
    patterns: usize,
}

impl Totals {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > DEPTH {
            return Err(format!("it is nested more than {DEPTH} levels deep"));
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.add(item, depth + 1)),
            Value::Object(members) => members.iter().try_for_each(|(name, member)| {
                self.add_member(name, member)?;
                self.add(member, depth + 1)
            }),
            _ => Ok(()),
        }
    }

    fn add_member(&mut self, name: &str, member: &Value) -> Result<(), String> {
        let pattern_bytes = match member {
            Value::String(pattern) if name == "pattern" => {
                self.patterns += 1;
                Some(pattern.len())
            }
            Value::Object(properties) if name == "properties" && properties.len() > PROPERTIES => {
                return Err(format!("it has an object of more than {PROPERTIES} properties"));
            }
            Value::Object(patterns) if name == "patternProperties" => {
                self.patterns += patterns.len();
                patterns.keys().map(String::len).max()
            }
            _ => None,
        };
        self.references += usize::from(name == "$ref" && member.is_string());
        if pattern_bytes.is_some_and(|bytes| bytes > PATTERN_BYTES) {
            return Err(format!("it has a regular expression of more than {PATTERN_BYTES} bytes"));
        }
        if self.patterns > PATTERNS {
            return Err(format!("it has more than {PATTERNS} regular expressions"));
        }
        if self.references > REFERENCES {
            return Err(format!("it has more than {REFERENCES} $ref"));
        }
        let largest = COUNTS.iter().find(|(counted, _)| *counted == name).map(|(_, largest)| *largest);
        match (member.as_f64(), largest) {
            (Some(count), Some(largest)) if count > largest.into() => {
                Err(format!("its {name} is {count}, and at most {largest} is allowed"))
            }
            _ => Ok(()),
        }
    }
}

/// Sizes of a schema's parts.
struct Measure<'a> {
    root: &'a Value,
    /// Sizes of what a `$ref` names where it is multiplied out; `None` while it is computed.
    known: HashMap<&'a str, Option<Size>>,
    /// Every `$ref` that is not multiplied out: its target is compiled once.
    named: Vec<&'a str>,
    comparisons: f64,
}

impl<'a> Measure<'a> {
    /// Size of a schema; `combined` if it holds together with another one.
    fn size(&mut self, schema: &'a Value, combined: bool) -> Size {
        let Some(members) = schema.as_object() else { return ONE };
        let simple = members.keys().any(|name| {
            let name = name.as_str();
            !COMBINING.contains(&name) && !ANNOTATIONS.contains(&name)
        });
        let parts = members.iter().map(|(name, value)| match name.as_str() {
            "allOf" => value.as_array().map_or(0, Vec::len),
            name => usize::from(COMBINING.contains(&name)),
        });
        let combined = combined || usize::from(simple) + parts.sum::<usize>() > 1;
        let start = if simple { self.simple(members, combined) } else { ONE };
        let combining = members.iter().filter(|(name, _)| COMBINING.contains(&name.as_str()));
        combining.fold(start, |size, (name, value)| size.and(self.combining(name, value, combined)))
    }

    /// Size of the keywords that say something about one type, for each type that they may be about.
    fn simple(&mut self, members: &'a Map<String, Value>, combined: bool) -> Size {
        let types = match members.get("type") {
            Some(Value::Array(types)) => types.len() as f64,
            Some(_) => 1.0,
            None => 6.0,
        };
        let mut nodes = types;
        for (name, value) in members {
            let name = name.as_str();
            if COMBINING.contains(&name) || ANNOTATIONS.contains(&name) {
                continue;
            }
            if SCHEMA.contains(&name) {
                nodes += self.size(value, combined).nodes;
            } else if SCHEMAS.contains(&name) {
                let count = value.as_object().map_or(0.0, |schemas| schemas.len() as f64);
                self.comparisons += count * count;
                let schemas = value.as_object().into_iter().flat_map(Map::values);
                nodes += schemas.map(|schema| self.size(schema, combined).nodes).sum::<f64>();
            }
            // A list of schemas, or of names.
            nodes += value.as_array().into_iter().flatten().map(|item| self.size(item, combined).nodes).sum::<f64>();
        }
        Size { nodes, alternatives: types }
    }

    fn combining(&mut self, name: &str, value: &'a Value, combined: bool) -> Size {
        let none = Size { nodes: 0.0, alternatives: 0.0 };
        match (name, value) {
            ("allOf", Value::Array(parts)) => parts.iter().fold(ONE, |size, part| size.and(self.size(part, combined))),
            ("anyOf" | "oneOf", Value::Array(options)) => {
                let size = options.iter().fold(none, |size, option| size.or(self.size(option, combined)));
                if name == "oneOf" {
                    self.comparisons += size.nodes * size.alternatives;
                }
                size
            }
            ("enum", Value::Array(values)) => values.iter().fold(none, |size, value| size.or(literal(value))),
            ("const", value) => literal(value),
            ("$ref", Value::String(reference)) if combined => self.reference(reference),
            ("$ref", Value::String(reference)) => {
                self.named.push(reference);
                ONE
            }
            _ => ONE,
        }
    }

    /// Size of what a reference names. One that leads back to itself is not multiplied out.
    fn reference(&mut self, reference: &'a str) -> Size {
        if let Some(known) = self.known.get(reference) {
            return known.unwrap_or(ONE);
        }
        let Some(target) = target(self.root, reference) else { return ONE };
        self.known.insert(reference, None);
        let size = self.size(target, true);
        self.known.insert(reference, Some(size));
        size
    }
}

/// Part of a schema that a reference names.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

fn literal(value: &Value) -> Size {
    let nodes = |values: &mut dyn Iterator<Item = &Value>| 1.0 + values.map(|value| literal(value).nodes).sum::<f64>();
    let nodes = match value {
        Value::Array(items) => nodes(&mut items.iter()),
        Value::Object(members) => nodes(&mut members.values()),
        _ => 1.0,
    };
    Size { nodes, alternatives: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_schemas_are_within_the_bounds() {
        let properties: Map<String, Value> =
            (0..500).map(|index| (format!("p{index}"), json!({"type": "string", "description": "text"}))).collect();
        for schema in [
            json!({"type": "object", "properties": properties, "additionalProperties": false}),
            json!({"enum": (0..2000).collect::<Vec<_>>()}),
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}}),
            json!({"type": "object", "$ref": "#/$defs/node", "$defs": {"node": {"properties": {
                "next": {"$ref": "#/$defs/node"}}}}}),
            json!(true),
        ] {
            assert!(check(&schema, 0.0).is_ok(), "{schema}");
        }
    }

    #[test]
    fn schemas_that_multiply_are_refused() {
        let doubling = |name: &str, sibling: Value| {
            let mut definitions = Map::new();
            for level in 0..30 {
                let reference = format!("#/$defs/d{}", level + 1);
                let both = match name {
                    "sibling" => json!({"type": "object", "$ref": reference}),
                    _ => json!({"allOf": [{"$ref": reference}, sibling]}),
                };
                definitions
                    .insert(format!("d{level}"), json!({"type": "object", "properties": {"a": both, "b": both}}));
            }
            definitions.insert("d30".to_owned(), json!({"type": "object"}));
            json!({"type": "object", "$ref": "#/$defs/d0", "$defs": definitions})
        };
        let options: Vec<Value> = (0..40).map(|value| json!({"minimum": value})).collect();
        let deep = (0..80).fold(json!({}), |inner, _| json!({"items": inner}));
        let constants: Vec<Value> =
            (0..1500).map(|value| json!({"type": "object", "required": [value.to_string()]})).collect();
        for schema in [
            doubling("sibling", json!(null)),
            doubling("allOf", json!({"type": "object"})),
            json!({"allOf": [{"anyOf": options}, {"anyOf": options}, {"anyOf": options}]}),
            json!({"oneOf": constants}),
            json!({"type": "array", "minItems": 1_000_000_000}),
            json!({"type": "string", "pattern": "a".repeat(2000)}),
            deep,
        ] {
            assert!(check(&schema, 0.0).is_err(), "{schema}");
        }
    }
}
