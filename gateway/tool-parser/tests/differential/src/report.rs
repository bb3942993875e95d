//! Counts of equal and different answers, and the differences that are not listed.

use crate::answer::{Answer, Class, difference};
use crate::forms::Form;
use crate::listed::{LISTED, listed};
use crate::parsers::{Other, Parsed};
use crate::texts::{KINDS, Kind, MODES, Mode, Text};
use std::collections::BTreeMap;

/// Form, parser, kind and way of a text, and class of the difference.
type Difference = (&'static str, Other, Kind, Mode, Class);

/// Answers of a parser in one kind and way.
#[derive(Debug, Default)]
struct Count {
    texts: usize,
    equal: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: BTreeMap<(&'static str, Other, Kind, Mode), Count>,
    listed: BTreeMap<usize, usize>,
    /// Shortest example of each difference that is not listed, and their number.
    unlisted: BTreeMap<Difference, (usize, String)>,
    texts: usize,
    wrong: usize,
}

impl Report {
    /// Takes our answer.
    pub(crate) fn ours(&mut self, form: &Form, text: &Text, answer: &Answer, is_right: bool) {
        self.texts += 1;
        if !is_right {
            self.wrong += 1;
            println!("ours, {}: {:?}\n  meant {:?}\n  is    {answer:?}", form.name, text.text, text.meant);
        }
    }

    /// Compares the answer of another parser with ours.
    pub(crate) fn theirs(
        &mut self,
        (form, other, mode): (&Form, Other, Mode),
        text: &Text,
        ours: &Answer,
        theirs: &Parsed,
    ) {
        let count = self.counts.entry((form.name, other, text.kind, mode)).or_default();
        count.texts += 1;
        let class = match theirs {
            Ok(theirs) => difference(ours, theirs),
            Err(_) => Some(Class::Error),
        };
        let Some(class) = class else {
            count.equal += 1;
            return;
        };
        if let Some(entry) = listed(other, form.name, text.kind, mode, class) {
            *self.listed.entry(entry).or_default() += 1;
            return;
        }
        let example = format!("  {:?}\n  ours   {ours:?}\n  theirs {theirs:?}", text.text);
        let (count, shortest) = self.unlisted.entry((form.name, other, text.kind, mode, class)).or_default();
        *count += 1;
        if shortest.is_empty() || example.len() < shortest.len() {
            *shortest = example;
        }
    }

    /// Returns true if ours was always right, and all differences are listed.
    pub(crate) fn is_good(&self) -> bool {
        self.wrong == 0 && self.unlisted.is_empty()
    }

    pub(crate) fn print(&self) {
        println!("\nEqual answers in percent: whole / in pieces with whole marks / in any pieces");
        let columns = ["plain", "marks", "cut", "broken", "vectors"].map(|kind| format!("{kind:>17}")).concat();
        println!("{:14} {:8}{columns}", "form", "parser");
        let mut rows: Vec<(&str, Other)> = self.counts.keys().map(|(form, other, ..)| (*form, *other)).collect();
        rows.dedup();
        for (form, other) in rows {
            let cells = KINDS.into_iter().chain([Kind::Vectors]).map(|kind| self.cell(form, other, kind));
            println!("{form:14} {:8}{}", format!("{other:?}"), cells.collect::<String>());
        }
        println!("\nDifferences that are listed");
        for (entry, count) in &self.listed {
            println!("{count:7}  {}", LISTED[*entry].reason);
        }
        for ((form, other, kind, mode, class), (count, example)) in &self.unlisted {
            println!("\nnot listed: {form} {other:?} {kind:?} {mode:?} {class:?}, {count} times\n{example}");
        }
        let sum = |of: fn(&Count) -> usize| self.counts.values().map(of).sum::<usize>();
        println!(
            "\n{} texts, {} answers of others, {} equal, {} differences not listed; {} answers of ours wrong",
            self.texts,
            sum(|count| count.texts),
            sum(|count| count.equal),
            self.unlisted.values().map(|(count, _)| count).sum::<usize>(),
            self.wrong
        );
    }

    fn cell(&self, form: &'static str, other: Other, kind: Kind) -> String {
        let percent = |mode| {
            let count = self.counts.get(&(form, other, kind, mode))?;
            Some((count.equal * 100 / count.texts).to_string())
        };
        let parts: Option<Vec<String>> = MODES.into_iter().map(percent).collect();
        format!("{:>17}", parts.map_or_else(|| "-".to_owned(), |parts| parts.join(" / ")))
    }
}
