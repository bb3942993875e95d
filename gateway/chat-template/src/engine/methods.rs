//! Methods of Python's texts and containers: those of minijinja-contrib, and those that real templates need beside them.

use crate::engine::strings::flat;
use crate::engine::text::{exhausted, joined, remaining};
use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Most digits of a width in `str.format`.
const MAX_WIDTH_DIGITS: usize = 4;

/// Calls a method that minijinja does not know.
pub(crate) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = of_text(state, text, method, args)
    {
        return result;
    }
    if method == "copy" && matches!(value.kind(), ValueKind::Map | ValueKind::Seq) {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    // Python reads `dict.from_keys(pairs)` as `dict["from_keys"](pairs)`, and that as `dict(pairs)`.
    if method == "from_keys" && value.kind() == ValueKind::Plain {
        return from_pairs(args);
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn from_pairs(args: &[Value]) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    for pair in one(args)?.try_iter()? {
        pairs.push((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?));
    }
    Ok(Value::from_pairs(pairs))
}

fn of_text(state: &State, text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        // In minijinja-contrib, the texts of items are not in the fuel.
        "join" => one(args).and_then(|items| joined(state, items, text, Ok)),
        "format" if has_wide_field(text) => Err(exhausted(state)),
        "format" => {
            args.iter().map(|value| flat(state, value.clone())).collect::<Result<Vec<_>, _>>().and_then(|args| {
                minijinja::formatting::format(minijinja::formatting::FormatStyle::StrFormat, text, &args)
                    .map(Value::from)
            })
        }
        "rsplit" => rsplit(text, args),
        "partition" => two_parts(args, text, |text, separator| text.split_once(separator), false),
        "rpartition" => two_parts(args, text, |text, separator| text.rsplit_once(separator), true),
        "removeprefix" => argument(args).map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => argument(args).map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "index" => index(text, args, text.find(argument(args).unwrap_or(""))),
        "rindex" => index(text, args, text.rfind(argument(args).unwrap_or(""))),
        "swapcase" => from_args(args).map(|()| Value::from(text.chars().map(swapped).collect::<String>())),
        "zfill" => padded(state, text, args, Side::Zeros),
        "ljust" => padded(state, text, args, Side::Left),
        "rjust" => padded(state, text, args, Side::Right),
        "center" => padded(state, text, args, Side::Center),
        _ => return None,
    })
}

fn one(args: &[Value]) -> Result<&Value, Error> {
    from_args::<(&Value,)>(args).map(|(value,)| value)
}

fn argument(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(text,)| text)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = rest.char_indices().rfind(|(_, c)| c.is_whitespace()).filter(|_| parts.len() < most);
                let start = cut.map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(rest.get(start..).unwrap_or(""));
                rest = cut.and_then(|(at, _)| rest.get(..at)).unwrap_or("").trim_end();
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn two_parts(
    args: &[Value],
    text: &str,
    cut: for<'a> fn(&'a str, &str) -> Option<(&'a str, &'a str)>,
    last: bool,
) -> Result<Value, Error> {
    let separator = argument(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let parts = match cut(text, separator) {
        Some((before, after)) => [before, separator, after],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn index(text: &str, args: &[Value], found: Option<usize>) -> Result<Value, Error> {
    argument(args)?;
    let before = found.and_then(|at| text.get(..at));
    before
        .map(|before| Value::from(before.chars().count()))
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))
}

fn swapped(c: char) -> char {
    let mut other = if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    match (other.pop(), other.is_empty()) {
        (Some(single), true) => single,
        _ => c,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Zeros,
    Left,
    Right,
    Center,
}

fn padded(state: &State, text: &str, args: &[Value], side: Side) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    if missing as u64 > remaining(state) / 4 {
        return Err(exhausted(state));
    }
    let fill = if side == Side::Zeros { '0' } else { fill.unwrap_or(' ') };
    let run = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(Value::from(match side {
        Side::Zeros => {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let sign = text.get(..text.len() - digits.len()).unwrap_or("");
            format!("{sign}{}{digits}", run(missing))
        }
        Side::Left => format!("{text}{}", run(missing)),
        Side::Right => format!("{}{text}", run(missing)),
        // As in Python, the odd one goes to the left where the width is odd too.
        Side::Center => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", run(left), run(missing - left))
        }
    }))
}

/// Returns true for a format with a width that is long, or comes from an argument.
fn has_wide_field(format: &str) -> bool {
    let dynamic = format.match_indices('{').any(|(at, _)| {
        let field = format.get(at + 1..).unwrap_or("");
        field.find(['{', '}']).is_some_and(|end| field.get(end..).is_some_and(|rest| rest.starts_with('{')) && end > 0)
    });
    let digits = format.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > MAX_WIDTH_DIGITS);
    dynamic || digits
}
