//! Model that is served: the engine, and what turns texts into tokens and back.

use super::failure::of_grammar;
use super::metrics::FrontMetrics;
use crate::engine::Engine;
use crate::model::{CallForm, Function, Grammars, Model};
use omni_body::{BodyBudget, BudgetShare};
use omni_chat_template::{ChatTemplate, LoadError, TemplateSource};
use omni_generation::{Prompt, ResponseFormat, ToolChoice};
use omni_kv_cache::Digest;
use omni_request_error::Failure;
use omni_sampler::{Format, Grammar, Vocabulary};
use omni_tokenizer::Tokenizer;
use omni_tool_parser::{Dialect, ReasoningFormat};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Pieces of work at a time that take long for a client's sake: prompts, grammars.
const ASIDE: usize = 2;
/// Bytes that bodies and heads take together. Either of them leaves half of it to the other.
const BODIES: u64 = 128 << 20;

/// Model that is served.
pub struct Service {
    pub(super) engine: Engine,
    pub(super) facts: ServiceFacts,
    pub(super) text: Arc<TextModel>,
    pub(super) front: FrontMetrics,
    /// Memory for bodies.
    pub(super) bodies: Arc<BudgetShare>,
    /// Memory for heads of requests.
    pub(super) heads: Arc<BudgetShare>,
    /// Time of the start, in seconds since 1970.
    pub(super) created: u64,
    aside: Arc<Semaphore>,
}

/// Facts that requests are checked against.
#[derive(Debug, Clone)]
pub struct ServiceFacts {
    /// Name of the model for clients.
    pub name: String,
    /// Most tokens of a prompt and its answer.
    pub longest: usize,
    /// Width of the vectors, if the model makes those instead of text.
    pub embeds: Option<usize>,
    /// Root of the prefix cache.
    pub root: Digest,
}

/// Texts of the model: tokens, template, markup.
pub struct TextModel {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) vocabulary: Vocabulary,
    /// Chat template; `None`: the model has none.
    pub(super) template: Option<ChatTemplate>,
    /// Dialect of tool calls in its output.
    pub(super) dialect: Dialect,
    /// Form of reasoning in its output.
    pub(super) reasoning: Option<ReasoningFormat>,
    grammars: Grammars,
    /// Form of its calls; `None`: none that a grammar can demand.
    calls: Option<CallForm>,
}

impl Service {
    /// Makes the service of an engine.
    #[must_use]
    pub fn new(engine: Engine, facts: ServiceFacts, text: TextModel) -> Self {
        let front = FrontMetrics::new();
        let budget = BodyBudget::new(BODIES, 1, front.bodies.clone());
        let (bodies, heads) = (budget.share(), budget.share());
        Self {
            engine,
            facts,
            text: Arc::new(text),
            front,
            bodies,
            heads,
            created: now(),
            aside: Arc::new(Semaphore::new(ASIDE)),
        }
    }

    /// Does work whose time a client decides on a thread of its own, few at a time.
    ///
    /// # Errors
    /// The failure of the work, or its panic.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TextModel) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = Arc::clone(&self.aside).acquire_owned().await.map_err(|_| Failure::ShuttingDown)?;
        let text = Arc::clone(&self.text);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit; // until the work has ended, whether its client still waits or not
            work(&text)
        });
        done.await.map_err(|_| Failure::Raised)?
    }
}

impl TextModel {
    /// Makes the texts of a model that is open.
    ///
    /// # Errors
    /// The chat template cannot be used.
    pub fn of(model: &Model) -> Result<Self, LoadError> {
        let source = TemplateSource {
            jinja: model.chat_template.as_deref(),
            tokenizer_config: model.tokenizer_config.as_deref(),
        };
        Self::new(Arc::clone(&model.tokenizer), model.vocabulary.clone(), &source)
    }

    /// Makes the texts of a model from its tokenizer and its files.
    ///
    /// # Errors
    /// The chat template cannot be used.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        vocabulary: Vocabulary,
        source: &TemplateSource<'_>,
    ) -> Result<Self, LoadError> {
        let template = match ChatTemplate::new(source) {
            Ok(template) => Some(template),
            Err(LoadError::Missing) => None,
            Err(error) => return Err(error),
        };
        let printed = template.as_ref().and(source.jinja.or(source.tokenizer_config)).unwrap_or_default();
        Ok(Self {
            grammars: Grammars::new(Arc::clone(&tokenizer), vocabulary.clone()),
            tokenizer,
            vocabulary,
            dialect: Dialect::of_template(printed).unwrap_or(Dialect::None),
            reasoning: ReasoningFormat::of_template(printed),
            calls: CallForm::of_template(printed),
            template,
        })
    }

    /// Grammar of an answer: that of its format, or of a call that the client demands; `None`: any text is right. Takes
    /// up to seconds. `in_reasoning`: the answer begins inside of reasoning, and the grammar holds from its end on.
    pub(super) fn grammar(
        &self,
        format: &ResponseFormat,
        prompt: &Prompt,
        in_reasoning: bool,
    ) -> Result<Option<Grammar>, Failure> {
        let reasoning = self.reasoning.filter(|_| in_reasoning);
        let format = match format {
            ResponseFormat::Text => return Ok(self.demanded_call(prompt, reasoning)),
            ResponseFormat::JsonObject => Format::JsonObject,
            ResponseFormat::JsonSchema { schema, .. } => Format::JsonSchema(schema.get()),
        };
        self.grammars.answer(format, reasoning).map(Some).map_err(of_grammar)
    }

    fn demanded_call(&self, prompt: &Prompt, reasoning: Option<ReasoningFormat>) -> Option<Grammar> {
        let Prompt::Chat(chat) = prompt else { return None };
        let is_meant = |name: &str| match &chat.tool_choice {
            ToolChoice::Auto | ToolChoice::None => false,
            ToolChoice::Required => true,
            ToolChoice::Named(named) => named == name,
        };
        let functions: Vec<_> = chat
            .tools
            .iter()
            .filter(|tool| is_meant(&tool.name))
            .map(|tool| Function { name: &tool.name, parameters: tool.parameters.as_deref().map(RawValue::get) })
            .collect();
        self.grammars.call(self.calls?, &functions, reasoning)
    }
}

/// Time of day, in seconds since 1970, for people to read.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
