//! Prompts in tokens: texts, conversations rendered by the model's chat template, and ids as they came.

use super::failure::too_long;
use super::service::TextModel;
use omni_chat_template::RenderError;
use omni_generation::{Chat, GenerationRequest, InvalidRequest, Prompt};
use omni_request_error::Failure;
use std::ops::Range;
use std::sync::Arc;

/// Prompt of one generation.
pub(super) struct PreparedPrompt {
    pub(super) tokens: Arc<[u32]>,
    /// Most tokens of each answer.
    pub(super) max_tokens: usize,
    /// The answer begins inside of reasoning.
    pub(super) in_reasoning: bool,
}

/// Prepares all prompts of a request. Takes as long as their texts do. `longest`: most tokens of a prompt and its answer.
///
/// # Errors
/// A conversation cannot be rendered, a token id is none of the model's, or a prompt has no room.
pub(super) fn prepare(
    text: &TextModel,
    request: &GenerationRequest,
    longest: usize,
    now: u64,
) -> Result<Vec<PreparedPrompt>, Failure> {
    let prepare = |prompt: &Prompt| {
        let (tokens, in_reasoning) = match prompt {
            Prompt::Text(prompt) => (encode(text, prompt, true, &[], "prompt")?, false),
            Prompt::Tokens(tokens) => (tokens.clone(), false),
            Prompt::Chat(chat) => render(text, chat, now)?,
        };
        check_ids(text, &tokens, "prompt")?;
        let asked = request.sampling.max_tokens.map(|most| most as usize);
        let room = longest.saturating_sub(tokens.len());
        if room == 0 || asked.is_some_and(|asked| asked > room) {
            return Err(too_long(tokens.len(), asked.unwrap_or(0), longest));
        }
        Ok(PreparedPrompt { tokens: tokens.into(), max_tokens: asked.unwrap_or(room), in_reasoning })
    };
    request.prompts.iter().map(prepare).collect()
}

/// Tokens of a text. With `framed`, those that begin and end every text of the model are added.
pub(super) fn encode(
    text: &TextModel,
    prompt: &str,
    framed: bool,
    literals: &[Range<usize>],
    parameter: &str,
) -> Result<Vec<u32>, Failure> {
    let tokens = text.tokenizer.encode(prompt, framed, literals);
    let tokens = tokens.map_err(|error| InvalidRequest::new(parameter, error.to_string()))?;
    if tokens.is_empty() {
        return Err(InvalidRequest::new(parameter, format!("`{parameter}` has no tokens")).into());
    }
    Ok(tokens)
}

/// Checks that all ids are the model's.
pub(super) fn check_ids(text: &TextModel, tokens: &[u32], parameter: &str) -> Result<(), Failure> {
    let is_known = |id: &&u32| text.vocabulary.contains(**id) && text.tokenizer.token_bytes(**id).is_some();
    match tokens.iter().find(|id| !is_known(id)) {
        None => Ok(()),
        Some(id) => {
            let most = text.vocabulary.size();
            let message = format!("token id {id} is not in the vocabulary of this model, which has {most} tokens");
            Err(InvalidRequest::new(parameter, message).into())
        }
    }
}

/// Tokens of a conversation, and whether the answer begins inside of reasoning. The template alone says what begins it.
fn render(text: &TextModel, chat: &Chat, now: u64) -> Result<(Vec<u32>, bool), Failure> {
    let Some(template) = &text.template else {
        let why = "the model has no chat template: send a `prompt` to `/v1/completions`";
        return Err(InvalidRequest::unsupported("messages", why).into());
    };
    if chat.offers_tools() && !template.facts(chat).reads_tools {
        let why = "the chat template of this model has no place for tools: it does not call functions";
        return Err(InvalidRequest::unsupported("tools", why).into());
    }
    let rendered = template.render(chat, i64::try_from(now).unwrap_or_default()).map_err(|error| match error {
        RenderError::Refused { message, line: _ } => InvalidRequest::new("messages", message).into(),
        RenderError::Invalid(invalid) => invalid.into(),
        RenderError::Template { .. } | RenderError::OutOfFuel { .. } | RenderError::TooLong { .. } => {
            tracing::warn!(error = omni_log::chain(&error), "the conversation cannot be rendered");
            Failure::Raised
        }
    })?;
    let tokens = encode(text, &rendered.prompt, false, &rendered.literals, "messages")?;
    Ok((tokens, rendered.reasoning_open))
}
