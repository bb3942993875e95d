//! Properties of a refusal that is one sentence: it stands on one line, and foreign text does not fill it.

/// Most bytes: a name of a tensor of the greatest length with every character escaped, and our own text.
const LONGEST: usize = 16 << 10;

/// `message`: text of an error.
pub(crate) fn holds(message: &str) {
    assert!(!message.is_empty(), "no reason");
    assert!(message.len() <= LONGEST, "{} bytes: {message}", message.len());
    assert!(!message.contains(char::is_control), "characters that no line has: {message:?}");
}
