//! Parameters that engines honour. A request that asks for another one is refused, never answered without it.

use crate::message::{Content, Part};
use crate::request::{GenerationRequest, Prompt, ResponseFormat};
pub use omni_config::manifest::Capability;
use omni_request_error::InvalidRequest;

/// Set of capabilities of one model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities(Vec<Capability>);

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

impl Capabilities {
    /// Returns true if the model has this capability.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// Checks that the model can honour all of a request. Values that change nothing (a penalty of 0) are no demand.
    ///
    /// # Errors
    /// The first parameter that it cannot honour.
    pub fn check(&self, request: &GenerationRequest) -> Result<(), InvalidRequest> {
        let sampling = &request.sampling;
        let is = |value: Option<f32>, neutral: f32| value.is_none_or(|value| (value - neutral).abs() < f32::EPSILON);
        let parts = request.prompts.iter().flat_map(|prompt| match prompt {
            Prompt::Chat(chat) => chat.messages.as_slice(),
            Prompt::Text(_) | Prompt::Tokens(_) => &[],
        });
        let parts: Vec<&Part> = parts
            .flat_map(|message| match &message.content {
                Content::Parts(parts) => parts.as_slice(),
                Content::Absent | Content::Text(_) => &[],
            })
            .collect();
        let tokens = request.prompts.iter().any(|prompt| matches!(prompt, Prompt::Tokens(_)));
        let repeats_tokens = request.prompts.iter().any(|prompt| request.repeats_tokens(prompt));
        let demands = [
            (repeats_tokens, Capability::PromptTokens, "echo"),
            (sampling.seed.is_some(), Capability::Seed, "seed"),
            (request.logprobs.is_some(), Capability::Logprobs, "logprobs"),
            (!sampling.logit_bias.is_empty(), Capability::LogitBias, "logit_bias"),
            (sampling.min_tokens.is_some_and(|least| least > 0), Capability::MinTokens, "min_tokens"),
            (sampling.top_k.is_some(), Capability::TopK, "top_k"),
            (!is(sampling.min_p, 0.0), Capability::MinP, "min_p"),
            (!is(sampling.frequency_penalty, 0.0), Capability::Penalties, "frequency_penalty"),
            (!is(sampling.presence_penalty, 0.0), Capability::Penalties, "presence_penalty"),
            (!is(sampling.repetition_penalty, 1.0), Capability::RepetitionPenalty, "repetition_penalty"),
            (sampling.ignore_eos, Capability::IgnoreEos, "ignore_eos"),
            (tokens, Capability::TokenPrompts, "prompt"),
            (parts.iter().any(|part| matches!(part, Part::Image { .. })), Capability::Images, "messages"),
            (parts.iter().any(|part| matches!(part, Part::Audio { .. })), Capability::Audio, "messages"),
        ];
        match demands.into_iter().find(|(asked, capability, _)| *asked && !self.has(*capability)) {
            None => Ok(()),
            Some((_, capability, parameter)) => {
                Err(InvalidRequest::unsupported(parameter, refusal(capability, parameter)))
            }
        }
    }

    /// Returns true if the engine itself keeps the answer to this form; the node validates it otherwise.
    #[must_use]
    pub fn constrains(&self, format: &ResponseFormat) -> bool {
        match format {
            ResponseFormat::Text => true,
            ResponseFormat::JsonObject => self.has(Capability::JsonObject),
            ResponseFormat::JsonSchema { .. } => self.has(Capability::JsonSchema),
        }
    }
}

fn refusal(capability: Capability, parameter: &str) -> String {
    match capability {
        Capability::TokenPrompts => "this model takes text, not token ids".to_owned(),
        Capability::Images => "this model takes no images".to_owned(),
        Capability::Audio => "this model takes no audio".to_owned(),
        Capability::PromptTokens => {
            "this model repeats a prompt (`echo`) only if it is text, and without `logprobs`: leave `echo` out"
                .to_owned()
        }
        Capability::Seed
        | Capability::Logprobs
        | Capability::LogitBias
        | Capability::MinTokens
        | Capability::MaxTokens
        | Capability::TopK
        | Capability::MinP
        | Capability::Penalties
        | Capability::RepetitionPenalty
        | Capability::IgnoreEos
        | Capability::LiteralRanges
        | Capability::JsonObject
        | Capability::JsonSchema => format!("this model does not support `{parameter}`: leave it out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Sampling;

    #[test]
    fn a_repeated_prompt_is_a_demand_where_its_tokens_are_needed() {
        let (text, tokens) = (Prompt::Text("a".to_owned()), Prompt::Tokens(vec![1]));
        let all_else = Capabilities::from_iter([Capability::Logprobs, Capability::TokenPrompts]);
        let native = Capabilities::from_iter(Capability::NATIVE);
        for (prompt, echo, logprobs, parameter) in [
            (&text, true, None, None),
            (&text, false, Some(1), None),
            (&text, true, Some(0), Some("echo")),
            (&tokens, false, Some(0), None),
            (&tokens, true, None, Some("echo")),
            (&tokens, true, Some(5), Some("echo")),
        ] {
            let request = GenerationRequest {
                model: "m".to_owned(),
                prompts: vec![prompt.clone()],
                choices: 1,
                sampling: Sampling::default(),
                stop: Vec::new(),
                format: ResponseFormat::Text,
                logprobs,
                echo,
                stream: false,
                stream_usage: false,
                session: None,
            };
            let refused = all_else.check(&request).err().and_then(|refusal| refusal.parameter);
            assert_eq!(refused.as_deref(), parameter, "{prompt:?}, {echo}, {logprobs:?}");
            assert_eq!(native.check(&request), Ok(()));
        }
    }
}
