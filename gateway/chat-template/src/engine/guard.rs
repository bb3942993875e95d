//! Bound of values that a template stores: their depth, and their size with shared parts counted each time.

use crate::engine::text::{exhausted, remaining};
use minijinja::value::{DynObject, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Deepest value; a schema in a request is less deep.
const MAX_DEPTH: usize = 200;

/// Cost of an item, in bytes.
const ITEM: u64 = 32;

/// Bytes that are visited for one fuel.
const VISITED: u64 = 2048;

/// Returns the value if it is not too deep, and if the rest of the fuel could pay for its text. `attribute`: the value will be
/// an attribute of a namespace, and so must not contain one. Iterators become lists.
pub(crate) fn guard(state: &State, value: Value, attribute: Option<bool>) -> Result<Value, Error> {
    let value = match value.kind() {
        ValueKind::Iterable => collected(state, &value)?,
        ValueKind::Seq | ValueKind::Map => value,
        _ => return Ok(value),
    };
    let attribute = attribute.unwrap_or(false);
    let mut walk = Walk { state, left: remaining(state), visited: 0, attribute, views: false };
    walk.visit(&value, 0)?;
    state.consume_fuel(walk.visited / VISITED)?;
    Ok(if attribute && walk.views { frozen(&value) } else { value })
}

/// Copy without views of objects that may change later.
fn frozen(value: &Value) -> Value {
    let Some(object) = value.as_object() else { return value.clone() };
    match value.kind() {
        ValueKind::Map => {
            let pairs = object.try_iter_pairs().into_iter().flatten();
            Value::from_pairs(pairs.map(|(key, item)| (key, frozen(&item))))
        }
        ValueKind::Seq if value.is_tuple() => value.clone(),
        ValueKind::Seq | ValueKind::Iterable => {
            object.try_iter().into_iter().flatten().map(|item| frozen(&item)).collect()
        }
        _ => value.clone(),
    }
}

fn collected(state: &State, value: &Value) -> Result<Value, Error> {
    let most = remaining(state) / ITEM;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() as u64 >= most {
            return Err(exhausted(state));
        }
        items.push(item);
    }
    Ok(Value::from(items))
}

struct Walk<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    left: u64,
    visited: u64,
    attribute: bool,
    /// The value contains an iterator: perhaps a view of an object that may change later.
    views: bool,
}

impl Walk<'_, '_, '_> {
    fn visit(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let size = ITEM + value.as_str().map_or(0, |text| text.len() as u64);
        self.visited += ITEM;
        self.left = self.left.checked_sub(size).ok_or_else(|| exhausted(self.state))?;
        let Some(object) = value.as_object() else { return Ok(()) };
        if depth > MAX_DEPTH {
            let message = format!("a value is nested more than {MAX_DEPTH} deep");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        if self.attribute && is_live(object) {
            let message = "a namespace or loop cannot be stored in a namespace";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        match value.kind() {
            ValueKind::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.visit(&key, depth + 1)?;
                    self.visit(&item, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.views |= value.kind() == ValueKind::Iterable;
                for item in object.try_iter().into_iter().flatten() {
                    self.visit(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Objects whose contents change after they were stored.
fn is_live(object: &DynObject) -> bool {
    let name = object.type_name();
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}
