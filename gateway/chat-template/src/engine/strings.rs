//! Filters and operators on texts. Where they take a list or a map, its text is bounded by the fuel that is left.

use crate::engine::text::{append, exhausted, remaining};
use crate::syntax::operators::{CONCAT, REPEAT};
use minijinja::value::{Rest, StringInput, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use std::borrow::Cow;

/// Adds them, and removes those of minijinja that jinja2 has not.
pub(crate) fn install(environment: &mut Environment<'static>) {
    for name in ["lines", "split"] {
        environment.remove_filter(name);
    }
    for name in ["endingwith", "startingwith"] {
        environment.remove_test(name);
    }
    environment
        .add_filter("upper", |state: &State, value: Value| Ok(filters::upper(input(state, &flat(state, value)?)?)));
    environment
        .add_filter("lower", |state: &State, value: Value| Ok(filters::lower(input(state, &flat(state, value)?)?)));
    environment.add_filter("capitalize", |state: &State, value: Value| {
        Ok(filters::capitalize(input(state, &flat(state, value)?)?))
    });
    environment.add_filter("title", |state: &State, value: Value| {
        let value = flat(state, value)?;
        Ok(filters::title(Cow::Borrowed(input(state, &value)?.as_str())))
    });
    environment.add_filter("trim", |state: &State, value: Value, chars: Option<String>| {
        Ok(filters::trim(input(state, &flat(state, value)?)?, chars.map(Cow::Owned)))
    });
    environment.add_filter("format", |state: &mut State, format: &Value, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values().into_iter().map(|value| flat(state, value).map(ValueOrKwargs::from));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        filters::format(state, format, Rest(arguments))
    });
    environment.add_filter("replace", replace);
    environment.add_filter("safe", flat);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_function(CONCAT, concat);
    environment.add_function(REPEAT, repeat);
}

fn input<'a>(state: &State, value: &'a Value) -> Result<StringInput<'a>, Error> {
    StringInput::new(state, value)
}

/// Value whose text is bounded: lists and maps become texts.
pub(crate) fn flat(state: &State, value: Value) -> Result<Value, Error> {
    if value.as_object().is_none() || value.is_kwargs() {
        return Ok(value);
    }
    let mut text = String::new();
    append(state, &mut text, &value)?;
    Ok(Value::from(text))
}

fn text(state: &State, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    append(state, &mut text, value)?;
    Ok(text)
}

fn replace(state: &State, value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<Value, Error> {
    let (value, old, new) = (text(state, value)?, text(state, old)?, text(state, new)?);
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = if new.len() > old.len() { value.matches(old.as_str()).count().min(most) } else { 0 };
    if (found as u64).saturating_mul(new.len() as u64).saturating_add(value.len() as u64) > remaining(state) {
        return Err(exhausted(state));
    }
    Ok(Value::from(value.replacen(&old, &new, most)))
}

fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for c in text(state, value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    Ok(Value::from(out))
}

/// Operator `~`.
fn concat(state: &State, operands: Rest<Value>) -> Result<Value, Error> {
    let mut out = String::new();
    for operand in operands.0 {
        append(state, &mut out, &operand)?;
    }
    Ok(Value::from(out))
}

/// Operator `*`: of numbers, or of a text or list and a number.
fn repeat(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if left.is_number() && right.is_number() {
        return product(left, right);
    }
    let (repeated, count) = if left.is_number() { (right, left) } else { (left, right) };
    let unsupported = || {
        let message = format!("tried to use * operator on unsupported types {} and {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    };
    let count = count.as_i64().filter(|_| count.is_integer()).ok_or_else(unsupported)?;
    let count = usize::try_from(count).unwrap_or(0);
    let fits = |size: usize| (size as u64).saturating_mul(count as u64) <= remaining(state);
    match (repeated.as_str(), repeated.kind()) {
        (Some(text), _) if fits(text.len()) => Ok(Value::from(text.repeat(count))),
        (None, ValueKind::Seq) if fits(repeated.len().unwrap_or(0).saturating_mul(32)) => {
            let items: Vec<Value> = repeated.try_iter()?.collect();
            Ok(Value::from(std::iter::repeat_n(items, count).flatten().collect::<Vec<_>>()))
        }
        (Some(_), _) | (None, ValueKind::Seq) => Err(exhausted(state)),
        (None, _) => Err(unsupported()),
    }
}

fn product(left: &Value, right: &Value) -> Result<Value, Error> {
    if left.is_integer() && right.is_integer() {
        let factors = (i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let product = factors.0.checked_mul(factors.1);
        let product = product.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the product is too large"))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    Ok(Value::from(f64::try_from(left.clone())? * f64::try_from(right.clone())?))
}
