//! Upper bounds of the work that a schema costs. The validator follows references that are not recursive each time anew, so
//! thirty definitions that each refer twice to the next are a billion steps; and it gathers the errors of all alternatives
//! of `anyOf` and `oneOf`, through recursive references too. Each bound is known before that work begins.

use serde_json::Value;
use std::collections::HashMap;

/// Most values of a schema, each counted as often as references lead to it.
const MOST_VALUES: u64 = 200_000;
/// Most steps of a validation: values of the schema times values of the answer.
const MOST_STEPS: u64 = 200_000_000;
/// Most steps of the search for the place of a violation, each of which may leave an error in memory.
const MOST_ERRORS: u64 = 1 << 18;
/// Keywords that refer to the outermost resource, or are counted as if they did.
const DYNAMIC: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// Size of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Values, each counted as often as references lead to it; recursive references lead nowhere.
    values: u64,
    /// Recursive references, counted in the same way.
    recursions: u64,
}

/// Size of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extent {
    values: u64,
    depth: u32,
}

impl Cost {
    /// The cost of a schema.
    ///
    /// # Errors
    /// The schema costs too much, or has a reference to another document.
    pub(crate) fn new(schema: &Value) -> Result<Self, String> {
        let cost = Definitions::new(schema)?.cost();
        if cost.values > MOST_VALUES {
            return Err(format!("the schema has more than {MOST_VALUES} values when its references are followed"));
        }
        Ok(cost)
    }

    /// True for answers that can be validated.
    pub(crate) fn allows(self, answer: Extent) -> bool {
        self.values.saturating_mul(answer.values) <= MOST_STEPS
    }

    /// True for answers in which the place of a violation can be searched for.
    pub(crate) fn allows_search(self, answer: Extent) -> bool {
        let again = self.recursions.max(1).saturating_pow(answer.depth);
        self.values.saturating_mul(answer.values).saturating_mul(again) <= MOST_ERRORS
    }

    fn plus(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            recursions: self.recursions.saturating_add(other.recursions),
        }
    }
}

impl Extent {
    pub(crate) fn of(answer: &Value) -> Self {
        let parts: Box<dyn Iterator<Item = &Value>> = match answer {
            Value::Array(parts) => Box::new(parts.iter()),
            Value::Object(parts) => Box::new(parts.values()),
            _ => return Self { values: 1, depth: 0 },
        };
        parts.map(Self::of).fold(Self { values: 1, depth: 1 }, |all, part| Self {
            values: all.values.saturating_add(part.values),
            depth: all.depth.max(part.depth.saturating_add(1)),
        })
    }
}

/// A part of a schema that is referred to, without the parts to which it refers.
#[derive(Debug, Default)]
struct Definition {
    values: u64,
    references: Vec<usize>,
}

/// Parts of a schema by their number: the whole is 0, the others are targets of references.
#[derive(Debug)]
struct Definitions(Vec<Definition>);

impl Definitions {
    fn new(schema: &Value) -> Result<Self, String> {
        let names = Names::new(schema)?;
        let mut parts = vec![schema];
        let mut numbers: HashMap<*const Value, usize> = HashMap::from([(std::ptr::from_ref(schema), 0)]);
        let mut definitions = Vec::new();
        while let Some(part) = parts.get(definitions.len()).copied() {
            let (mut values, mut targets) = (0, Vec::new());
            names.walk(part, definitions.is_empty(), &mut values, &mut targets)?;
            let mut references = Vec::with_capacity(targets.len());
            for target in targets {
                let number = *numbers.entry(std::ptr::from_ref(target)).or_insert_with(|| {
                    parts.push(target);
                    parts.len() - 1
                });
                references.push(number);
            }
            definitions.push(Definition { values, references });
        }
        Ok(Self(definitions))
    }

