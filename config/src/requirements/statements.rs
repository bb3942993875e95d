//! The statements of a `requirements.txt`, divided as uv divides them.
//!
//! Not line by line: a carriage return alone ends a line, a statement may follow the hashes or the option of another
//! one on the same line, and the value of an option may be on the next line. Measured with uv 0.13.8; tests compare
//! with the program itself.

/// A statement of a `requirements.txt`; comments and line ends are not statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement<'a> {
    /// A requirement, which is installed.
    Requirement(Requirement<'a>),
    /// An option of the whole file, `--index-url` or `-r` for example.
    Option {
        /// The line it begins on, counted from 1.
        line: usize,
        /// As it is written.
        name: &'static str,
        /// The option's value, for those that take one.
        value: Option<&'a str>,
    },
}

/// A requirement, which is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement<'a> {
    /// The line it begins on, counted from 1.
    pub line: usize,
    /// The requirement without hashes and comment.
    pub text: &'a str,
    /// Installation in place (`-e`).
    pub editable: bool,
    /// Values of `--hash`.
    pub hashes: Vec<&'a str>,
}

/// An error at which uv stops reading a `requirements.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The line, counted from 1.
    pub line: usize,
    /// The error's message.
    pub message: String,
}

/// Options with a value.
const VALUES: [&str; 11] = [
    "-r",
    "--requirement",
    "-c",
    "--constraint",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--no-binary",
    "--only-binary",
];
/// Options that uv ignores with the rest of their line.
const IGNORED: [&str; 4] = ["--prefer-binary", "--pre", "--trusted-host", "--use-feature"];

