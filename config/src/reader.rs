//! Walks a parsed TOML text section by section and collects every problem on the way.
//!
//! Called by the manifest and the node's configuration. The keys that a section is asked for are the keys it knows: any
//! other key is reported with the nearest known name, and no separate list of keys can differ from the code.
//!
//! Invariants: a key with a wrong value yields its default and a [`Problem`], one pass finds all mistakes, and no value
//! leaves the crate unless the list of problems is empty.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use crate::error::{Problem, Problems};
use crate::kind::{Mismatch, found, shown_key};

/// Longest accepted text, in bytes: far above any real manifest, far below what would cost memory.
const TEXT_LIMIT: usize = 256 * 1024;

/// Most values in one list.
const LIST_LIMIT: usize = 256;

/// A TOML text and the problems found in it so far.
pub(crate) struct Document<'t> {
    lines: Lines,
    root: DeTable<'t>,
    problems: Vec<Problem>,
}

impl<'t> Document<'t> {
    /// Parses the text and stops at the first syntax error: anything after it is guesswork.
    pub(crate) fn parse(text: &'t str) -> Result<Self, Problems> {
        if text.len() > TEXT_LIMIT {
            return Err(Problem::TooLong { bytes: text.len(), limit: TEXT_LIMIT }.into());
        }
        let lines = Lines::of(text);
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { lines, root: root.into_inner(), problems: Vec::new() }),
            Err(error) => {
                let line = lines.at(error.span().map_or(0, |span| span.start));
                // Some of the parser's messages span lines; a problem is one line.
                let message = error.message().replace('\n', ", ").replace(char::is_control, " ");
                Err(Problem::Syntax { line, message }.into())
            }
        }
    }

    /// Reads the whole document: `read` asks for keys and sections, and all others are reported.
    pub(crate) fn read<T>(&mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let mut root = Section {
            lines: &self.lines,
            path: String::new(),
            line: 1,
            table: Some(&self.root),
            known: Vec::new(),
            problems: &mut self.problems,
        };
        let value = read(&mut root);
        root.report_unknown();
        value
    }

    /// Returns true while no problem was found.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Refuses a value that is well formed by itself.
    pub(crate) fn refuse(&mut self, section: &str, key: &str, reason: String) {
        let start = self.root.get(section).and_then(|table| {
            let span = table.get_ref().as_table()?.get(key)?.span();
            Some(span.start)
        });
        let line = self.lines.at(start.unwrap_or(0));
        self.problems.push(Problem::Refused { key: format!("{section}.{key}"), line, reason });
    }

    /// The value, if nothing was wrong with the text it was read from.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Problems> {
        Problems::collect(self.problems).map_or(Ok(value), Err)
    }
}