    /// The cost of the whole, by a walk in depth with its own stack: chains of references are long.
    fn cost(&self) -> Cost {
        let mut costs: Vec<Option<Cost>> = vec![None; self.0.len()];
        let mut open = vec![false; self.0.len()];
        let mut stack = Vec::new();
        let enter = |number: usize, open: &mut Vec<bool>| {
            let values = self.0.get(number).map_or(0, |definition| definition.values);
            if let Some(open) = open.get_mut(number) {
                *open = true;
            }
            (number, 0, Cost { values, recursions: 0 })
        };
        stack.push(enter(0, &mut open));
        while let Some((number, next, cost)) = stack.last_mut() {
            let reference = self.0.get(*number).and_then(|definition| definition.references.get(*next)).copied();
            let Some(target) = reference else {
                let (number, cost) = (*number, *cost);
                if let (Some(open), Some(known)) = (open.get_mut(number), costs.get_mut(number)) {
                    (*open, *known) = (false, Some(cost));
                }
                stack.pop();
                continue;
            };
            if let Some(known) = costs.get(target).copied().flatten() {
                *cost = cost.plus(known);
            } else if open.get(target).copied().unwrap_or(true) {
                *cost = cost.plus(Cost { values: 1, recursions: 1 });
            } else {
                stack.push(enter(target, &mut open));
                continue; // The reference is added when its target is known.
            }
            *next += 1;
        }
        costs.first().copied().flatten().unwrap_or(Cost { values: u64::MAX, recursions: u64::MAX })
    }
}

/// Names by which a schema refers to its parts.
struct Names<'a> {
    schema: &'a Value,
    id: Option<&'a str>,
    anchors: HashMap<&'a str, &'a Value>,
}

impl<'a> Names<'a> {
    fn new(schema: &'a Value) -> Result<Self, String> {
        let text = |key| schema.get(key).and_then(Value::as_str);
        // Draft 4 has `id` for `$id`.
        let old = text("$schema").is_some_and(|draft| draft.contains("draft-04"));
        let id = if old { text("id") } else { text("$id") };
        let mut names = Self { schema, id, anchors: HashMap::new() };
        names.collect(schema, true, old)?;
        Ok(names)
    }

    /// Collects the anchors. References below a second `$id` would have another meaning.
    fn collect(&mut self, part: &'a Value, outermost: bool, old: bool) -> Result<(), String> {
        match part {
            Value::Object(members) => {
                let has = |key| members.get(key).is_some_and(Value::is_string);
                if !outermost && (has("$id") || (old && has("id"))) {
                    return Err("`$id` may be at the top of the schema alone".to_owned());
                }
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(anchor) = members.get(key).and_then(Value::as_str) {
                        self.anchors.insert(anchor, part);
                    }
                }
                members.values().try_for_each(|member| self.collect(member, false, old))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.collect(item, false, old)),
            _ => Ok(()),
        }
    }

    /// Counts the values of a part, and adds the targets of its references. Definitions at the top are counted where they
    /// are referred to.
    fn walk(
        &self,
        part: &'a Value,
        outermost: bool,
        values: &mut u64,
        targets: &mut Vec<&'a Value>,
    ) -> Result<(), String> {
        *values = values.saturating_add(1);
        match part {
            Value::Object(members) => {
                for (key, member) in members {
                    match member.as_str() {
                        Some(reference) if key == "$ref" => targets.push(self.target(reference)?),
                        Some(_) if DYNAMIC.contains(&key.as_str()) => targets.push(self.schema),
                        _ if outermost && (key == "$defs" || key == "definitions") => {}
                        _ => self.walk(member, false, values, targets)?,
                    }
                }
                Ok(())
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.walk(item, false, values, targets)),
            _ => Ok(()),
        }
    }

    fn target(&self, reference: &str) -> Result<&'a Value, String> {
        let unknown = || format!("`$ref` leads to {reference:?}, which is not in the schema");
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if !document.is_empty() && self.id.is_none_or(|id| id.trim_end_matches('#') != document) {
            return Err(unknown());
        }
        let fragment = percent_decoded(fragment).ok_or_else(unknown)?;
        let found = if fragment.is_empty() || fragment.starts_with('/') {
            self.schema.pointer(&fragment)
        } else {
            self.anchors.get(fragment.as_str()).copied()
        };
        found.ok_or_else(unknown)
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        };
        decoded.push(byte);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
