//! From the format of an answer to a grammar.
//!
//! Bounds: 128 KiB of schemas, the bounds of [`cost`], `llguidance`'s own fuel, and two seconds. A schema
//! that is in need of more is refused; nothing of it runs on the engine's thread. Keywords that the grammar cannot
//! honour are refused too.

use crate::grammar::cost;
use crate::grammar::error::GrammarError;
use crate::grammar::state::Grammar;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

/// Longest schema, in bytes.
const LONGEST_SCHEMA: usize = 128 * 1024;
/// Most alternatives of [`Format::Framed`].
const MOST_FRAMES: usize = 128;
/// Longest time of a compilation, with that of waiting for others.
const TIME: Duration = Duration::from_secs(2);
/// Compilations at a time.
const AT_ONCE: usize = 2;
/// Stack of a compilation, which recurses over the schema: only what it touches is taken.
const STACK: usize = 256 << 20;
/// Longest token of a grammar, in bytes: the trie numbers no more.
const LONGEST_TOKEN: usize = 512;
/// Most tokens of a vocabulary: the trie numbers no more.
const MOST_TOKENS: usize = (1 << 24) - 2;
/// White space between the parts of JSON: a space, or a line's end with the next one's indentation. A small model that may
/// write more goes on with it until it has no tokens left.
const WHITE_SPACE: &str = r"(\x20|\x0D?\x0A[\x20\x09]{0,32})";

/// Format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format<'a> {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema(&'a str),
    /// Text with JSON in it: any of several.
    Framed(&'a [Frame<'a>]),
}

/// Text with JSON in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Text before the JSON.
    pub begin: &'a str,
    /// Schema of the JSON.
    pub schema: &'a str,
    /// Text behind it.
    pub end: &'a str,
}

/// Compiler of grammars for one vocabulary. Its methods may be called from any thread, and block.
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    running: Arc<Running>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Indexes a vocabulary: the bytes of each token in the order of the ids; `None` for special and unused ids, which
    /// are in no grammar. Takes some hundred milliseconds for 150,000 tokens.
    ///
    /// # Errors
    /// The vocabulary has no tokens, no end token, or too many tokens.
    pub fn new<'a>(
        tokens: impl IntoIterator<Item = Option<&'a [u8]>>,
        end_tokens: &[u32],
    ) -> Result<Self, GrammarError> {
        let usable =
            |token: &&[u8]| token.len() <= LONGEST_TOKEN && token.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let words: Vec<Vec<u8>> = tokens
            .into_iter()
            .take(MOST_TOKENS + 1)
            .map(|token| token.filter(usable).map_or_else(Vec::new, <[u8]>::to_vec))
            .collect();
        let ends = end_tokens.iter().filter(|id| (**id as usize) < words.len()).count();
        let outside = GrammarError::Vocabulary { tokens: words.len(), ends };
        let Some(&first) = end_tokens.first().filter(|_| ends == end_tokens.len() && words.len() <= MOST_TOKENS) else {
            return Err(outside);
        };
        let size = u32::try_from(words.len()).map_err(|_| outside)?;
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(end_tokens);
        let environment: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| GrammarError::Index(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory: Arc::new(factory), running: Arc::default() })
    }

    /// Compiles a grammar, within two seconds.
    ///
    /// # Errors
    /// The schema is invalid, too large, or not to be honoured: an error of the request.
    pub fn compile(&self, format: Format<'_>) -> Result<Grammar, GrammarError> {
        let deadline = Instant::now() + TIME;
        let grammar = grammar_of(format)?;
        let permit = Running::enter(&self.running, deadline)?;
        let (sender, receiver) = sync_channel(1);
        let factory = Arc::clone(&self.factory);
        let work = move || {
            let parser = factory.create_parser(grammar);
            let grammar = parser.map(|parser| Grammar::new(Matcher::new(Ok(parser))));
            drop(permit);
            // The caller may have given up.
            let _ = sender.send(grammar.map_err(|error| GrammarError::Unsupported(reason(&error.to_string()))));
        };
        let spawned = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK).spawn(work);
        spawned.map_err(|error| GrammarError::Index(error.to_string()))?;
        let left = deadline.saturating_duration_since(Instant::now());
        receiver.recv_timeout(left).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(GrammarError::TooSlow),
            RecvTimeoutError::Disconnected => Err(GrammarError::Unsupported("its compilation failed".to_owned())),
        })
    }
}

