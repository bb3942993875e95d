//! Sizes of schemas whose definitions multiply, and of what their validation visits.

use super::*;
use serde_json::{Map, json};

/// Definitions that each refer twice to the next.
fn doubled(levels: usize, keyword: &str) -> Value {
    let mut definitions = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        definitions.insert(format!("d{level}"), json!({keyword: [next, next]}));
    }
    definitions.insert(format!("d{levels}"), json!({"type": "string"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

fn values(schema: &Value) -> u64 {
    Cost::new(schema).unwrap().values
}

#[test]
fn values_are_counted_as_often_as_references_lead_to_them() {
    assert_eq!(values(&json!({"type": "object"})), 2);
    assert_eq!(values(&json!({"$defs": {"a": {"type": "string"}, "unused": [1, 2]}, "$ref": "#/$defs/a"})), 3);
    let twice = json!({"$defs": {"a": {"type": "string"}}, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]});
    assert_eq!(values(&twice), 2 + 2 + 4);
    assert!(values(&doubled(12, "anyOf")) > 1 << 12);
}

#[test]
fn doubled_references_are_refused() {
    for keyword in ["anyOf", "allOf", "oneOf"] {
        assert!(Cost::new(&doubled(30, keyword)).unwrap_err().contains("references"), "{keyword}");
    }
    let mut recursive = doubled(30, "anyOf");
    recursive["$defs"]["d30"] = json!({"properties": {"a": {"$ref": "#/$defs/d0"}}});
    assert!(Cost::new(&recursive).is_err());
}

#[test]
fn long_chains_are_counted() {
    let mut definitions = Map::new();
    for level in 0..5000 {
        definitions.insert(format!("d{level}"), json!({"not": {"$ref": format!("#/$defs/d{}", level + 1)}}));
    }
    definitions.insert("d5000".to_owned(), json!({}));
    assert_eq!(values(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})), 10_002);
}

#[test]
fn recursive_references_are_counted_apart() {
    let node = json!({"$defs": {"n": {"anyOf": [{"items": {"$ref": "#/$defs/n"}}, {"not": {"$ref": "#"}}]}}, "$ref": "#/$defs/n"});
    assert_eq!(Cost::new(&node).unwrap().recursions, 2);
    assert_eq!(Cost::new(&json!({"items": {"$dynamicRef": "#n"}, "$dynamicAnchor": "n"})).unwrap().recursions, 1);
}

#[test]
fn names_of_a_part_lead_to_it() {
    let part = json!({"type": "string", "$anchor": "text"});
    let id = "https://example.org/s";
    for reference in ["#/$defs/a~1b", "#/$defs/a%7E1b", "#/%24defs/a~1b", "#text", "https://example.org/s#text"] {
        let schema = json!({"$id": id, "$defs": {"a/b": part}, "$ref": reference});
        assert_eq!(values(&schema), 2 + 3, "{reference}");
    }
    for reference in ["#/$defs/b", "#texts", "other.json", "https://example.org/t#text", "#/%zz", "#/$defs/%"] {
        let schema = json!({"$id": id, "$defs": {"a/b": part}, "$ref": reference});
        assert!(Cost::new(&schema).is_err(), "{reference}");
    }
}

#[test]
fn a_second_document_in_the_schema_is_refused() {
    assert!(Cost::new(&json!({"items": {"$id": "https://example.org/t"}})).is_err());
    assert!(Cost::new(&json!({"properties": {"$id": {"type": "string"}, "id": {}}})).is_ok());
    let old = json!({"$schema": "http://json-schema.org/draft-04/schema#", "items": {"id": "t"}});
    assert!(Cost::new(&old).is_err());
}

#[test]
fn a_name_of_a_keyword_is_a_property() {
    assert_eq!(values(&json!({"properties": {"$ref": {"type": "string"}, "$defs": {"type": "string"}}})), 6);
}
