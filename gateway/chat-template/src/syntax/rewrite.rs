//! Repairs of a template's source, before minijinja compiles it. Lines keep their numbers.
//!
//! | in the source | becomes | reason |
//! | --- | --- | --- |
//! | CRLF, CR | LF | jinja2 normalises line ends |
//! | `{% generation %}`, `{% endgeneration %}` | `{% if true %}`, `{% endif %}` | marks of training, nothing to a render |
//! | `{% raw %}` | `{% raw +%}` | jinja2 keeps the newline behind it |
//! | `a ~ b`, `a * b` | calls of [`operators`] | their texts and lists are bounded |
//! | values that are stored | passed through [`GUARD`] | a value that contains itself, or doubles with each turn of a loop, is endless for `~` and `==`, which take no fuel for what is nested |

use crate::syntax::edit::{Edit, edited};
use crate::syntax::token::{Kind, Token, tokens};
use crate::syntax::{Segment, Tag, operators, segments};
use std::borrow::Cow;

/// Function that bounds a value before a template stores it.
pub(crate) const GUARD: &str = "omni_guard__";

/// Most brackets and filters in one tag: they nest values, and values are dropped and printed recursively.
const MAX_NESTING: usize = 1000;

/// Template that is not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsupported {
    /// Reason.
    pub(crate) message: String,
    /// Line of the tag.
    pub(crate) line: usize,
}

/// Repairs a source.
pub(crate) fn rewrite(source: &str) -> Result<String, Unsupported> {
    let source = unix_lines(source);
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut line = 1;
    for segment in segments(&source) {
        match segment {
            Segment::Text(text) | Segment::Comment(text) => {
                line += newlines(text);
                out.push_str(text);
            }
            Segment::Tag(tag) => {
                rewrite_tag(&tag, &mut out).map_err(|message| Unsupported { message, line })?;
                line += newlines(tag.inside);
            }
        }
    }
    Ok(out)
}

/// Line ends as jinja2 reads them.
pub(crate) fn unix_lines(source: &str) -> Cow<'_, str> {
    if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

