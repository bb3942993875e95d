//! Recursive descent over the beginning of a text that is still growing.

/// Reason why a rule has not matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The text so far fits; more of it decides.
    Need,
    /// The text does not fit.
    No,
}

/// Result of a rule.
pub(crate) type Parsed<T> = Result<T, Stop>;

/// Longest text that a rule sees: the beginning of a call with its marks, name and id, up to the arguments.
pub(crate) const HEADER_LIMIT: usize = 2048;

/// Most bytes of a name or an id.
const NAME_LIMIT: usize = 256;

/// Position in a text.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// No more text will come, or it is too long for a rule.
    last: bool,
    /// No more text will come.
    end: bool,
}

impl<'a> Cursor<'a> {
    /// `end`: no more text will come. A text that has [`HEADER_LIMIT`] bytes or more needs none: the result does not depend on pieces.
    pub(crate) fn new(text: &'a str, end: bool) -> Self {
        let is_long = text.len() >= HEADER_LIMIT;
        let text = text.get(..text.floor_char_boundary(HEADER_LIMIT)).unwrap_or(text);
        Self { text, at: 0, last: end || is_long, end: end && !is_long }
    }

    /// Bytes behind the position.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Text from the position on.
    pub(crate) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Next byte.
    pub(crate) fn peek(&self) -> Parsed<u8> {
        self.rest().bytes().next().ok_or(self.lack())
    }

    /// True at the end of the whole text; more text may be needed to know.
    pub(crate) fn is_end(&self) -> Parsed<bool> {
        match (self.rest().is_empty(), self.end) {
            (false, _) => Ok(false),
            (true, true) => Ok(true),
            (true, false) => Err(self.lack()),
        }
    }

    pub(crate) fn advance(&mut self, length: usize) {
        self.at += length;
    }

    /// White space.
    pub(crate) fn blank(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
    }

    /// A literal.
    pub(crate) fn literal(&mut self, literal: &str) -> Parsed<()> {
        self.any(&[literal])
    }

    /// Any of several literals.
    pub(crate) fn any(&mut self, literals: &[&str]) -> Parsed<()> {
        let rest = self.rest();
        if let Some(found) = literals.iter().find(|literal| rest.starts_with(**literal)) {
            self.at += found.len();
            return Ok(());
        }
        let begun = literals.iter().any(|literal| literal.starts_with(rest));
        Err(if begun { self.lack() } else { Stop::No })
    }

    /// Any of several literals, or none of them.
    pub(crate) fn optional(&mut self, literals: &[&str]) -> Parsed<bool> {
        match self.any(literals) {
            Ok(()) => Ok(true),
            Err(Stop::No) => Ok(false),
            Err(Stop::Need) => Err(Stop::Need),
        }
    }

    /// Text before a literal, which is passed as well.
    pub(crate) fn until(&mut self, literal: &str) -> Parsed<&'a str> {
        let rest = self.rest();
        match rest.find(literal) {
            Some(length) if length <= NAME_LIMIT => {
                self.at += length + literal.len();
                rest.get(..length).ok_or(Stop::No)
            }
            None if rest.len() < NAME_LIMIT + literal.len() => Err(self.lack()),
            Some(_) | None => Err(Stop::No),
        }
    }

    /// Name of a function: letters, digits and `_ - . : /`.
    pub(crate) fn name(&mut self) -> Parsed<&'a str> {
        let rest = self.rest();
        let is_name = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if length > NAME_LIMIT {
            return Err(Stop::No);
        }
        if length == rest.len() && !self.last {
            return Err(Stop::Need);
        }
        self.at += length;
        rest.get(..length).filter(|name| !name.is_empty()).ok_or(Stop::No)
    }

    /// JSON string, without its escapes.
    pub(crate) fn string(&mut self) -> Parsed<String> {
        let rest = self.rest();
        self.literal("\"")?;
        let mut escaped = false;
        for (at, byte) in rest.bytes().enumerate().skip(1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    let token = rest.get(..=at).unwrap_or_default();
                    self.at += at;
                    return serde_json::from_str(token).map_err(|_| Stop::No);
                }
                _ => {}
            }
        }
        Err(self.lack())
    }

    fn lack(&self) -> Stop {
        if self.last { Stop::No } else { Stop::Need }
    }
}

/// Second rule where the first does not fit.
pub(crate) fn or<T>(first: Parsed<T>, second: impl FnOnce() -> Parsed<T>) -> Parsed<T> {
    match first {
        Err(Stop::No) => second(),
        other => other,
    }
}