/// A table of the document; a missing table reads as an empty one.
pub(crate) struct Section<'a> {
    lines: &'a Lines,
    /// Prefix of this section's keys in messages: `""` or `"resources."`.
    path: String,
    /// Where it begins.
    line: usize,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Section<'a> {
    /// The value of a key as `kind` reads it, else its default.
    pub(crate) fn get<T>(
        &mut self,
        key: &'static str,
        kind: impl Fn(&DeValue<'_>) -> Result<T, Mismatch>,
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

    /// A list of values of `kind`; each wrong item is a problem of its own.
    pub(crate) fn list<T>(&mut self, key: &'static str, kind: impl Fn(&DeValue<'_>) -> Result<T, Mismatch>) -> Vec<T> {
        self.known.push(key);
        let Some(value) = self.table.and_then(|table| table.get(key)) else {
            return Vec::new();
        };
        let Some(items) = value.get_ref().as_array().filter(|items| items.len() <= LIST_LIMIT) else {
            let wrong = Mismatch::expected(format!("a list of at most {LIST_LIMIT} values: [\"…\", \"…\"]"));
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
            lines: self.lines,
            path: format!("{}{name}.", self.path),
            line: self.line,
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
        kind: impl Fn(&DeValue<'_>) -> Result<V, Mismatch>,
    ) -> BTreeMap<K, V> {
        let mut map = BTreeMap::new();
        for (raw, value) in self.table_of(name).into_iter().flatten() {
            let path = format!("{name}.{}", shown_key(raw.get_ref()));
            match (key(raw.get_ref()), kind(value.get_ref())) {
                (Ok(key), Ok(value)) => {
                    map.insert(key, value);
                }
                (Err(reason), _) => {
                    let line = self.lines.at(raw.span().start);
                    self.problems.push(Problem::Refused { key: format!("{}{path}", self.path), line, reason });
                }
                (Ok(_), Err(wrong)) => self.report_wrong(&path, value.span().start, value.get_ref(), wrong),
            }
        }
        map
    }

    /// The value of a mandatory key.
    pub(crate) fn required<T>(
        &mut self,
        key: &'static str,
        kind: impl Fn(&DeValue<'_>) -> Result<T, Mismatch>,
        instead: T,
    ) -> T {
        if !self.has(key) {
            let (key, line) = (format!("{}{key}", self.path), self.line);
            self.problems.push(Problem::Refused { key, line, reason: "it must be there".to_owned() });
        }
        self.get(key, kind, instead)
    }

    /// Returns true if the section has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// The tables in this one, up to a limit, whose names are the author's: `key` reads a name or says why it is
    /// refused.
    pub(crate) fn sections<K: Ord, V>(
        &mut self,
        most: usize,
        key: impl Fn(&str) -> Result<K, String>,
        read: impl Fn(&mut Section<'_>) -> V,
    ) -> BTreeMap<K, V> {
        let table = self.table.take(); // all of its keys are known
        let mut sections = BTreeMap::new();
        for (at, (raw, value)) in table.into_iter().flatten().enumerate() {
            let path = format!("{}{}", self.path, shown_key(raw.get_ref()));
            let line = self.lines.at(raw.span().start);
            let refused = |reason| Problem::Refused { key: path.clone(), line, reason };
            if at == most {
                self.problems.push(refused(format!("there are at most {most}")));
                break;
            }
            let key = match key(raw.get_ref()) {
                Ok(key) => key,
                Err(reason) => {
                    self.problems.push(refused(reason));
                    continue;
                }
            };
            if value.get_ref().as_table().is_none() {
                let wrong = Mismatch::expected(format!("a table `[{path}]`"));
                self.report_wrong(raw.get_ref(), value.span().start, value.get_ref(), wrong);
                continue;
            }
            let mut section = Section {
                lines: self.lines,
                path: format!("{path}."),
                line,
                table: value.get_ref().as_table(),
                known: Vec::new(),
                problems: &mut *self.problems,
            };
            sections.insert(key, read(&mut section));
            section.report_unknown();
        }
        sections
    }

    fn table_of(&mut self, name: &'static str) -> Option<&'a DeTable<'a>> {
        self.known.push(name);
        let value = self.table?.get(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let wrong = Mismatch::expected(format!("a table `[{}{name}]`", self.path));
            self.report_wrong(name, value.span().start, value.get_ref(), wrong);
        }
        table
    }

    fn report_wrong(&mut self, key: &str, start: usize, value: &DeValue<'_>, wrong: Mismatch) {
        self.problems.push(Problem::Value {
            key: format!("{}{key}", self.path),
            line: self.lines.at(start),
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
                    line: self.lines.at(key.span().start),
                    hint: nearest(name, &self.known),
                });
            }
        }
    }
}

/// `did you mean …?` for the known name that a slip of a few letters makes of `name`, else all known names.
fn nearest(name: &str, known: &[&str]) -> String {
    // No number of slips makes a name of one length another by more letters than there are slips: most are not compared.
    let slips = |candidate: &str| 1.max(candidate.len() / 3);
    let length = name.chars().count();
    let slip = known
        .iter()
        .filter(|candidate| candidate.len().abs_diff(length) <= slips(candidate))
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= slips(candidate))
        .min();
    match slip {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// Where the lines of a text end, so that the line of each of many problems is found without going through the text.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The line, counted from 1, of a byte offset.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}
