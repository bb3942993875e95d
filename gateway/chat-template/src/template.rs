//! Templates of a model, and their renders.

use crate::chat::{Form, Variables, variables};
use crate::control::mark::{self, END};
use crate::control::{ControlTokens, shape};
use crate::engine::time::strftime_now;
use crate::engine::{self, Bounds, Compiled, Failure};
use crate::error::{LoadError, RenderError};
use crate::facts::{self, Facts};
use crate::json;
use crate::source::TemplateSource;
use crate::syntax::rewrite::unix_lines;
use crate::syntax::survey::Survey;
use minijinja::value::{Value, ValueKind, merge_maps};
use omni_generation::{Chat, Content, InvalidRequest, Message, Part};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

/// Fuel of a small conversation: sixty times what the most expensive known render takes.
const FUEL: u64 = 1_000_000;

/// Fuel of any conversation.
const MAX_FUEL: u64 = 4_000_000;

/// Longest prompt of a small conversation, in bytes.
const OUTPUT: usize = 1 << 20;

/// Bytes of prompt for one byte of input.
const OUTPUT_FACTOR: usize = 8;

/// Fuel of a render that is to be brief: ten times what a conversation of two messages takes.
const BRIEF_FUEL: u64 = 4_000;

/// Largest input of a render that is to be brief, in bytes.
const BRIEF_INPUT: usize = 16 * 1024;

/// Fuel of a probe.
const PROBE_FUEL: u64 = 200_000;

/// Beginnings of reasoning with which a prompt may end.
const REASONING: &[&str] = &[
    "<think>",
    "<thinking>",
    "<thought>",
    "<reasoning>",
    "<seed:think>",
    "<longcat_think>",
    "<|START_THINKING|>",
    "[THINK]",
    "<|begin_of_thought|>",
    "\u{25c1}think\u{25b7}",
];

/// Templates of a model, compiled, with what was found out about them.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    default: Variant,
    tool_use: Option<Variant>,
    special: Vec<(String, String)>,
    tokens: ControlTokens,
}

/// A template of a model.
#[derive(Debug, Clone)]
struct Variant {
    compiled: Compiled,
    facts: Facts,
    searched: BTreeSet<String>,
    /// Special tokens that the template prints and the configuration lacks, with the first line of each.
    missing: Vec<(&'static str, usize)>,
}

/// Prompt of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Prompt.
    pub prompt: String,
    /// Byte ranges of the prompt that look like control tokens and are a client's text: an engine must encode them as text.
    /// Sorted, not overlapping.
    pub literals: Vec<Range<usize>>,
    /// The prompt begins with the token of the beginning: the engine must not add another.
    pub adds_bos: bool,
    /// The prompt ends in the beginning of reasoning (`<think>`): the answer goes on inside of it.
    pub reasoning_open: bool,
    /// Fuel that the render took.
    pub fuel: u64,
}

impl ChatTemplate {
    /// Compiles the templates of a model and finds the facts about them: takes some milliseconds.
    ///
    /// # Errors
    /// There is no template, or it cannot be compiled.
    pub fn new(source: &TemplateSource<'_>) -> Result<Self, LoadError> {
        let model = source.read()?;
        let mut control = model.control;
        let mut surveys = Vec::new();
        for text in [Some(&model.default), model.tool_use.as_ref()].into_iter().flatten() {
            let survey = Survey::of(&unix_lines(text));
            for literal in &survey.literals {
                control.extend(shape::always(literal).into_iter().map(str::to_owned));
                if !model.complete {
                    control.extend(shape::perhaps(literal).into_iter().map(str::to_owned));
                }
            }
            surveys.push((text, survey));
        }
        let tokens: ControlTokens = control.into_iter().collect();
        let mut variants = Vec::new();
        for (text, survey) in surveys {
            variants.push(Variant::new(text, survey, &tokens, &model.variables)?);
        }
        let mut variants = variants.into_iter();
        let default = variants.next().ok_or(LoadError::Missing)?;
        Ok(Self { default, tool_use: variants.next(), special: model.variables, tokens })
    }

    /// Facts about the template of a conversation.
    #[must_use]
    pub fn facts(&self, chat: &Chat) -> &Facts {
        &self.variant(chat).facts
    }

    /// Control tokens of the model.
    #[must_use]
    pub fn control_tokens(&self) -> &ControlTokens {
        &self.tokens
    }

    /// Renders a conversation. `now`: time in seconds since 1970, for templates that print the date.
    ///
    /// # Errors
    /// See [`RenderError`], by whose fault it is.
    pub fn render(&self, chat: &Chat, now: i64) -> Result<Rendered, RenderError> {
        let variant = self.variant(chat);
        self.render_by(&variant.compiled, variant, chat, (now, bounds))
    }

