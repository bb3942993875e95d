//! Our parsers of tool calls and reasoning beside those of SMG and of NVIDIA Dynamo, on the same texts.
//!
//! ```text
//!  forms ──▶ texts ──┬──▶ ours ─────────▶ must be what was written, however it comes
//!  vectors ──────────┴──▶ SMG, Dynamo ──▶ must be ours, or differ in a way that is listed
//! ```
//!
//! Usage: `differential [SEED] [TEXTS]`, the number of texts of each form and kind.

mod answer;
mod forms;
mod listed;
mod parsers;
mod random;
mod report;
mod texts;
#[allow(dead_code, unused_imports, reason = "a module of the tests, of which only the texts are needed")]
#[path = "../../../src/parser/tests/vectors.rs"]
mod vectors;
mod write;

use answer::{difference, has_first_calls};
use forms::{FORMS, Form};
use omni_tool_parser::Dialect;
use parsers::{Other, ours};
use random::Random;
use report::Report;
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use texts::{KINDS, Kind, MODES, Text};

struct Run {
    runtime: tokio::runtime::Runtime,
    random: Random,
    report: Report,
}

fn main() -> ExitCode {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let seed = arguments.first().copied().unwrap_or(1);
    let count = arguments.get(1).copied().unwrap_or(100);
    println!("seed {seed}, {count} texts of each form and kind");
    // A panic of another parser is a difference; the message would stand between the lines of the report.
    std::panic::set_hook(Box::new(|panic| {
        if panic.location().is_some_and(|place| place.file().starts_with("src/")) {
            eprintln!("{panic}");
        }
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut run = Run { runtime, random: Random::new(seed), report: Report::default() };
    for form in FORMS.iter().filter(|form| Other::ALL.iter().any(|other| other.knows(form))) {
        for kind in KINDS {
            for _ in 0..count {
                let text = Text::new(form, kind, &mut run.random);
                run.text(form, &text);
            }
        }
        for vector in vectors::vectors().iter().filter(|vector| vector.dialect == form.dialect) {
            run.text(form, &Text::vector(vector.text));
        }
    }
    run.report.print();
    if run.report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Run {
    fn text(&mut self, form: &Form, text: &Text) {
        let whole = ours(form, text.open, &[&text.text]);
        let markup =
            matches!(form.dialect, Dialect::Qwen3Coder | Dialect::Glm | Dialect::MiniMax | Dialect::DeepSeekV32);
        let is_right = match (&text.meant, text.kind) {
            (None, _) => true,
            (Some(meant), Kind::Cut) => has_first_calls(&whole, meant, markup),
            (Some(meant), _) => difference(meant, &whole).is_none_or(|class| class == answer::Class::Space),
        };
        let [tokens, pieces] = [true, false].map(|tokens| self.random.pieces(&text.text, tokens));
        let is_same = [&tokens, &pieces].into_iter().all(|pieces| ours(form, text.open, pieces) == whole);
        self.report.ours(form, text, &whole, is_right && is_same);
        for other in Other::ALL.into_iter().filter(|other| other.knows(form)) {
            for (mode, pieces) in MODES.into_iter().zip([&[text.text.as_str()][..], &tokens, &pieces]) {
                let parse = AssertUnwindSafe(|| self.runtime.block_on(other.parse(form, text.open, pieces)));
                let theirs = std::panic::catch_unwind(parse).unwrap_or_else(|_| Err("a panic".to_owned()));
                self.report.theirs((form, other, mode), text, &whole, &theirs);
            }
        }
    }
}
