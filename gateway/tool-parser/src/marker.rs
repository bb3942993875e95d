//! Search for markers in a text that is still growing.

/// Most white space before a marker that belongs to the marker, in bytes.
pub(crate) const BLANK_LIMIT: usize = 64;

/// Marks of the end of a turn that engines leave in the text behind calls.
pub(crate) const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|observation|>",
    "<|user|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "[e~[",
];

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hit {
    /// A marker begins here and has this length.
    Found(usize, usize),
    /// The text from here on is the beginning of a marker.
    Begun(usize),
    /// No marker.
    Clear,
}

/// Finds the first marker at `from` or later. `end`: no more text will come.
pub(crate) fn find(text: &str, from: usize, markers: &[&[&str]], end: bool) -> Hit {
    let bytes = text.as_bytes();
    let markers = || markers.iter().flat_map(|list| list.iter().map(|marker| marker.as_bytes()));
    let mut firsts = [0_u64; 4]; // a bit for each byte with which a marker begins
    for first in markers().filter_map(|marker| marker.first()) {
        if let Some(word) = firsts.get_mut(usize::from(first / 64)) {
            *word |= 1 << (first % 64);
        }
    }
    let begins = |byte: u8| firsts.get(usize::from(byte / 64)).is_some_and(|word| word >> (byte % 64) & 1 == 1);
    let mut at = from;
    while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| begins(*byte))) {
        at += offset;
        let rest = bytes.get(at..).unwrap_or_default();
        // A marker that is the beginning of another one waits for it.
        if !end && markers().any(|marker| marker.len() > rest.len() && marker.starts_with(rest)) {
            return Hit::Begun(at);
        }
        if let Some(length) = markers().filter(|marker| rest.starts_with(marker)).map(<[u8]>::len).max() {
            return Hit::Found(at, length);
        }
        at += 1;
    }
    Hit::Clear
}

/// Length of a text without the white space at its end, of which at most [`BLANK_LIMIT`] bytes count.
pub(crate) fn trimmed(text: &str) -> usize {
    text.trim_ascii_end().len().max(text.len().saturating_sub(BLANK_LIMIT))
}
