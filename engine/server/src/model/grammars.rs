//! Grammars over a model's vocabulary.

use super::calls::{CallForm, Function};
use omni_sampler::{Format, Frame, Grammar, GrammarCompiler, GrammarError, Vocabulary};
use omni_tokenizer::Tokenizer;
use omni_tool_parser::ReasoningFormat;
use std::sync::{Arc, OnceLock};

/// Grammars of a model. The vocabulary is indexed for the first one: most models are never asked for any.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocabulary: Vocabulary,
    compiler: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

impl Grammars {
    /// Grammars over a vocabulary. Control tokens are in none.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, vocabulary: Vocabulary) -> Self {
        Self { tokenizer, vocabulary, compiler: OnceLock::new() }
    }

    /// Compiles a grammar. Takes up to seconds; may be called from any thread.
    ///
    /// # Errors
    /// The schema cannot be honoured, or the vocabulary cannot be indexed.
    pub fn compile(&self, format: Format<'_>) -> Result<Grammar, GrammarError> {
        let compiler = self.compiler.get_or_init(|| {
            let ids = 0..u32::try_from(self.vocabulary.size()).unwrap_or(u32::MAX);
            let text = |id| self.tokenizer.token_bytes(id).filter(|_| !self.tokenizer.is_special(id));
            GrammarCompiler::new(ids.map(text), self.vocabulary.end_tokens())
        });
        compiler.as_ref().map_err(Clone::clone)?.compile(format)
    }

    /// Compiles the grammar of an answer. `reasoning`: the answer begins inside of it, and the grammar holds from its
    /// end on.
    pub(crate) fn answer(
        &self,
        format: Format<'_>,
        reasoning: Option<ReasoningFormat>,
    ) -> Result<Grammar, GrammarError> {
        let grammar = self.compile(format)?;
        let Some(end) = reasoning.and_then(|format| format.closes().first()) else { return Ok(grammar) };
        let marker = self.tokenizer.encode(end, false, &[]).map_err(|error| GrammarError::Index(error.to_string()))?;
        grammar.after(&marker)
    }

    /// Compiles the grammar of a call of any of some functions. Where a grammar cannot keep the arguments to their
    /// schemas, they are any object. `None`: there is no function, or no grammar.
    pub(crate) fn call(
        &self,
        form: CallForm,
        functions: &[Function<'_>],
        reasoning: Option<ReasoningFormat>,
    ) -> Option<Grammar> {
        const ANY: &str = r#"{"type": "object"}"#;
        let around: Vec<(String, String)> = functions.iter().map(|function| form.around(function.name)).collect();
        let grammar = |keeps: bool| {
            let frames: Vec<Frame<'_>> = around
                .iter()
                .zip(functions)
                .map(|((begin, end), function)| {
                    let schema = function.parameters.filter(|_| keeps).unwrap_or(ANY);
                    Frame { begin, schema, end }
                })
                .collect();
            self.answer(Format::Framed(&frames), reasoning)
        };
        if functions.is_empty() {
            return None;
        }
        grammar(true).or_else(|_| grammar(false)).ok()
    }
}
