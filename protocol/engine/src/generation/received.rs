//! Body of a request for generated text, as an engine in Rust reads it.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Body of a request with a rendered prompt, or with tokens: what a node sends to a model whose conversations it renders.
/// Fields as in [`GenerationInput`](super::GenerationInput); messages and what renders them are not read.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub struct ReceivedGeneration {
    /// Rendered prompt.
    pub prompt: Option<String>,
    /// Tokens of the model's own vocabulary.
    pub prompt_tokens: Option<Vec<u32>>,
    /// Ranges of bytes of `prompt` that are plain text.
    pub literals: Vec<(usize, usize)>,
    /// Tools.
    pub tools: Vec<ReceivedTool>,
    /// Choice between text and tool calls.
    pub tool_choice: ReceivedToolChoice,
    /// Sampling.
    pub sampling: ReceivedSampling,
    /// Form of the answer.
    pub response_format: Option<ReceivedFormat>,
    /// Number of alternatives for each token; `None`: no log probabilities.
    pub logprobs: Option<u8>,
    /// Repetition of the prompt's tokens before the answer.
    pub echo: bool,
}

/// Tool, in the form of the OpenAI API.
#[derive(Debug, Clone, Deserialize)]
pub struct ReceivedTool {
    /// Function.
    pub function: ReceivedFunction,
}

/// Function of a tool.
#[derive(Debug, Clone, Deserialize)]
pub struct ReceivedFunction {
    /// Name.
    pub name: String,
    /// JSON Schema of its arguments.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
}

/// Choice between text and tool calls, as in [`ToolChoiceInput`](super::ToolChoiceInput).
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "ToolChoiceForm")]
#[allow(missing_docs, reason = "the names of `ToolChoiceInput`")]
pub enum ReceivedToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// Form of a choice in JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum ToolChoiceForm {
    Word(ToolChoiceWord),
    Tool { function: NamedFunction },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToolChoiceWord {
    Auto,
    None,
    Required,
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
}

impl From<ToolChoiceForm> for ReceivedToolChoice {
    fn from(form: ToolChoiceForm) -> Self {
        match form {
            ToolChoiceForm::Word(ToolChoiceWord::Auto) => Self::Auto,
            ToolChoiceForm::Word(ToolChoiceWord::None) => Self::None,
            ToolChoiceForm::Word(ToolChoiceWord::Required) => Self::Required,
            ToolChoiceForm::Tool { function } => Self::Named(function.name),
        }
    }
}

/// Sampling parameters, as in [`SamplingInput`](super::SamplingInput).
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names and bounds of `SamplingInput`")]
pub struct ReceivedSampling {
    pub max_tokens: Option<u32>,
    pub min_tokens: Option<u32>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<i64>,
    pub logit_bias: Vec<(u32, f32)>,
    pub ignore_eos: bool,
}

/// Form of an answer that is not any text.
#[derive(Debug, Clone, Deserialize)]
pub struct ReceivedFormat {
    /// Kind of the form.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// JSON Schema of [`FormatKind::JsonSchema`].
    pub schema: Option<Box<RawValue>>,
}

/// Kind of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatKind {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema,
}

#[cfg(test)]
mod tests {
    use super::super::{GenerationInput, ResponseFormatInput, SamplingInput, ToolChoiceInput};
    use super::*;

    #[test]
    fn what_a_node_sends_is_what_an_engine_reads() {
        let schema = RawValue::from_string(r#"{"type":"string"}"#.to_owned()).unwrap();
        let sampling = SamplingInput {
            max_tokens: Some(1),
            min_tokens: Some(2),
            temperature: Some(0.25),
            top_p: Some(0.5),
            top_k: Some(3),
            min_p: Some(0.125),
            frequency_penalty: Some(1.0),
            presence_penalty: Some(-1.0),
            repetition_penalty: Some(2.0),
            seed: Some(-4),
            logit_bias: &[(5, -6.0)],
            ignore_eos: true,
        };
        let input = GenerationInput {
            prompt: Some("a prompt"),
            literals: &[(2, 5)],
            sampling,
            response_format: Some(ResponseFormatInput::JsonSchema { schema: &schema }),
            logprobs: Some(7),
            echo: true,
            stream: true,
            ..GenerationInput::default()
        };
        let received: ReceivedGeneration = serde_json::from_slice(&serde_json::to_vec(&input).unwrap()).unwrap();
        assert_eq!((received.prompt.as_deref(), received.prompt_tokens), (Some("a prompt"), None));
        assert_eq!((received.literals.as_slice(), received.logprobs), ([(2, 5)].as_slice(), Some(7)));
        assert!(received.echo);
        let expected = ReceivedSampling {
            max_tokens: Some(1),
            min_tokens: Some(2),
            temperature: Some(0.25),
            top_p: Some(0.5),
            top_k: Some(3),
            min_p: Some(0.125),
            frequency_penalty: Some(1.0),
            presence_penalty: Some(-1.0),
            repetition_penalty: Some(2.0),
            seed: Some(-4),
            logit_bias: vec![(5, -6.0)],
            ignore_eos: true,
        };
        assert_eq!(received.sampling, expected);
        let format = received.response_format.unwrap();
        assert_eq!((format.kind, format.schema.unwrap().get()), (FormatKind::JsonSchema, schema.get()));
        let tokens = GenerationInput { prompt_tokens: Some(&[8, 9]), ..GenerationInput::default() };
        let received: ReceivedGeneration = serde_json::from_slice(&serde_json::to_vec(&tokens).unwrap()).unwrap();
        assert_eq!((received.prompt_tokens, received.echo), (Some(vec![8, 9]), false));
        assert_eq!(received.sampling, ReceivedSampling::default());
    }

    #[test]
    fn tools_and_the_choice_between_them_are_read() {
        let tool =
            RawValue::from_string(r#"{"type":"function","function":{"name":"f","parameters":{"a":1}}}"#.to_owned());
        let bare = RawValue::from_string(r#"{"type":"function","function":{"name":"g","parameters":null}}"#.to_owned());
        let (tool, bare) = (tool.unwrap(), bare.unwrap());
        for (choice, expected) in [
            (ToolChoiceInput::Auto, ReceivedToolChoice::Auto),
            (ToolChoiceInput::None, ReceivedToolChoice::None),
            (ToolChoiceInput::Required, ReceivedToolChoice::Required),
            (ToolChoiceInput::Named("g"), ReceivedToolChoice::Named("g".to_owned())),
        ] {
            let input =
                GenerationInput { tools: vec![&*tool, &*bare], tool_choice: choice, ..GenerationInput::default() };
            let received: ReceivedGeneration = serde_json::from_slice(&serde_json::to_vec(&input).unwrap()).unwrap();
            assert_eq!(received.tool_choice, expected);
            let functions: Vec<_> = received
                .tools
                .iter()
                .map(|tool| (tool.function.name.as_str(), tool.function.parameters.as_deref().map(RawValue::get)))
                .collect();
            assert_eq!(functions, [("f", Some(r#"{"a":1}"#)), ("g", None)]);
        }
    }
}