/// The statements up to the first that uv cannot read, which comes last.
pub fn statements(text: &str) -> impl Iterator<Item = Result<Statement<'_>, Unreadable>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { text, at: 0, counted: 0, lines: 1, failed: false };
    std::iter::from_fn(move || reader.next())
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Offset up to which line ends are counted.
    counted: usize,
    lines: usize,
    failed: bool,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Result<Statement<'a>, Unreadable>> {
        if self.failed {
            return None;
        }
        self.wrappable();
        while let Some('\n' | '\r' | '#') = self.peek() {
            if self.peek() == Some('#') {
                self.take_while(|character| !is_line_end(character));
            } else if !self.eat("\r\n") {
                self.eat_char();
            }
            self.wrappable();
        }
        if self.rest().is_empty() {
            return None;
        }
        let statement = self.statement();
        self.failed = statement.is_err();
        Some(statement)
    }

    fn statement(&mut self) -> Result<Statement<'a>, Unreadable> {
        let line = self.line();
        if let Some(option) = ["-e", "--editable"].into_iter().find(|option| self.eat(option)) {
            self.separator(option)?;
            return self.requirement(line, true).map(Statement::Requirement);
        }
        if let Some(name) = VALUES.into_iter().find(|option| self.eat(option)) {
            let value = self.value(name, |character| !is_line_end(character) && character != '#')?;
            return Ok(Statement::Option { line, name, value: Some(value) });
        }
        if self.eat("--require-hashes") {
            return Ok(Statement::Option { line, name: "--require-hashes", value: None });
        }
        if self.eat_word("--no-index") {
            return Ok(Statement::Option { line, name: "--no-index", value: None });
        }
        if let Some(name) = IGNORED.into_iter().find(|option| self.eat_word(option)) {
            self.take_while(|character| !is_line_end(character) && character != '#');
            return Ok(Statement::Option { line, name, value: None });
        }
        match self.peek() {
            Some('.' | '/' | '$') => self.requirement(line, false).map(Statement::Requirement),
            Some(first) if first.is_ascii_alphanumeric() => self.requirement(line, false).map(Statement::Requirement),
            first => {
                let first = first.unwrap_or_default();
                Err(self.wrong(format!(
                    "`{}` begins neither a requirement nor an option that uv knows",
                    first.escape_debug()
                )))
            }
        }
    }

    fn requirement(&mut self, line: usize, editable: bool) -> Result<Requirement<'a>, Unreadable> {
        let begin = self.at;
        let (end, has_hashes) = loop {
            let end = self.at;
            if self.peek().is_none_or(is_line_end) {
                break (end, false);
            }
            if self.wrappable() {
                if self.rest().starts_with("--") {
                    break (end, true);
                }
                if self.peek() == Some('#') {
                    break (end, false);
                }
                continue;
            }
            self.eat_char();
        };
        let mut hashes = Vec::new();
        if has_hashes {
            if !self.rest().starts_with("--hash") {
                let word = self.take_while(|character| !character.is_whitespace());
                return Err(self.wrong(format!("`{word}` behind a requirement, where only `--hash` may stand")));
            }
            while self.eat("--hash") {
                hashes.push(self.value("--hash", |character| !character.is_whitespace())?);
                self.wrappable();
            }
        }
        let text = self.text.get(begin..end).unwrap_or_default();
        Ok(Requirement { line, text, editable, hashes })
    }

    /// The value of an option: behind an equals sign, or behind white space, line ends included.
    fn value(&mut self, option: &str, fits: impl Fn(char) -> bool) -> Result<&'a str, Unreadable> {
        self.separator(option)?;
        let value = self.take_while(fits).trim_end();
        if value.is_empty() { Err(self.wrong(format!("`{option}` lacks its value"))) } else { Ok(value) }
    }

    fn separator(&mut self, option: &str) -> Result<(), Unreadable> {
        if self.eat("=") {
            return Ok(());
        }
        if self.take_while(char::is_whitespace).is_empty() {
            return Err(self.wrong(format!("`{option}` wants its value behind `=` or a space")));
        }
        Ok(())
    }

    /// Skips white space within a line, continuations included; returns true if there was any.
    fn wrappable(&mut self) -> bool {
        let begin = self.at;
        loop {
            self.take_while(|character| matches!(character, ' ' | '\t'));
            if !["\\\n", "\\\r\n", "\\\r"].into_iter().any(|end| self.eat(end)) {
                return self.at > begin;
            }
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat_char(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn eat(&mut self, words: &str) -> bool {
        let is_there = self.rest().starts_with(words);
        self.at += if is_there { words.len() } else { 0 };
        is_there
    }

    /// Consumes an option that is not the prefix of a longer word.
    fn eat_word(&mut self, word: &str) -> bool {
        let behind = self.rest().strip_prefix(word).map(|behind| behind.chars().next());
        let ends = |next: Option<char>| next.is_none_or(|next| next.is_whitespace() || matches!(next, '=' | '#'));
        behind.is_some_and(ends) && self.eat(word)
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|character| !fits(character)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// The line at the reader's position.
    fn line(&mut self) -> usize {
        let passed = self.text.get(self.counted..self.at).unwrap_or_default();
        self.lines += passed.matches(is_line_end).count() - passed.matches("\r\n").count();
        self.counted = self.at;
        self.lines
    }

    fn wrong(&mut self, message: String) -> Unreadable {
        Unreadable { line: self.line(), message }
    }
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements with their lines and numbers of hashes, options by name, and an error by its line.
    fn shown(text: &str) -> Vec<String> {
        let show = |statement: Result<Statement<'_>, Unreadable>| match statement {
            Ok(Statement::Requirement(Requirement { line, text, editable, hashes })) => {
                format!("{line}:{}{text}{}", if editable { "-e " } else { "" }, "#".repeat(hashes.len()))
            }
            Ok(Statement::Option { line, name, value }) => format!("{line}:{name}={}", value.unwrap_or_default()),
            Err(Unreadable { line, message }) => format!("{line}! {message}"),
        };
        statements(text).map(show).collect()
    }

    #[test]
    fn statements_are_divided_as_uv_divides_them() {
        for (text, expected) in [
            ("", &[][..]),
            ("# a\n\n \t# b \\\n", &[]),
            ("\u{feff}a\nb", &["1:a", "2:b"]),
            ("# c\ra", &["2:a"]),
            ("a\r\n\rb\r", &["1:a", "3:b"]),
            ("a #c\nb#c\n", &["1:a", "2:b#c"]),
            ("a==1 --hash=x:0 b==2", &["1:a==1#", "1:b==2"]),
            ("a --hash=x:0 -r more.txt # c\nb", &["1:a#", "1:-r=more.txt", "2:b"]),
            ("a \\\n  --hash x:0 \\\r\n--hash\n\ny:1\nb", &["1:a##", "6:b"]),
            ("a\\\n==1", &["1:a\\\n==1"]),
            ("-r\n\nmore.txt", &["1:-r=more.txt"]),
            ("-i=http://x \\\n b\na", &["1:-i=http://x \\", "2:b", "3:a"]),
            ("--no-index a\n--require-hashesb", &["1:--no-index=", "1:a", "2:--require-hashes=", "2:b"]),
            ("--pre a\n-e ./b --hash=x:0", &["1:--pre=", "2:-e ./b#"]),
            ("$A/b\n../c\n/d", &["1:$A/b", "2:../c", "3:/d"]),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn refused_text_ends_the_statements() {
        for (text, line) in [
            ("--no-cache-dir", 1),
            ("a\n[packages]\nb", 2),
            ("a\r<html>", 2),
            ("a==1 --no-deps", 1),
            ("-rmore.txt", 1),
            ("-r", 1),
            ("-c # nothing", 1),
            ("-e", 1),
            ("--no-indexes", 1),
            ("\u{c}a", 1),
            ("a --hash=", 1),
            ("\\", 1),
            ("a\n\u{feff}b", 2),
        ] {
            let last = statements(text).last().unwrap().unwrap_err();
            assert_eq!(last.line, line, "{text:?}: {}", last.message);
        }
    }
}
