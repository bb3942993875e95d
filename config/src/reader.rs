//! Walks a parsed TOML text section by section and collects every problem on the way.
//!
//! Called by the manifest and the node's configuration. The keys a section was asked for are the keys it knows: a key
//! nobody asked for is reported with the nearest known name, so the list of known keys cannot differ from the code.
//! What always holds: a key with a wrong value yields its default and a [`Problem`], so one pass finds all mistakes,
//! and no value leaves the crate unless the list of problems is empty.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use crate::error::{Problem, Problems};
use crate::kind::{Wrong, found, shown_key};

/// Longest text that is looked at, in bytes: far above any real manifest, far below what would cost memory.
const TEXT_LIMIT: usize = 256 * 1024;

/// Most values in one list.
const LIST_LIMIT: usize = 256;

/// A TOML text and the problems found in it so far.
pub(crate) struct Document<'t> {
    text: &'t str,
    root: DeTable<'t>,
    problems: Vec<Problem>,
}

impl<'t> Document<'t> {
    /// Parses the text; the first place that is not TOML ends it, since what follows is guesswork.
    pub(crate) fn parse(text: &'t str) -> Result<Self, Problems> {
        if text.len() > TEXT_LIMIT {
            return Err(Problem::TooLong { bytes: text.len(), limit: TEXT_LIMIT }.into());
        }
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { text, root: root.into_inner(), problems: Vec::new() }),
            Err(error) => {
                let line = line_at(text, error.span().map_or(0, |span| span.start));
                // Some of the parser's messages span lines; a problem is one line.
                let message = error.message().replace('\n', ", ");
                Err(Problem::Syntax { line, message }.into())
            }
        }
    }

    /// Reads the whole document: `read` asks for keys and sections, and what it did not ask for is reported.
    pub(crate) fn read<T>(&mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let mut root = Section {
            text: self.text,
            path: String::new(),
            table: Some(&self.root),
            known: Vec::new(),
            problems: &mut self.problems,
        };
        let value = read(&mut root);
        root.report_unknown();
        value
    }

    /// Whether nothing wrong was found so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Refuses a value that is well formed by itself.
    pub(crate) fn refuse(&mut self, section: &str, key: &str, reason: String) {
        let start = self.root.get(section).and_then(|table| {
            let span = table.get_ref().as_table()?.get(key)?.span();
            Some(span.start)
        });
        let line = line_at(self.text, start.unwrap_or(0));
        self.problems.push(Problem::Refused { key: format!("{section}.{key}"), line, reason });
    }

    /// The value, if nothing was wrong with the text it was read from.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Problems> {
        Problems::of(self.problems).map_or(Ok(value), Err)
    }
}

/// One table of the document; a table that is not there reads as an empty one.
pub(crate) struct Section<'a> {
    text: &'a str,
    /// What stands before a key of this section in messages: `""` or `"resources."`.
    path: String,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Section<'a> {
    /// The value of a key as `kind` reads it, else its default.
    pub(crate) fn get<T>(
        &mut self,
        key: &'static str,
        kind: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
        default: T,
    ) -> T {
        self.known.push(key);
        let Some(value) = self.table.and_then(|table| table.get(key)) else { return default };
        match kind(value.get_ref()) {
            Ok(read) => read,
            Err(wrong) => {
                self.report_wrong(key, value.span().start, value.get_ref(), wrong);
                default
            }
        }
    }

    /// A list of what `kind` takes; each wrong item is a problem of its own.
    pub(crate) fn list<T>(&mut self, key: &'static str, kind: impl Fn(&DeValue<'_>) -> Result<T, Wrong>) -> Vec<T> {
        self.known.push(key);
        let Some(value) = self.table.and_then(|table| table.get(key)) else {
            return Vec::new();
        };
        let Some(items) = value.get_ref().as_array().filter(|items| items.len() <= LIST_LIMIT) else {
            let wrong = Wrong::expected(format!("a list of at most {LIST_LIMIT} values: [\"…\", \"…\"]"));
            self.report_wrong(key, value.span().start, value.get_ref(), wrong);
            return Vec::new();
        };
        let mut read = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match kind(item.get_ref()) {
                Ok(value) => read.push(value),
                Err(wrong) => {
                    let key = format!("{key}[{index}]");
                    self.report_wrong(&key, item.span().start, item.get_ref(), wrong);
                }
            }
        }
        read
    }

    /// A table below this one.
    pub(crate) fn section<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let table = self.table_of(name);
        let mut section = Section {
            text: self.text,
            path: format!("{}{name}.", self.path),
            table,
            known: Vec::new(),
            problems: &mut *self.problems,
        };
        let value = read(&mut section);
        section.report_unknown();
        value
    }

    /// A table below this one whose keys are the author's: `key` reads a name or says why it is refused.
    pub(crate) fn map<K: Ord, V>(
        &mut self,
        name: &'static str,
        key: impl Fn(&str) -> Result<K, String>,
        kind: impl Fn(&DeValue<'_>) -> Result<V, Wrong>,
    ) -> BTreeMap<K, V> {
        let mut map = BTreeMap::new();
        for (raw, value) in self.table_of(name).into_iter().flatten() {
            let path = format!("{name}.{}", shown_key(raw.get_ref()));
            match (key(raw.get_ref()), kind(value.get_ref())) {
                (Ok(key), Ok(value)) => {
                    map.insert(key, value);
                }
                (Err(reason), _) => {
                    let line = line_at(self.text, raw.span().start);
                    self.problems.push(Problem::Refused { key: format!("{}{path}", self.path), line, reason });
                }
                (Ok(_), Err(wrong)) => self.report_wrong(&path, value.span().start, value.get_ref(), wrong),
            }
        }
        map
    }

    fn table_of(&mut self, name: &'static str) -> Option<&'a DeTable<'a>> {
        self.known.push(name);
        let value = self.table?.get(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let wrong = Wrong::expected(format!("a table `[{}{name}]`", self.path));
            self.report_wrong(name, value.span().start, value.get_ref(), wrong);
        }
        table
    }

    fn report_wrong(&mut self, key: &str, start: usize, value: &DeValue<'_>, wrong: Wrong) {
        self.problems.push(Problem::Value {
            key: format!("{}{key}", self.path),
            line: line_at(self.text, start),
            expected: wrong.expected,
            found: found(value),
            hint: wrong.hint,
        });
    }

    fn report_unknown(&mut self) {
        for key in self.table.into_iter().flat_map(DeTable::keys) {
            let name = key.get_ref().as_ref();
            if !self.known.contains(&name) {
                self.problems.push(Problem::UnknownKey {
                    key: format!("{}{}", self.path, shown_key(name)),
                    line: line_at(self.text, key.span().start),
                    hint: nearest(name, &self.known),
                });
            }
        }
    }
}

/// `did you mean …?` for the known name that a slip of a few letters makes of `name`, else all known names.
fn nearest(name: &str, known: &[&str]) -> String {
    let slip = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1.max(candidate.len() / 3))
        .min();
    match slip {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// The line, counted from 1, of a byte offset.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