    /// Renders a conversation if that takes little: some ten microseconds, and milliseconds where a hostile template does
    /// nothing but compare large lists. `None`: it takes more.
    #[must_use]
    pub fn render_briefly(&self, chat: &Chat, now: i64) -> Option<Result<Rendered, RenderError>> {
        if size(chat) > BRIEF_INPUT {
            return None;
        }
        let variant = self.variant(chat);
        let brief = |size| Bounds { fuel: BRIEF_FUEL, ..bounds(size) };
        match self.render_by(&variant.compiled, variant, chat, (now, brief)) {
            Err(RenderError::OutOfFuel { .. }) => None,
            rendered => Some(rendered),
        }
    }

    /// Renders a conversation; errors name the variables that are undefined.
    pub(crate) fn verbose(&self, chat: &Chat, now: i64) -> Result<Rendered, RenderError> {
        let variant = self.variant(chat);
        self.render_by(&variant.compiled.verbose(), variant, chat, (now, bounds))
    }

    fn render_by(
        &self,
        compiled: &Compiled,
        variant: &Variant,
        chat: &Chat,
        (now, bounds): (i64, impl Fn(usize) -> Bounds),
    ) -> Result<Rendered, RenderError> {
        let form = Form {
            facts: &variant.facts,
            tokens: &self.tokens,
            searched: &variant.searched,
            special: &self.special,
            now,
        };
        let continued = chat.template.continue_final_message;
        let Variables { root, size, unparsed } = variables(form, chat)?;
        let bounds = bounds(size);
        let output = compiled.render(root, bounds).map_err(|failure| {
            let error = render_error(failure, bounds);
            match (unparsed, error) {
                (Some(parameter), RenderError::Template { .. }) => {
                    let message = format!("`{parameter}` is not a JSON object, and the chat template needs one");
                    RenderError::Invalid(InvalidRequest::new(parameter, message))
                }
                (_, error) => error,
            }
        })?;
        let mut marked = output.text;
        if continued {
            let Some(end) = marked.rfind(END) else { return Err(not_continued()) };
            marked.truncate(end);
        }
        let (prompt, literals) = mark::unmark(&self.tokens, marked);
        Ok(Rendered {
            adds_bos: self.begins(&prompt),
            reasoning_open: ends_in_reasoning(&prompt, &literals),
            prompt,
            literals,
            fuel: output.fuel,
        })
    }

    /// Prompt for an engine that cannot encode ranges as text: a zero-width space (U+200B) after the first character of each
    /// control token in a client's text.
    #[must_use]
    pub fn neutralised<'a>(&self, rendered: &'a Rendered) -> Cow<'a, str> {
        if rendered.literals.is_empty() {
            return Cow::Borrowed(&rendered.prompt);
        }
        let mut out = String::with_capacity(rendered.prompt.len() + 3 * rendered.literals.len());
        let mut done = 0;
        for range in &rendered.literals {
            out.push_str(rendered.prompt.get(done..range.start).unwrap_or(""));
            out.push_str(&self.tokens.neutralised(rendered.prompt.get(range.clone()).unwrap_or("")));
            done = range.end;
        }
        out.push_str(rendered.prompt.get(done..).unwrap_or(""));
        Cow::Owned(out)
    }

    /// Renders with variables as they are, without normalisation and without marks: for comparisons with other
    /// implementations. `variables`: a JSON object.
    ///
    /// # Errors
    /// As of [`ChatTemplate::render`]; variables that are no object are refused.
    pub fn render_variables(&self, variables: &str, now: i64) -> Result<Rendered, RenderError> {
        let parsed =
            json::parse(variables, &mut |text| Value::from(text)).ok().filter(|root| root.kind() == ValueKind::Map);
        let Some(root) = parsed else {
            return Err(RenderError::Invalid(InvalidRequest::new("variables", "the variables are no JSON object")));
        };
        let with_tools = root.get_attr("tools").is_ok_and(|tools| tools.is_true());
        let variant = self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.default);
        let bounds = bounds(variables.len());
        let clock = Value::from_pairs([("strftime_now", strftime_now(now))]);
        let output = variant.compiled.render(merge_maps([clock, root]), bounds);
        let output = output.map_err(|failure| render_error(failure, bounds))?;
        Ok(Rendered {
            adds_bos: self.begins(&output.text),
            reasoning_open: ends_in_reasoning(&output.text, &[]),
            prompt: output.text,
            literals: Vec::new(),
            fuel: output.fuel,
        })
    }

    /// Name of the template of a conversation.
    pub(crate) fn variant_name(&self, chat: &Chat) -> &'static str {
        if self.tool_use.is_some() && chat.offers_tools() { "tool_use" } else { "default" }
    }

    /// Special tokens that a template prints and the configuration lacks: name of the template, of the token, and first line.
    pub(crate) fn missing_tokens(&self) -> impl Iterator<Item = (&'static str, &'static str, usize)> {
        let of = |name: &'static str, variant: &'_ Variant| {
            variant.missing.clone().into_iter().map(move |(token, line)| (name, token, line))
        };
        of("default", &self.default).chain(self.tool_use.iter().flat_map(move |variant| of("tool_use", variant)))
    }

    fn variant(&self, chat: &Chat) -> &Variant {
        self.tool_use.as_ref().filter(|_| chat.offers_tools()).unwrap_or(&self.default)
    }

    fn begins(&self, prompt: &str) -> bool {
        let token = self.special.iter().find(|(name, _)| name == "bos_token").map(|(_, token)| token);
        token.is_some_and(|token| !token.is_empty() && prompt.starts_with(token.as_str()))
    }
}

