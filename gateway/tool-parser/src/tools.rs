//! Tools in the form that the parsers need: names, and the types of their parameters.

use omni_generation::Tool;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most references that are followed from one schema.
const REFERENCES: usize = 8;
/// Bytes that an entry of a map takes beside its name.
const ENTRY: usize = 64;

/// Tools that are offered in a request, compiled once for all its choices.
#[derive(Debug, Default)]
pub struct CompiledTools(BTreeMap<String, BTreeMap<String, Types>>);

/// Types of JSON that a parameter may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const NULL: Self = Self(1);
    pub(crate) const BOOLEAN: Self = Self(2);
    pub(crate) const INTEGER: Self = Self(4);
    pub(crate) const NUMBER: Self = Self(8);
    pub(crate) const STRING: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    /// Every type: a schema without restrictions.
    pub(crate) const ANY: Self = Self(127);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

impl CompiledTools {
    /// Compiles tools. Schemas that cannot be read leave their parameters without types: those stay strings.
    #[must_use]
    pub fn new(tools: &[Tool]) -> Self {
        Self(tools.iter().map(|tool| (tool.name.clone(), parameters(tool))).collect())
    }

    /// Returns true if no tool is offered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of memory that they take, roughly.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let each = |name: &String| (ENTRY + name.len()) as u64;
        let of = |(name, parameters): (&String, &BTreeMap<String, Types>)| {
            each(name) + parameters.keys().map(each).sum::<u64>()
        };
        self.0.iter().map(of).sum()
    }

    pub(crate) fn offers(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Types of a parameter; a string if the tool does not declare it.
    pub(crate) fn types(&self, tool: &str, parameter: &str) -> Types {
        self.0.get(tool).and_then(|parameters| parameters.get(parameter)).copied().unwrap_or(Types::STRING)
    }
}

fn parameters(tool: &Tool) -> BTreeMap<String, Types> {
    let schema = tool.parameters.as_ref().and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
    let Some(root) = schema else { return BTreeMap::new() };
    let properties = root.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties.map(|(name, schema)| (name.clone(), types(schema, &root, REFERENCES))).collect()
}

/// Types that a schema allows. Unions count together; an intersection allows what its first restriction allows.
fn types(schema: &Value, root: &Value, left: usize) -> Types {
    let Some(next) = left.checked_sub(1) else { return Types::ANY };
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map_or(Types::ANY, |target| types(target, root, next));
    }
    let union = |found: &mut dyn Iterator<Item = Types>| found.fold(Types::default(), Types::with);
    let named = |value: &Value| value.as_str().and_then(Types::of_name).unwrap_or_default();
    let own = match schema.get("type") {
        Some(Value::Array(names)) => union(&mut names.iter().map(named)),
        Some(name) => named(name),
        None => Types::default(),
    };
    let nullable = schema.get("nullable").and_then(Value::as_bool) == Some(true);
    let own = if nullable && own != Types::default() { own.with(Types::NULL) } else { own };
    let parts = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    let found = [
        own,
        union(&mut parts("anyOf").chain(parts("oneOf")).map(|part| types(part, root, next))),
        union(&mut parts("enum").chain(schema.get("const")).map(Types::of_value)),
        parts("allOf").map(|part| types(part, root, next)).find(|types| *types != Types::ANY).unwrap_or_default(),
    ];
    found.into_iter().find(|types| *types != Types::default()).unwrap_or(Types::ANY)
}
