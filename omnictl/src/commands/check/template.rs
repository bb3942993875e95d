//! Chat template and parsers of a model that generates text: can the node use them, and which conversations does the template
//! not render?

use std::path::Path;

use omni_chat_template::{LoadError, Severity, TemplateSource, lint};
use omni_config::Manifest;
use omni_config::manifest::{AUTO, Engine, Kind, Render};
use omni_tool_parser::{Dialect, ReasoningFormat};

use super::{Finding, line_of, text_of};

/// Longest file that a node reads.
const LONGEST: u64 = 64 << 20;
/// Value of `reasoning-parser` for output without reasoning.
const NONE: &str = "none";
/// Names of templates elsewhere, which a node does not read.
const MISNAMED: [&str; 2] = ["chat_template.jinja2", "chat_template.j2"];
const RENAME: &str = "name the file `chat_template.jinja`";
/// Conversation that every template has to render.
const PLAIN: &str = "user";
/// Names of conversations in one note.
const SHOWN: usize = 4;

/// Findings, and notes about conversations that the template refuses or does not show to the model.
pub(super) fn check(dir: &Path, manifest: &Manifest) -> (Vec<Finding>, Vec<String>) {
    if manifest.model.kind != Kind::TextGeneration {
        return (Vec::new(), Vec::new());
    }
    let mut findings = parsers(dir, manifest);
    let (jinja_path, tokenizer_path) = (dir.join("chat_template.jinja"), dir.join("tokenizer_config.json"));
    let (jinja, tokenizer) = match (text_of(&jinja_path, LONGEST), text_of(&tokenizer_path, LONGEST)) {
        (Ok(jinja), Ok(tokenizer)) => (jinja, tokenizer),
        (jinja, tokenizer) => {
            findings.extend([jinja.err(), tokenizer.err()].into_iter().flatten());
            return (findings, Vec::new());
        }
    };
    let misnamed = MISNAMED.map(|name| dir.join(name)).into_iter().find(|path| path.is_file());
    let misnamed = misnamed.filter(|_| jinja.is_none() && manifest.chat.render == Render::Node);
    if let Some(misnamed) = misnamed {
        findings.push(Finding::at(&misnamed, None, "a node reads no template of this name", RENAME));
        return (findings, Vec::new());
    }
    let source = TemplateSource { jinja: jinja.as_deref(), tokenizer_config: tokenizer.as_deref() };
    let path = if jinja.is_some() { &jinja_path } else { &tokenizer_path };
    match lint(&source) {
        Ok(found) => {
            let (wrong, notes) = sorted(path, jinja.is_some(), found);
            findings.extend(wrong);
            (findings, notes)
        }
        Err(error) => match load_error(path, &jinja_path, jinja.is_some(), manifest, &error) {
            Some(Report::Finding(finding)) => {
                findings.push(finding);
                (findings, Vec::new())
            }
            Some(Report::Note(note)) => (findings, vec![note]),
            None => (findings, Vec::new()),
        },
    }
}

/// Names of parsers that there are none of.
fn parsers(dir: &Path, manifest: &Manifest) -> Vec<Finding> {
    let path = dir.join("omni.toml");
    let unknown = |key: &str, name: &str, known: Vec<&str>| {
        let message = format!("`chat.{key}`: there is no parser {name:?}");
        Finding::at(&path, line_of(&path, "[chat]", key), message, format!("write one of {}", known.join(", ")))
    };
    let (tools, reasoning) = (manifest.chat.tool_parser.as_str(), manifest.chat.reasoning_parser.as_str());
    let mut findings = Vec::new();
    if tools != AUTO && Dialect::of_name(tools).is_none() {
        let known = [AUTO].into_iter().chain(Dialect::ALL.iter().map(|(name, _)| *name));
        findings.push(unknown("tool-parser", tools, known.collect()));
    }
    if ![AUTO, NONE].contains(&reasoning) && ReasoningFormat::of_name(reasoning).is_none() {
        let known = [AUTO, NONE].into_iter().chain(ReasoningFormat::ALL.iter().map(|(name, _)| *name));
        findings.push(unknown("reasoning-parser", reasoning, known.collect()));
    }
    findings
}

enum Report {
    Finding(Finding),
    Note(String),
}

/// The report of a template that cannot be used, if the model needs one or has one.
fn load_error(path: &Path, jinja: &Path, is_file: bool, manifest: &Manifest, error: &LoadError) -> Option<Report> {
    let finding = |line, message| Some(Report::Finding(Finding::at(path, line, message, "correct the chat template")));
    match error {
        LoadError::Missing if manifest.chat.render == Render::Model => None,
        LoadError::Missing => {
            let name = jinja.display();
            let consequence = match (manifest.runtime.engine, &manifest.weights.source) {
                (Engine::Native, Some(_)) => {
                    "conversations are rendered by the template that the weights bring, if they do"
                }
                (Engine::Native, None) => {
                    "conversations are rendered by the template inside of a GGUF file, if it has one"
                }
                (Engine::Python | Engine::OpenAi, _) => "prompts work, and conversations are refused",
            };
            Some(Report::Note(format!("there is no {name}: {consequence}")))
        }
        LoadError::Template { message, line } if is_file => {
            finding(Some(*line).filter(|line| *line > 0), format!("the template cannot be used: {message}"))
        }
        error => finding(None, error.to_string()),
    }
}

/// Lint findings by weight. A template that fails for the plainest conversation, or loses it, is a mistake. Others refuse some
/// conversations on purpose, and not every author wants all of them.
fn sorted(path: &Path, is_file: bool, found: Vec<omni_chat_template::Finding>) -> (Vec<Finding>, Vec<String>) {
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    for omni_chat_template::Finding { severity, template, line, message, shapes } in found {
        let which = if template == "default" { String::new() } else { format!(" (template `{template}`)") };
        if shapes.contains(&PLAIN) {
            let (line, place) = if is_file { (line, String::new()) } else { (None, in_template(line)) };
            let what = match severity {
                Severity::Error => "the template fails for a plain message of the user",
                Severity::Warning => "the template is of no use for a plain message of the user",
            };
            let message = format!("{what}{which}: {place}{message}");
            findings.push(Finding::at(path, line, message, "correct the chat template"));
            continue;
        }
        let place = if is_file { line.map_or_else(String::new, |line| format!(":{line}")) } else { String::new() };
        let within = if is_file { String::new() } else { in_template(line) };
        notes.push(format!("{}{place}: {within}{message}{which}{}", path.display(), conversations(&shapes)));
    }
    (findings, notes)
}

fn in_template(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("line {line} of the template: "))
}

/// The names of some conversations, in brackets.
fn conversations(shapes: &[&str]) -> String {
    let shown: Vec<_> = shapes.iter().take(SHOWN).copied().collect();
    match (shapes.len(), shapes.len().saturating_sub(SHOWN)) {
        (0, _) => String::new(),
        (_, 0) => format!(" [{}]", shown.join(", ")),
        (_, more) => format!(" [{}, and {more} more]", shown.join(", ")),
    }
}