impl Variant {
    fn new(
        source: &str,
        survey: Survey,
        tokens: &ControlTokens,
        special: &[(String, String)],
    ) -> Result<Self, LoadError> {
        let compiled = engine::compile(source)?;
        let endless = Cell::new(false);
        let facts = facts::probe(&survey, &|chat, facts| {
            if endless.get() {
                return None;
            }
            let form = Form { facts, tokens, searched: &survey.searched, special, now: 0 };
            let variables = variables(form, chat).ok()?;
            let output = compiled.render(variables.root, Bounds { fuel: PROBE_FUEL, output: OUTPUT });
            // The next probe would take as long.
            endless.set(matches!(output, Err(Failure::OutOfFuel)));
            let output = output.ok()?;
            Some(mark::unmark(tokens, output.text).0)
        });
        let missing = ["bos_token", "eos_token"]
            .into_iter()
            .filter(|name| survey.names.contains(*name) && !special.iter().any(|(special, _)| special == name));
        let line = |name: &str| unix_lines(source).lines().position(|line| line.contains(name)).map_or(0, |at| at + 1);
        let missing = missing.map(|name| (name, line(name))).collect();
        Ok(Self { compiled, facts, searched: survey.searched, missing })
    }
}

/// Bytes of a conversation, roughly.
fn size(chat: &Chat) -> usize {
    let part = |part: &Part| match part {
        Part::Text(text) => text.len(),
        Part::Image { .. } | Part::Audio { .. } => 0, // a place in the text stands for it
    };
    let content = |content: &Content| match content {
        Content::Absent => 0,
        Content::Text(text) => text.len(),
        Content::Parts(parts) => parts.iter().map(part).sum(),
    };
    let message = |message: &Message| {
        let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
        let extra = message.extra.iter().map(|(name, value)| name.len() + value.get().len());
        content(&message.content)
            + message.reasoning.as_ref().map_or(0, String::len)
            + calls.chain(extra).sum::<usize>()
    };
    let tools = chat.tools.iter().map(|tool| tool.definition.get().len());
    let variables = chat.template.variables.iter().map(|(name, value)| name.len() + value.get().len());
    chat.messages.iter().map(message).chain(tools).chain(variables).sum()
}

fn bounds(size: usize) -> Bounds {
    Bounds {
        fuel: FUEL.saturating_add(size as u64).min(MAX_FUEL),
        output: OUTPUT.saturating_add(size.saturating_mul(OUTPUT_FACTOR)),
    }
}

fn render_error(failure: Failure, bounds: Bounds) -> RenderError {
    match failure {
        Failure::Raised(message, line) => RenderError::Refused { message, line },
        Failure::OutOfFuel => RenderError::OutOfFuel { fuel: bounds.fuel },
        Failure::TooLong => RenderError::TooLong { limit: bounds.output },
        Failure::Panic(message) => RenderError::Template { message, line: 0 },
        Failure::Error(error) => RenderError::Template {
            message: error
                .detail()
                .map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind())),
            line: error.line().unwrap_or(0),
        },
    }
}

fn not_continued() -> RenderError {
    let message = "the chat template does not print the end of the last message, so it cannot be continued";
    RenderError::Invalid(InvalidRequest::new("continue_final_message", message))
}

fn ends_in_reasoning(prompt: &str, literals: &[Range<usize>]) -> bool {
    let tail = prompt.trim_end();
    let literal = literals.last().is_some_and(|range| range.end >= tail.len());
    !literal && REASONING.iter().any(|tag| tail.ends_with(tag))
}

#[cfg(test)]
mod tests;
