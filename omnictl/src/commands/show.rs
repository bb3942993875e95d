//! `omnictl show`: a model's manifest as the node reads it.

use omni_config::{Manifest, ModelName};
use serde_json::{Map, Value};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, note};

pub(super) async fn run(context: &mut Context<'_>, model: &ModelName, effective: bool) -> Result<Exit, Failure> {
    let answer = context.ask(model, "/manifest").await?;
    let manifest = if effective {
        answer.json()?.to_owned()
    } else {
        let default = serde_json::to_value(Manifest::default()).map_err(|error| Failure::Render(error.into()))?;
        let changes = changes(answer.value()?, &default).unwrap_or_else(|| Value::Object(Map::new()));
        changes.to_string()
    };
    match context.format {
        Format::Json => context.out.json(&manifest)?,
        Format::Table => {
            let table: toml::Table = serde_json::from_str(&manifest).map_err(|error| Failure::Render(error.into()))?;
            if table.is_empty() {
                note(format_args!("`{model}` changes nothing: `--effective` shows the values in force"));
            }
            context.out.text(table)?;
        }
    }
    Ok(Exit::Ok)
}

/// The part of a value that differs from `default`; `None` if nothing does.
fn changes(value: Value, default: &Value) -> Option<Value> {
    match (value, default) {
        (Value::Object(members), Value::Object(defaults)) => {
            let changed: Map<String, Value> = members
                .into_iter()
                .filter_map(|(key, value)| {
                    let change = changes(value, defaults.get(&key).unwrap_or(&Value::Null))?;
                    Some((key, change))
                })
                .collect();
            (!changed.is_empty()).then_some(Value::Object(changed))
        }
        (value, default) => (value != *default).then_some(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_the_differences() {
        let default = json!({"schema": 1, "resources": {"memory": "2GiB", "pids": 512}, "env": {}});
        for (value, expected) in [
            (default.clone(), None),
            (
                json!({"schema": 1, "resources": {"memory": "7GiB", "pids": 512}, "env": {"A": "1"}, "new": {"x": []}}),
                Some(json!({"resources": {"memory": "7GiB"}, "env": {"A": "1"}, "new": {"x": []}})),
            ),
        ] {
            assert_eq!(changes(value, &default), expected);
        }
    }
}
