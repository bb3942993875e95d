//! Lexical structure of a template: texts, tags and comments, as far as repairs and searches need it.
//!
//! Errors of syntax are minijinja's to report: an unclosed tag is a tag up to the end.

pub(crate) mod edit;
pub(crate) mod operators;
pub(crate) mod rewrite;
pub(crate) mod survey;
pub(crate) mod token;

/// Piece of a template. Invariant: the pieces in their order are the whole source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    /// Text that is printed as it is; the contents of `{% raw %}` too.
    Text(&'a str),
    /// `{% … %}` or `{{ … }}`.
    Tag(Tag<'a>),
    /// `{# … #}`.
    Comment(&'a str),
}

/// A tag, cut in three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag<'a> {
    /// `{%` or `{{`, with a sign of whitespace control.
    pub(crate) open: &'a str,
    /// Everything between the delimiters.
    pub(crate) inside: &'a str,
    /// `%}` or `}}`, with a sign of whitespace control; empty at the end of a source that does not close it.
    pub(crate) close: &'a str,
}

impl Tag<'_> {
    /// Returns true for a statement, false for an expression that is printed.
    pub(crate) fn is_block(&self) -> bool {
        self.open.starts_with("{%")
    }
}

/// Cuts a source into its pieces.
pub(crate) fn segments(source: &str) -> Vec<Segment<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = next_delimiter(rest) {
        let (text, tail) = rest.split_at(at);
        if !text.is_empty() {
            found.push(Segment::Text(text));
        }
        if tail.starts_with("{#") {
            let end = tail.find("#}").map_or(tail.len(), |at| at + 2);
            let (comment, after) = tail.split_at(end);
            found.push(Segment::Comment(comment));
            rest = after;
            continue;
        }
        let (tag, after) = tag(tail);
        found.push(Segment::Tag(tag));
        rest = after;
        if tag.is_block() && tag.inside.trim() == "raw" {
            let (raw, after) = rest.split_at(raw_end(rest));
            if !raw.is_empty() {
                found.push(Segment::Text(raw));
            }
            rest = after;
        }
    }
    if !rest.is_empty() {
        found.push(Segment::Text(rest));
    }
    found
}

fn next_delimiter(text: &str) -> Option<usize> {
    text.match_indices('{').map(|(at, _)| at).find(|at| {
        let next = text.as_bytes().get(at + 1);
        matches!(next, Some(b'%' | b'{' | b'#'))
    })
}

/// Start of the tag that ends `{% raw %}`.
fn raw_end(text: &str) -> usize {
    let ends = |at: &usize| {
        let inside = text.get(at + 2..).unwrap_or("");
        inside.trim_start_matches(['-', '+']).trim_start().starts_with("endraw")
    };
    text.match_indices("{%").map(|(at, _)| at).find(ends).unwrap_or(text.len())
}

/// Cuts a tag from the start of a text.
fn tag(text: &str) -> (Tag<'_>, &str) {
    let bytes = text.as_bytes();
    let block = text.starts_with("{%");
    let signed = matches!(bytes.get(2), Some(b'-' | b'+'));
    let start = if signed { 3 } else { 2 };
    let (mut at, mut depth) = (start, 0_usize);
    let mut end = None;
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match byte {
            b'"' | b'\'' => at = token::string_end(text, at),
            b'%' if block && next == Some(&b'}') => {
                end = Some(at);
                break;
            }
            b'}' if !block && depth == 0 && next == Some(&b'}') => {
                end = Some(at);
                break;
            }
            b'{' => (depth, at) = (depth + 1, at + 1),
            b'}' => (depth, at) = (depth.saturating_sub(1), at + 1),
            _ => at += 1,
        }
    }
    let Some(end) = end else {
        let (open, inside) = text.split_at(start.min(text.len()));
        return (Tag { open, inside, close: "" }, "");
    };
    let inside_end = if end > start && matches!(bytes.get(end - 1), Some(b'-' | b'+')) { end - 1 } else { end };
    let (head, after) = text.split_at(end + 2);
    let (head, close) = head.split_at(inside_end);
    let (open, inside) = head.split_at(start);
    (Tag { open, inside, close }, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(source: &str) -> Vec<String> {
        let show = |segment: &Segment<'_>| match segment {
            Segment::Text(text) => format!("text {text}"),
            Segment::Tag(tag) => format!("tag {}|{}|{}", tag.open, tag.inside, tag.close),
            Segment::Comment(text) => format!("comment {text}"),
        };
        segments(source).iter().map(show).collect()
    }

    #[test]
    fn a_source_is_cut_at_its_delimiters() {
        let cases: [(&str, &[&str]); 9] = [
            ("a{{ b }}c", &["text a", "tag {{| b |}}", "text c"]),
            ("{%- if a -%}b{%+ endif +%}", &["tag {%-| if a |-%}", "text b", "tag {%+| endif |+%}"]),
            ("{{ '}}' }}", &["tag {{| '}}' |}}"]),
            ("{% set a = \"%}\" %}", &["tag {%| set a = \"%}\" |%}"]),
            ("{{ {'a': {}} }}", &["tag {{| {'a': {}} |}}"]),
            ("{# {{ a }} #}b", &["comment {# {{ a }} #}", "text b"]),
            ("{% raw %}{{ a }}{%- endraw %}", &["tag {%| raw |%}", "text {{ a }}", "tag {%-| endraw |%}"]),
            ("{{ a", &["tag {{| a|"]),
            ("{ a } %}", &["text { a } %}"]),
        ];
        for (source, pieces) in cases {
            assert_eq!(shown(source), pieces, "{source}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_source(source in r#"(\{%-?|-?%\}|\{\{|\}\}|\{#|#\}|raw|endraw|['"\\ a{}é-])*"#) {
            let joined: String = segments(&source)
                .iter()
                .map(|segment| match segment {
                    Segment::Text(text) | Segment::Comment(text) => (*text).to_owned(),
                    Segment::Tag(tag) => [tag.open, tag.inside, tag.close].concat(),
                })
                .collect();
            prop_assert_eq!(joined, source);
        }
    }
}
