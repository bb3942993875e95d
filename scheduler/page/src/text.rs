//! Texts of models and clients, cut to a bounded length. Pure.

/// Longest text of a failure that is sent, in bytes: its end.
const LONGEST_TEXT: usize = 2048;

/// End of a text, which says most of a failure.
pub(crate) fn ending(text: &str) -> String {
    let from = (text.len().saturating_sub(LONGEST_TEXT)..).find(|at| text.is_char_boundary(*at));
    text.get(from.unwrap_or(0)..).unwrap_or(text).to_owned()
}

#[test]
fn a_text_is_cut_at_its_beginning() {
    assert_eq!(ending("short"), "short");
    let long = "ä".repeat(LONGEST_TEXT);
    assert!(ending(&long).len() <= LONGEST_TEXT && long.ends_with(&ending(&long)));
}
