//! Submission of a request for text: checks, prompts, grammar, and the choices that wait for the engine.

use super::choice::Choice;
use super::failure::of_engine;
use super::generation::{Answer, Generation, Repetition};
use super::prompt::{PreparedPrompt, prepare};
use super::service::{Service, TextModel, now};
use crate::engine::{Generation as EngineGeneration, Submission, Work};
use omni_answer::AnswerText;
use omni_generation::guard::GuardLimits;
use omni_generation::{
    Capabilities, Capability, GenerationRequest, InvalidRequest, OutputGuard, Prompt, StopStrings, ToolChoice,
    check_values,
};
use omni_request_error::Failure;
use omni_sampler::{Grammar, Parameters, fresh_seed};
use omni_tool_parser::{CompiledTools, Dialect, Parser, ParserOptions};
use std::sync::Arc;

/// Prompt that is ready for the engine.
struct Ready {
    prompt: PreparedPrompt,
    grammar: Option<Grammar>,
}

/// Submits a request.
///
/// # Errors
/// The model cannot honour it, or too many requests wait.
pub(super) async fn submit(service: &Service, request: GenerationRequest) -> Result<Generation, Failure> {
    check(service, &request)?;
    let request = Arc::new(request);
    let (longest, work) = (service.facts.longest, Arc::clone(&request));
    let ready = service.aside(move |text| ready(text, &work, longest)).await?;
    let has_logprobs = request.logprobs.is_some();
    let mut answers = Vec::with_capacity(ready.len());
    for (Ready { prompt, grammar }, source) in ready.into_iter().zip(&request.prompts) {
        let parameters = parameters(&request);
        let generation = EngineGeneration {
            parameters,
            max_tokens: prompt.max_tokens,
            choices: request.choices,
            grammar,
            prompt_logprobs: request.repeats_tokens(source) && has_logprobs,
        };
        let submission = Submission {
            prompt: Arc::clone(&prompt.tokens),
            work: Work::Generate(Box::new(generation)),
            priority: 0,
            deadline: None,
            root: service.facts.root,
        };
        let events = service.engine.submit(submission).map_err(of_engine)?;
        let repetition = request
            .repeats_tokens(source)
            .then(|| Repetition::new(&service.text, source, &prompt.tokens, has_logprobs));
        let choices = choices(&service.text, &request, source, &prompt);
        answers.push(Answer::new(events, prompt.tokens.len(), choices, repetition));
    }
    Ok(Generation::new(Arc::clone(&service.text), answers))
}

/// Checks what can be checked without the prompt.
fn check(service: &Service, request: &GenerationRequest) -> Result<(), Failure> {
    if request.model != service.facts.name {
        return Err(Failure::NoSuchModel);
    }
    if service.facts.embeds.is_some() {
        let why = "this model makes embeddings, and no text: send its input to `/v1/embeddings`";
        return Err(InvalidRequest::unsupported("model", why).into());
    }
    Capabilities::from_iter(Capability::NATIVE).check(request)?;
    Ok(check_values(request)?)
}

/// Prompts and grammars. Takes as long as the client's texts and schemas do.
fn ready(text: &TextModel, request: &GenerationRequest, longest: usize) -> Result<Vec<Ready>, Failure> {
    let prompts = prepare(text, request, longest, now())?.into_iter().zip(&request.prompts);
    let ready = prompts.map(|(prompt, source)| {
        let grammar = text.grammar(&request.format, source, prompt.in_reasoning)?;
        Ok(Ready { prompt, grammar })
    });
    ready.collect()
}

fn parameters(request: &GenerationRequest) -> Parameters {
    let (sampling, default) = (&request.sampling, Parameters::default());
    Parameters {
        temperature: sampling.temperature.unwrap_or(default.temperature),
        top_k: sampling.top_k,
        top_p: sampling.top_p.unwrap_or(default.top_p),
        min_p: sampling.min_p.unwrap_or(default.min_p),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: sampling.presence_penalty.unwrap_or(default.presence_penalty),
        repetition_penalty: sampling.repetition_penalty.unwrap_or(default.repetition_penalty),
        logit_bias: sampling.logit_bias.clone(),
        min_tokens: sampling.min_tokens.unwrap_or(default.min_tokens),
        ignore_eos: sampling.ignore_eos,
        seed: sampling.seed.map(i64::cast_unsigned),
        logprobs: request.logprobs,
        ..default
    }
}

/// Choices of one prompt.
fn choices(text: &TextModel, request: &GenerationRequest, source: &Prompt, prompt: &PreparedPrompt) -> Vec<Choice> {
    let stop = StopStrings::new(&request.stop);
    let tools = match source {
        Prompt::Chat(chat) => Arc::new(CompiledTools::new(&chat.tools)),
        Prompt::Text(_) | Prompt::Tokens(_) => Arc::default(),
    };
    let choice = |_| {
        let limits = GuardLimits {
            stop: stop.clone(),
            pieces: None,
            prompt_tokens: prompt.tokens.len() as u64,
            tokens: request.logprobs.is_some(),
        };
        let (dialect, options, shows_special) = match source {
            Prompt::Chat(chat) => {
                let options = ParserOptions {
                    tools: Arc::clone(&tools),
                    tool_choice: chat.tool_choice.clone(),
                    parallel_tool_calls: chat.parallel_tool_calls,
                    reasoning: text.reasoning,
                    starts_in_reasoning: prompt.in_reasoning,
                    id_seed: fresh_seed(),
                    earlier_calls: chat.messages.iter().map(|message| message.tool_calls.len()).sum(),
                };
                // Marks of reasoning and of calls may be control tokens.
                let marked = chat.offers_tools() || text.reasoning.is_some() || text.dialect == Dialect::Harmony;
                (text.dialect, options, marked)
            }
            Prompt::Text(_) | Prompt::Tokens(_) => {
                (Dialect::None, ParserOptions { tool_choice: ToolChoice::None, ..ParserOptions::default() }, false)
            }
        };
        Choice::new(AnswerText::new(OutputGuard::new(limits), Parser::new(dialect, options)), shows_special)
    };
    (0..request.choices).map(choice).collect()
}
