//! Rust's grammar as far as it tells code from comments and literals: no rule is misled by a word in a text.

/// The source with comments and the contents of literals as spaces; lines stay where they are.
pub(crate) fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    scan(source, |piece, is_code| {
        if is_code {
            out.push_str(piece);
        } else {
            out.extend(piece.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
    });
    out
}

/// Line comments that begin their line, each run of one kind (`//`, `///`, `//!`) as one: line of the first, and text.
pub(crate) fn comments(source: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    // Kind of the run that is open, and its last line.
    let mut open = ("", 0);
    let (mut line, mut at_start) = (1, true);
    scan(source, |piece, is_code| {
        if !is_code && at_start && piece.starts_with("//") {
            let kind = ["//!", "///", "//"].into_iter().find(|kind| piece.starts_with(kind)).unwrap_or("//");
            let text = piece[kind.len()..].trim();
            match blocks.last_mut() {
                Some((_, block)) if open == (kind, line - 1) => *block = format!("{block}\n{text}"),
                _ => blocks.push((line, text.to_owned())),
            }
            open = (kind, line);
        }
        line += piece.matches('\n').count();
        at_start = if piece.contains('\n') { piece.trim().is_empty() } else { at_start && piece.trim().is_empty() };
    });
    blocks
}

/// Cuts the source into characters of code on the one hand, comments and literals on the other.
fn scan(source: &str, mut each: impl FnMut(&str, bool)) {
    let mut rest = source;
    let mut before_is_word = false;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if first == '"' {
            string(rest)
        } else if !before_is_word && let Some(length) = raw_string(rest) {
            length
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        let (piece, after) = rest.split_at(if length == 0 { first.len_utf8() } else { length });
        each(piece, length == 0);
        before_is_word = length == 0 && (first.is_alphanumeric() || first == '_');
        rest = after;
    }
}

/// Lines of `source`, from 1, where `word` stands in the code as a word of its own (it may contain `::`).
pub(crate) fn lines_with(source: &str, word: &str) -> Vec<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // Only an end that is a letter can run on into a longer word.
    let (open_start, open_end) = (!word.starts_with(is_word), !word.ends_with(is_word));
    let alone = |line: &str, at: usize| {
        let after = &line[at + word.len()..];
        (open_start || !line[..at].ends_with(is_word)) && (open_end || !after.starts_with(is_word))
    };
    let has = |line: &str| line.match_indices(word).any(|(at, _)| alone(line, at));
    code(source).lines().enumerate().filter(|(_, line)| has(line)).map(|(index, _)| index + 1).collect()
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// `r"..."`, `r#"..."#`, and the same with a `b` or `c` before.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let head = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| head + at + end.len()))
}

/// A character literal; 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = at + escaped.len_utf8();
            text[after..].find('\'').map_or(0, |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[test]
fn comments_and_literals_are_blank() {
    let table = [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("x // y", z)"#, "f(        , z)"),
        (r#"f("\"", 'z')"#, "f(    ,    )"),
        (r###"f(r#"a "b" c"#, x)"###, "f(            , x)"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        (r"f('\'', '\u{41}', b'x')", "f(    ,         , b   )"),
        ("bar\"x\"", "bar   "),
        ("x \"ü\n//\" y", "x   \n    y"),
    ];
    for (source, expected) in table {
        assert_eq!(code(source), expected, "{source}");
    }
}

#[test]
fn words_are_whole_and_in_code() {
    let source = "use nix::mount::mount;\n// nix::mount\nlet remount = \"nix::mount\";\nnix::mounts();\n";
    assert_eq!(lines_with(source, "nix::mount"), [1]);
    assert_eq!(lines_with(source, "mount"), [1]);
}

#[test]
fn comments_are_joined_by_kind() {
    let source = "//! A\n//! b\n\n// C\n/// D\nx // no\n    // E\n    // f\n\"\n// no\";\n";
    let expected = [(1, "A\nb"), (4, "C"), (5, "D"), (7, "E\nf")].map(|(line, text)| (line, text.to_owned()));
    assert_eq!(comments(source), expected);
}
