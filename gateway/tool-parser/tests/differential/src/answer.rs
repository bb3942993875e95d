//! Answers, and the classes of differences between two of them.

use serde_json::Value;

/// Parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
}

/// Class of a difference: what another parser makes of a text, compared with ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// An error or a panic instead of an answer.
    Error,
    /// Reasoning has other text.
    Reasoning,
    /// Calls of ours are missing.
    CallsLost,
    /// Calls that ours has not.
    CallsMore,
    /// Another function.
    Name,
    /// Arguments that are no JSON, where ours are.
    NoJson,
    /// JSON where the model's own text is none.
    Completed,
    /// Both are no JSON, and differ.
    Open,
    /// Parameters are missing.
    ParametersLost,
    /// Parameters that ours has not.
    ParametersMore,
    /// A value has another type.
    Types,
    /// A text is the beginning of ours.
    ValueCut,
    /// White space in values.
    ValueSpace,
    /// Another value.
    Value,
    /// Marks in the content.
    MarksMore,
    /// Content is missing.
    ContentLost,
    /// Content that ours has not.
    ContentMore,
    /// White space around the parts.
    Space,
}

/// First difference between our answer and another one.
pub(crate) fn difference(ours: &Answer, theirs: &Answer) -> Option<Class> {
    let texts = [(&ours.reasoning, &theirs.reasoning), (&ours.content, &theirs.content)];
    if squeezed(&ours.reasoning) != squeezed(&theirs.reasoning) {
        return Some(Class::Reasoning);
    }
    match ours.calls.len().cmp(&theirs.calls.len()) {
        std::cmp::Ordering::Greater => return Some(Class::CallsLost),
        std::cmp::Ordering::Less => return Some(Class::CallsMore),
        std::cmp::Ordering::Equal => {}
    }
    let call = |((ours, a), (theirs, b)): (&(String, String), &(String, String))| {
        if ours == theirs { arguments(a, b) } else { Some(Class::Name) }
    };
    if let Some(class) = ours.calls.iter().zip(&theirs.calls).find_map(call) {
        return Some(class);
    }
    let (our_text, their_text) = (squeezed(&ours.content), squeezed(&theirs.content));
    if our_text != their_text {
        let marks = |text: &str| text.matches(['<', '[', '{', '>']).count();
        return Some(match () {
            () if marks(&their_text) > marks(&our_text) => Class::MarksMore,
            () if their_text.len() < our_text.len() => Class::ContentLost,
            () => Class::ContentMore,
        });
    }
    texts.iter().any(|(ours, theirs)| ours.trim() != theirs.trim()).then_some(Class::Space)
}

/// Returns true if the calls of an answer are the first of another one's: the last is whole, is open, or, in markup, has
/// the first of its parameters (the end of the text stands for the end of the call, vllm#22885).
pub(crate) fn has_first_calls(part: &Answer, whole: &Answer, markup: bool) -> bool {
    let begins = |part: &str, whole: &str| squeezed(whole).starts_with(&squeezed(part));
    let json = |text: &str| serde_json::from_str::<Value>(text);
    let Some(((last, text), calls)) = part.calls.split_last() else { return true };
    let Some((name, wanted)) = whole.calls.get(calls.len()) else { return false };
    let is_part = match (json(text), json(wanted)) {
        (Err(error), _) => error.is_eof(),
        (Ok(Value::Object(some)), Ok(Value::Object(all))) if markup && !some.is_empty() => {
            some.iter().all(|(key, value)| all.get(key).is_some_and(|wanted| values(wanted, value).is_none()))
        }
        (Ok(some), Ok(all)) => values(&all, &some).is_none(),
        (Ok(_), Err(_)) => false,
    };
    let is_same = |((name, part), (wanted, all)): (&(String, String), &(String, String))| {
        name == wanted && arguments(all, part).is_none()
    };
    name == last && is_part && begins(&part.reasoning, &whole.reasoning) && calls.iter().zip(&whole.calls).all(is_same)
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

fn arguments(ours: &str, theirs: &str) -> Option<Class> {
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (json(ours), json(theirs)) {
        (Some(ours), Some(theirs)) => values(&ours, &theirs),
        (Some(_), None) => Some(Class::NoJson),
        (None, Some(_)) => Some(Class::Completed),
        (None, None) => (ours != theirs).then_some(Class::Open),
    }
}

fn values(ours: &Value, theirs: &Value) -> Option<Class> {
    match (ours, theirs) {
        _ if ours == theirs => None,
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => {
            (ours.as_u64() != theirs.as_u64() && ours.is_u64() && theirs.is_u64()).then_some(Class::Value)
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            if ours.keys().any(|key| !theirs.contains_key(key)) {
                return Some(Class::ParametersLost);
            }
            if theirs.len() > ours.len() {
                return Some(Class::ParametersMore);
            }
            ours.iter().find_map(|(key, value)| values(value, &theirs[key]))
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            ours.iter().zip(theirs).find_map(|(ours, theirs)| values(ours, theirs))
        }
        (Value::String(ours), Value::String(theirs)) => Some(match () {
            () if squeezed(ours) == squeezed(theirs) => Class::ValueSpace,
            () if squeezed(ours).starts_with(&squeezed(theirs)) => Class::ValueCut,
            () => Class::Value,
        }),
        (ours, theirs) if std::mem::discriminant(ours) == std::mem::discriminant(theirs) => Some(Class::Value),
        _ => Some(Class::Types),
    }
}