/// Grammar that is to be compiled.
fn grammar_of(format: Format<'_>) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match format {
        Format::JsonObject => TopLevelGrammar::from_json_schema(prepared(r#"{"type": "object"}"#, &mut 0.0)?),
        Format::JsonSchema(schema) => TopLevelGrammar::from_json_schema(prepared(schema, &mut 0.0)?),
        Format::Framed(frames) => TopLevelGrammar::from_lark(framed(frames)?),
    })
}

/// Grammar of texts with JSON in them: an alternative for each.
fn framed(frames: &[Frame<'_>]) -> Result<String, GrammarError> {
    let bytes: usize = frames.iter().map(|frame| frame.begin.len() + frame.schema.len() + frame.end.len()).sum();
    if bytes > LONGEST_SCHEMA || frames.len() > MOST_FRAMES {
        let message =
            format!("{} schemas of {bytes} bytes, and {MOST_FRAMES} of {LONGEST_SCHEMA} are allowed", frames.len());
        return Err(GrammarError::TooLarge(message));
    }
    let names: Vec<String> = (0..frames.len()).map(|number| format!("frame{number}")).collect();
    let mut lark = format!("%llguidance {{}}\nstart: {}\n", names.join(" | "));
    let mut nodes = 0.0;
    for (name, frame) in names.iter().zip(frames) {
        // Texts of Lark are written as those of JSON; an empty one is no part of a rule.
        let text = |text: &str| if text.is_empty() { String::new() } else { Value::from(text).to_string() };
        let schema = prepared(frame.schema, &mut nodes)?;
        let (begin, end) = (text(frame.begin), text(frame.end));
        lark.push_str(&format!("{name}: {begin} {name}_value {end}\n{name}_value: %json {schema}\n"));
    }
    Ok(lark)
}

/// Schema with the options of its compilation. `nodes`: size of the schemas so far.
fn prepared(text: &str, nodes: &mut f64) -> Result<Value, GrammarError> {
    if text.len() > LONGEST_SCHEMA {
        return Err(GrammarError::TooLarge(format!("{} bytes, and {LONGEST_SCHEMA} are allowed", text.len())));
    }
    let mut schema: Value = serde_json::from_str(text).map_err(|error| GrammarError::Unsupported(error.to_string()))?;
    *nodes = cost::check(&schema, *nodes).map_err(GrammarError::TooLarge)?;
    match &mut schema {
        // A client's own options, if there are any, could weaken the grammar.
        Value::Object(members) => {
            members.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITE_SPACE}));
            Ok(schema)
        }
        Value::Bool(true) => prepared("{}", nodes),
        _ => Err(GrammarError::Unsupported("it is no object, and accepts nothing".to_owned())),
    }
}

/// Limits of compilation and of each mask: some 20 ms each by `llguidance`'s own figures.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 4000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Message without the parser's state.
fn reason(message: &str) -> String {
    const LONGEST: usize = 300;
    message.lines().next().unwrap_or_default().chars().take(LONGEST).collect()
}

/// Number of running compilations.
#[derive(Debug, Default)]
struct Running {
    count: Mutex<usize>,
    ended: Condvar,
}

/// Place among the running compilations.
#[derive(Debug)]
struct Permit(Arc<Running>);

impl Running {
    /// Waits until there is room for one more.
    fn enter(running: &Arc<Self>, deadline: Instant) -> Result<Permit, GrammarError> {
        let count = running.count.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = running.ended.wait_timeout_while(count, left, |count| *count >= AT_ONCE);
        let (mut count, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(GrammarError::TooSlow);
        }
        *count += 1;
        Ok(Permit(Arc::clone(running)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_one();
    }
}