fn rewrite_tag(tag: &Tag<'_>, out: &mut String) -> Result<(), String> {
    let found = tokens(tag.inside);
    let reserved = |token: &&Token<'_>| token.text.starts_with("omni_") && token.text.ends_with("__");
    if let Some(token) = found.iter().find(reserved) {
        return Err(format!("`{}` is reserved", token.text));
    }
    // minijinja divides by the number of arguments.
    let without = |at: &[Token<'_>]| matches!(at, [name, open, next] if name.is_name("cycle") && open.is_sign("(") && (next.is_sign(")") || next.is_sign("*")));
    if found.windows(3).any(without) {
        return Err("`cycle` needs an argument".to_owned());
    }
    let nests = |token: &&Token<'_>| ["(", "[", "{", "|"].iter().any(|sign| token.is_sign(sign));
    if found.iter().filter(nests).count() > MAX_NESTING {
        return Err(format!("a tag has more than {MAX_NESTING} brackets and filters"));
    }
    let mut edits = Vec::new();
    let mut parameters = Vec::new();
    let keyword = found.first().filter(|token| tag.is_block() && token.kind == Kind::Name).map(|token| token.text);
    let renamed = match keyword {
        Some("raw") if found.len() == 1 && tag.close == "%}" => {
            out.push_str(tag.open);
            out.push_str(tag.inside);
            out.push_str("+%}");
            return Ok(());
        }
        Some("generation") if found.len() == 1 => Some("if true"),
        Some("endgeneration") if found.len() == 1 => Some("endif"),
        Some("set") => {
            guard_set(&found, tag.inside, &mut edits);
            None
        }
        Some("for") => {
            guard_for(&found, tag.inside, &mut edits);
            None
        }
        Some("macro") => {
            parameters = macro_parameters(&found);
            None
        }
        _ => None,
    };
    guard_recursion(&found, &mut edits);
    operators::rewrite(&found, tag.is_block(), &mut edits);
    out.push_str(tag.open);
    match (renamed, keyword) {
        (Some(new), Some(old)) => out.push_str(&tag.inside.replacen(old, new, 1)),
        _ => out.push_str(&edited(tag.inside, edits)),
    }
    if parameters.is_empty() {
        out.push_str(tag.close);
        return Ok(());
    }
    // The whitespace control of the macro's tag goes over to the last tag behind it.
    out.push_str("%}");
    for (at, name) in parameters.iter().enumerate() {
        let close = if at + 1 == parameters.len() { tag.close } else { "%}" };
        out.push_str(&format!("{{% set {name} = {GUARD}({name}) {close}"));
    }
    Ok(())
}

/// Guards the value of `set a = …`; that of `set a.b = …` always, as it lives through a loop.
fn guard_set(found: &[Token<'_>], inside: &str, edits: &mut Vec<Edit>) {
    let Some(at) = position_outside_brackets(found, |token| token.is_sign("=")) else { return };
    let (target, value) = found.split_at(at);
    let value = value.get(1..).unwrap_or(&[]);
    let attribute = target.iter().any(|token| token.is_sign("."));
    let plain = |token: &Token<'_>| {
        matches!(token.kind, Kind::Text | Kind::Number)
            || ["true", "false", "none"].contains(&&*token.text.to_lowercase())
    };
    let scalar = matches!(value, [only] if plain(only));
    if (attribute && !scalar) || grows(value) {
        guard_range(value, inside.len(), attribute, edits);
    }
}

/// Guards the list of `for a in …`.
fn guard_for(found: &[Token<'_>], inside: &str, edits: &mut Vec<Edit>) {
    let Some(at) = position_outside_brackets(found, |token| token.is_name("in")) else { return };
    let list = found.get(at + 1..).unwrap_or(&[]);
    let end = position_outside_brackets(list, |token| token.is_name("if") || token.is_name("recursive"));
    let end_at = end.and_then(|end| list.get(end)).map_or(inside.len(), |token| token.at);
    let list = list.get(..end.unwrap_or(list.len())).unwrap_or(&[]);
    if grows(list) {
        guard_range(list, end_at, false, edits);
    }
}

/// Guards the argument of `loop(…)`, the recursion of a loop.
fn guard_recursion(found: &[Token<'_>], edits: &mut Vec<Edit>) {
    for (at, pair) in found.windows(2).enumerate() {
        let [name, open] = pair else { continue };
        let method = at.checked_sub(1).and_then(|before| found.get(before)).is_some_and(|before| before.is_sign("."));
        if !name.is_name("loop") || !open.is_sign("(") || method {
            continue;
        }
        let argument = found.get(at + 2..).unwrap_or(&[]);
        if let Some(close) = closing(argument) {
            edits.push(Edit::open(open.at + 1, 0, format!("{GUARD}(")));
            edits.push(Edit::close(close, 1, ")"));
        }
    }
}

/// Offset of the bracket that closes the one before these tokens.
fn closing(found: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_usize;
    for token in found {
        match token.text {
            "(" | "[" | "{" if token.kind == Kind::Sign => depth += 1,
            ")" | "]" | "}" if token.kind == Kind::Sign && depth == 0 => return Some(token.at),
            ")" | "]" | "}" if token.kind == Kind::Sign => depth -= 1,
            _ => {}
        }
    }
    None
}

fn macro_parameters<'a>(found: &[Token<'a>]) -> Vec<&'a str> {
    let mut depth = 0_usize;
    let mut names = Vec::new();
    for pair in found.windows(2) {
        let [before, token] = pair else { continue };
        match before.text {
            "(" | "[" | "{" if before.kind == Kind::Sign => depth += 1,
            ")" | "]" | "}" if before.kind == Kind::Sign => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 1 && token.kind == Kind::Name && (before.is_sign("(") || before.is_sign(",")) {
            names.push(token.text);
        }
    }
    names
}

fn guard_range(value: &[Token<'_>], end: usize, attribute: bool, edits: &mut Vec<Edit>) {
    if let Some(first) = value.first() {
        edits.push(Edit::open(first.at, 0, format!("{GUARD}((")));
        edits.push(Edit::close(end, 1, if attribute { "), true)" } else { "))" }));
    }
}

/// Returns true for an expression that can be larger than the values in it.
fn grows(value: &[Token<'_>]) -> bool {
    let literal = |at: usize, token: &Token<'_>| {
        let before = at.checked_sub(1).and_then(|before| value.get(before));
        let subscript = before.is_some_and(|before| before.kind == Kind::Name || ["]", ")"].contains(&before.text));
        token.is_sign("[") && !subscript
    };
    value
        .iter()
        .enumerate()
        .any(|(at, token)| literal(at, token) || ["{", "(", "+", "*", ","].iter().any(|sign| token.is_sign(sign)))
}

fn position_outside_brackets(found: &[Token<'_>], wanted: impl Fn(&Token<'_>) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    found.iter().position(|token| {
        match token.text {
            "(" | "[" | "{" if token.kind == Kind::Sign => depth += 1,
            ")" | "]" | "}" if token.kind == Kind::Sign => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && wanted(token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_repaired() {
        let cases = [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{%- generation -%}a{% endgeneration %}", "{%- if true -%}a{% endif %}"),
            ("{% raw %}\n{{ a }}{% endraw %}", "{% raw +%}\n{{ a }}{% endraw %}"),
            ("{%- raw -%} a{% endraw %}", "{%- raw -%} a{% endraw %}"),
            ("{% set a = b %}", "{% set a = b %}"),
            ("{% set a = b['c'][1:] %}", "{% set a = b['c'][1:] %}"),
            ("{% set a = [b] %}", "{% set a = omni_guard__(([b] ))%}"),
            ("{% set a.b = c %}", "{% set a.b = omni_guard__((c ), true)%}"),
            ("{% set a.b = 'c' %}", "{% set a.b = 'c' %}"),
            ("{% set a = b, c %}", "{% set a = omni_guard__((b, c ))%}"),
            ("{% set a %}x{% endset %}", "{% set a %}x{% endset %}"),
            ("{% for a in b %}", "{% for a in b %}"),
            ("{% for a in b + c if a %}", "{% for a in omni_guard__((b + c ))if a %}"),
            ("{% for a in [b] recursive %}", "{% for a in omni_guard__(([b] ))recursive %}"),
            ("{{ loop([a]) }}", "{{ loop(omni_guard__([a])) }}"),
            (
                "{% macro f(a, b=[1, c]) -%}\nx",
                "{% macro f(a, b=[1, c]) %}{% set a = omni_guard__(a) %}{% set b = omni_guard__(b) -%}\nx",
            ),
            ("{% macro f() %}", "{% macro f() %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn reserved_names_and_deep_tags_are_refused() {
        let reserved = rewrite("a\n{% set omni_guard__ = 1 %}").unwrap_err();
        assert_eq!(reserved.line, 2);
        let deep = format!("{{{{ {}a{} }}}}", "(".repeat(1001), ")".repeat(1001));
        assert!(rewrite(&deep).is_err());
        assert!(
            rewrite("{{ loop.cycle( ) }}").is_err()
                && rewrite("{{ loop.cycle(*[]) }}").is_err()
                && rewrite("{{ loop.cycle('a') }}").is_ok()
        );
    }

    #[test]
    fn operators_become_calls() {
        let cases = [
            ("a ~ b", "omni_concat__(a , b)"),
            ("a~b~c", "omni_concat__(a,b,c)"),
            ("x + a ~ b - y", "x + omni_concat__(a , b) - y"),
            ("'a' * 3", "omni_repeat__('a' , 3)"),
            ("a ~ b * 2 ~ c", "omni_concat__(a , omni_repeat__(b , 2) , c)"),
            ("a * b / c * d", "omni_repeat__(omni_repeat__(a , b) / c , d)"),
            ("a / b * c", "omni_repeat__(a / b , c)"),
            ("-a ~ -b", "omni_concat__(-a , -b)"),
            ("a - -b * c", "a - omni_repeat__(-b , c)"),
            ("(a ~ b)|upper ~ c.d[e ~ f]", "omni_concat__((omni_concat__(a , b))|upper , c.d[omni_concat__(e , f)])"),
            ("f(a ~ b, c=d ~ e)", "f(omni_concat__(a , b), c=omni_concat__(d , e))"),
            ("{'a': b ~ c}", "{'a': omni_concat__(b , c)}"),
            ("a if b ~ c == d else e ~ f", "a if omni_concat__(b , c) == d else omni_concat__(e , f)"),
            ("a ~ b is not none and c", "omni_concat__(a , b is not none) and c"),
            ("not a ~ b in c", "not omni_concat__(a , b) in c"),
            ("f(*a, **b)", "f(*a, **b)"),
            ("2 ** 3", "2 ** 3"),
            ("'a ~ b'", "'a ~ b'"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(&format!("{{{{ {source} }}}}")), Ok(format!("{{{{ {expected} }}}}")), "{source}");
        }
    }

    #[test]
    fn operators_in_statements_become_calls() {
        let cases = [
            ("{% if a ~ b %}", "{% if omni_concat__(a , b) %}"),
            ("{%- set a = b ~ c -%}", "{%- set a = omni_concat__(b , c) -%}"),
            ("{%- set a.b = c ~ d-%}", "{%- set a.b = omni_guard__((omni_concat__(c , d)), true)-%}"),
            ("{% for a in b ~ c %}", "{% for a in omni_concat__(b , c) %}"),
            ("{% for a in [b] * 2 if a %}", "{% for a in omni_guard__((omni_repeat__([b] , 2) ))if a %}"),
            ("{{ loop(a * 2) }}", "{{ loop(omni_guard__(omni_repeat__(a , 2))) }}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source).as_deref(), Ok(expected), "{source}");
        }
    }
}
