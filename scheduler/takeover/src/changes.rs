//! Differences between two configurations, as lines of text. Pure.

use serde_json::Value;
use std::collections::BTreeMap;

/// Largest number of lines.
const LINES: usize = 64;
/// Characters of a value that are shown.
const SHOWN: usize = 60;

/// A line for each key that differs between two configurations, in the order of the keys.
pub(super) fn changes(before: &Value, after: &Value) -> Vec<String> {
    let (before, after) = (leaves(before), leaves(after));
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let shown = |value: Option<&&Value>| value.map_or_else(|| "unset".to_owned(), |value| shown(value));
    let mut lines = changed.map(|key| format!("{key} = {}, was {}", shown(after.get(key)), shown(before.get(key))));
    let mut all: Vec<String> = lines.by_ref().take(LINES).collect();
    let more = lines.count();
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all
}

/// All values by their dotted keys. A null value counts as unset.
fn leaves(value: &Value) -> BTreeMap<String, &Value> {
    let mut leaves = BTreeMap::new();
    let mut open = vec![(String::new(), value)];
    while let Some((key, value)) = open.pop() {
        match value {
            Value::Object(members) => open.extend(members.iter().map(|(name, member)| {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                (key, member)
            })),
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                leaves.insert(key, value);
            }
        }
    }
    leaves
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::node::NodeConfig;

    fn config(toml: &str) -> Value {
        serde_json::to_value(NodeConfig::parse(toml).unwrap()).unwrap()
    }

    #[test]
    fn each_differing_key_has_a_line() {
        let plain = config("");
        assert!(changes(&plain, &plain).is_empty());
        let other = config("[server]\nconnections = 7\nbody-handover = [\"a/b\"]\n[node]\nmodels = \"/m\"\n");
        let connections = plain["server"]["connections"].clone();
        assert_eq!(
            changes(&plain, &other),
            [
                "node.models = \"/m\", was unset".to_owned(),
                "server.body-handover = [\"a/b\"], was []".to_owned(),
                format!("server.connections = 7, was {connections}"),
            ]
        );
        assert_eq!(changes(&other, &plain)[0], "node.models = unset, was \"/m\"");
    }

    #[test]
    fn long_values_and_lists_are_truncated() {
        let many: serde_json::Map<String, Value> =
            (0..100).map(|n| (format!("k{n:03}"), "x".repeat(99).into())).collect();
        let lines = changes(&Value::Null, &Value::Object(many));
        assert_eq!((lines.len(), lines[64].as_str()), (65, "and 36 more"));
        assert_eq!(lines[0], format!("k000 = \"{}…, was unset", "x".repeat(59)));
    }
}
