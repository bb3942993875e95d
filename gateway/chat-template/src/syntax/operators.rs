//! Operators that become calls: `a ~ b` joins texts and `a * b` repeats them, and minijinja's own do so without bounds for lists.
//!
//! ```text
//!  x + a ~ b * 2 ~ c   ──▶   x + omni_concat__(a, omni_repeat__(b, 2), c)
//! ```
//!
//! An operand reaches from one operator that binds less to the next: `~` binds more than `+`, and `*` more than `~`.

use crate::syntax::edit::Edit;
use crate::syntax::token::{Kind, Token};

/// Function of `~`.
pub(crate) const CONCAT: &str = "omni_concat__";

/// Function of `*`.
pub(crate) const REPEAT: &str = "omni_repeat__";

/// Keywords that end an operand.
const KEYWORDS: &[&str] = &["and", "elif", "else", "if", "in", "not", "or"];

/// Signs that end an operand, beside `+` and `-` between two values.
const SIGNS: &[&str] = &[",", ":", "=", "==", "!=", "<", ">", "<=", ">="];

/// Operand of the operators that bind less than `~`, at one depth of brackets.
#[derive(Debug, Default)]
struct Segment {
    /// Tokens, without those in brackets inside of it.
    tokens: Vec<usize>,
}

/// Adds the edits of a tag's operators. `block`: the first token is the keyword of a statement.
pub(crate) fn rewrite(found: &[Token<'_>], block: bool, edits: &mut Vec<Edit>) {
    let relevant = |token: &Token<'_>| token.is_sign("~") || token.is_sign("*");
    if !found.iter().any(relevant) {
        return;
    }
    let mut open = vec![Segment::default()];
    for (at, token) in found.iter().enumerate() {
        if (block && at == 0) || ends_operand(found, at, open.last()) {
            flush(found, &mut open, edits);
        } else if token.kind == Kind::Sign && ["(", "[", "{"].contains(&token.text) {
            push(&mut open, at);
            open.push(Segment::default());
        } else if token.kind == Kind::Sign && [")", "]", "}"].contains(&token.text) {
            flush(found, &mut open, edits);
            if open.len() > 1 {
                open.pop();
            }
            push(&mut open, at);
        } else {
            push(&mut open, at);
        }
    }
    while !open.is_empty() {
        flush(found, &mut open, edits);
        open.pop();
    }
}

fn push(open: &mut [Segment], at: usize) {
    if let Some(segment) = open.last_mut() {
        segment.tokens.push(at);
    }
}

fn ends_operand(found: &[Token<'_>], at: usize, segment: Option<&Segment>) -> bool {
    let Some(token) = found.get(at) else { return true };
    let before = |steps: usize| at.checked_sub(steps).and_then(|at| found.get(at));
    match token.kind {
        Kind::Name => {
            // `is in`, `is not` and `is not in` are tests; `a.in` is an attribute.
            let test = before(1).is_some_and(|token| token.is_name("is"))
                || (before(1).is_some_and(|token| token.is_name("not"))
                    && before(2).is_some_and(|token| token.is_name("is")));
            let attribute = before(1).is_some_and(|token| token.is_sign("."));
            KEYWORDS.contains(&token.text) && !test && !attribute
        }
        Kind::Sign if ["+", "-"].contains(&token.text) => {
            let last = segment.and_then(|segment| segment.tokens.last()).and_then(|at| found.get(*at));
            last.is_some_and(|last| last.kind != Kind::Sign || [")", "]", "}"].contains(&last.text))
        }
        Kind::Sign => SIGNS.contains(&token.text),
        Kind::Text | Kind::Number => false,
    }
}

/// Ends the innermost operand.
fn flush(found: &[Token<'_>], open: &mut [Segment], edits: &mut Vec<Edit>) {
    let Some(segment) = open.last_mut().map(std::mem::take) else { return };
    let is = |at: &usize, sign: &str| found.get(*at).is_some_and(|token| token.is_sign(sign));
    let (Some(first), Some(last)) = (segment.tokens.first(), segment.tokens.last()) else { return };
    let mut joined = false;
    for operand in segment.tokens.split(|at| is(at, "~")) {
        repeat(found, operand, edits);
    }
    for at in segment.tokens.iter().filter(|at| is(at, "~")) {
        joined = true;
        edits.extend(found.get(*at).map(|token| Edit::replace(token, ",")));
    }
    if joined && let (Some(first), Some(last)) = (found.get(*first), found.get(*last)) {
        edits.push(Edit::open(first.at, 1, format!("{CONCAT}(")));
        edits.push(Edit::close(last.at + last.text.len(), 0, ")"));
    }
}

/// Edits of `*` in an operand of `~`; `/`, `//` and `%` bind as much, from left to right.
fn repeat(found: &[Token<'_>], operand: &[usize], edits: &mut Vec<Edit>) {
    let is =
        |at: &usize, signs: &[&str]| found.get(*at).is_some_and(|token| signs.iter().any(|sign| token.is_sign(sign)));
    for (place, at) in operand.iter().enumerate() {
        // Without a value before it, `*` unpacks arguments.
        if !is(at, &["*"]) || place == 0 {
            continue;
        }
        let rest = operand.get(place + 1..).unwrap_or(&[]);
        let length = rest.iter().position(|at| is(at, &["*", "/", "//", "%"])).unwrap_or(rest.len());
        let end = length.checked_sub(1).and_then(|last| rest.get(last)).and_then(|at| found.get(*at));
        let first = operand.first().and_then(|at| found.get(*at));
        if let (Some(first), Some(end), Some(star)) = (first, end, found.get(*at)) {
            edits.push(Edit::open(first.at, 2, format!("{REPEAT}(")));
            edits.push(Edit::replace(star, ","));
            edits.push(Edit::close(end.at + end.text.len(), 0, ")"));
        }
    }
}
