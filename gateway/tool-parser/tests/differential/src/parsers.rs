//! The parsers that are compared: ours, those of SMG, those of Dynamo. A text goes through each whole and in pieces.

use crate::answer::Answer;
use crate::forms::{Form, tools};
use dynamo_parsers::jail::{Annotated, JailedStream};
use dynamo_parsers::parsers::detect_and_parse_tool_call_with_recovery;
use dynamo_parsers::{ReasoningParser as _, ReasoningParserType, ToolDefinition};
use dynamo_protocols::types::{
    ChatChoiceStream, ChatCompletionMessageContent, ChatCompletionStreamResponseDelta,
    CreateChatCompletionStreamResponse, FinishReason,
};
use futures::StreamExt;
use omni_generation::{Choice, Tool};
use omni_tool_parser::{CompiledTools, Parser, ParserOptions};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parsers of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Other {
    Smg,
    Dynamo,
}

/// Answer, or the reason why there is none.
pub(crate) type Parsed = Result<Answer, String>;

/// Runs pieces through our parser.
pub(crate) fn ours(form: &Form, open: bool, pieces: &[&str]) -> Answer {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
    let tool = |(name, schema): (&str, serde_json::Value)| Tool {
        name: name.to_owned(),
        parameters: Some(raw(&schema.to_string())),
        definition: raw("{}"),
    };
    let options = ParserOptions {
        tools: Arc::new(CompiledTools::new(&tools().into_iter().map(tool).collect::<Vec<_>>())),
        reasoning: form.reasoning,
        starts_in_reasoning: open,
        ..ParserOptions::default()
    };
    let mut parser = Parser::new(form.dialect, options);
    let mut out = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut out);
    }
    parser.finish(&mut out);
    let mut choice = Choice::default();
    choice.extend(&out, &[]);
    let calls = choice.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
    Answer { reasoning: choice.reasoning, content: choice.content, calls }
}

impl Other {
    pub(crate) const ALL: [Self; 2] = [Self::Smg, Self::Dynamo];

    /// Returns true if the parsers of this one know a form.
    pub(crate) fn knows(self, form: &Form) -> bool {
        self.names(form).iter().any(Option::is_some)
    }

    fn names(self, form: &Form) -> [Option<&'static str>; 2] {
        match self {
            Self::Smg => form.smg,
            Self::Dynamo => form.dynamo,
        }
    }

    /// Parses a text as a server does that has all of it (one piece), or as it comes.
    pub(crate) async fn parse(self, form: &Form, open: bool, pieces: &[&str]) -> Parsed {
        let names = self.names(form);
        match (self, pieces) {
            (Self::Smg, [whole]) => smg_whole(names, open, whole).await,
            (Self::Smg, _) => smg_stream(names, open, pieces).await,
            (Self::Dynamo, [whole]) => dynamo_whole(names, open, whole).await,
            (Self::Dynamo, _) => Ok(dynamo_stream(names, open, pieces).await),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn smg_tools() -> Vec<openai_protocol::common::Tool> {
    let tool = |(name, parameters)| {
        let tool = serde_json::json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        serde_json::from_value(tool).expect("a tool")
    };
    tools().into_iter().map(tool).collect()
}

fn smg_reasoning(name: &str, open: bool) -> Box<dyn reasoning_parser::ReasoningParser> {
    let mut parser =
        reasoning_parser::ParserFactory::new().registry().create_parser(name).expect("a parser of reasoning");
    if open {
        parser.mark_reasoning_started();
        parser.mark_think_start_stripped();
    }
    parser
}

fn smg_calls(name: &str) -> Box<dyn tool_parser::ToolParser> {
    tool_parser::ParserFactory::new().registry().create_parser(name).expect("a parser of calls")
}

async fn smg_whole([calls, reasoning]: [Option<&str>; 2], open: bool, whole: &str) -> Parsed {
    let mut answer = Answer { content: whole.to_owned(), ..Answer::default() };
    if let Some(name) = reasoning {
        let found = smg_reasoning(name, open).detect_and_parse_reasoning(whole).map_err(text)?;
        (answer.reasoning, answer.content) = (found.reasoning_text, found.normal_text);
    }
    if let Some(name) = calls {
        let (content, calls) =
            smg_calls(name).parse_complete_with_tools(&answer.content, &smg_tools()).await.map_err(text)?;
        answer.content = content;
        answer.calls = calls.into_iter().map(|call| (call.function.name, call.function.arguments)).collect();
    }
    Ok(answer)
}

async fn smg_stream([calls, reasoning]: [Option<&str>; 2], open: bool, pieces: &[&str]) -> Parsed {
    let mut answer = Answer::default();
    let tools = smg_tools();
    let mut reasoning = reasoning.map(|name| smg_reasoning(name, open));
    let mut calls = calls.map(smg_calls);
    let mut items = Vec::new();
    for at in 0..=pieces.len() {
        let mut normal = pieces.get(at).copied().unwrap_or_default().to_owned();
        if let Some(parser) = &mut reasoning {
            let found = match pieces.get(at) {
                Some(piece) => parser.parse_reasoning_streaming_incremental(piece),
                None => parser.flush(),
            };
            let found = found.map_err(text)?;
            answer.reasoning.push_str(&found.reasoning_text);
            normal = found.normal_text;
        }
        match &mut calls {
            Some(parser) if !normal.is_empty() => {
                let found = parser.parse_incremental(&normal, &tools).await.map_err(text)?;
                answer.content.push_str(&found.normal_text);
                items.extend(found.calls);
            }
            Some(_) => {}
            None => answer.content.push_str(&normal),
        }
    }
    if let Some(parser) = &mut calls {
        items.extend(parser.get_unstreamed_tool_args().unwrap_or_default());
        answer.content.push_str(&parser.take_unstreamed_normal_text());
    }
    let mut by_index: BTreeMap<usize, (String, String)> = BTreeMap::new();
    for item in items {
        let call = by_index.entry(item.tool_index).or_default();
        call.0.push_str(&item.name.unwrap_or_default());
        call.1.push_str(&item.parameters);
    }
    answer.calls = by_index.into_values().collect();
    Ok(answer)
}

fn dynamo_tools() -> Vec<ToolDefinition> {
    let tool = |(name, parameters): (&str, _)| ToolDefinition {
        name: name.to_owned(),
        parameters: Some(parameters),
        strict: None,
    };
    tools().into_iter().map(tool).collect()
}

async fn dynamo_whole([calls, reasoning]: [Option<&str>; 2], open: bool, whole: &str) -> Parsed {
    let mut answer = Answer { content: whole.to_owned(), ..Answer::default() };
    if let Some(name) = reasoning {
        let mut parser = ReasoningParserType::get_reasoning_parser_from_name(name);
        parser.set_in_reasoning(open);
        let found = parser.detect_and_parse_reasoning(whole, &[]);
        answer.reasoning = found.reasoning_text;
        // The parser of gpt-oss leaves calls out of its text: that of calls has the whole.
        if name != "gpt_oss" {
            answer.content = found.normal_text;
        }
    }
    if calls.is_some() {
        let tools = dynamo_tools();
        let found = detect_and_parse_tool_call_with_recovery(&answer.content, calls, Some(&tools)).await;
        let (calls, content) = found.map_err(text)?;
        answer.content = content.unwrap_or_default();
        answer.calls = calls.into_iter().map(|call| (call.function.name, call.function.arguments)).collect();
    }
    Ok(answer)
}

/// A piece of a stream; `None` is its end.
fn dynamo_piece(content: Option<String>) -> Annotated<CreateChatCompletionStreamResponse> {
    let finish_reason = content.is_none().then_some(FinishReason::Stop);
    #[allow(deprecated, reason = "a field of the foreign type")]
    let delta = ChatCompletionStreamResponseDelta {
        role: None,
        content: content.map(ChatCompletionMessageContent::Text),
        tool_calls: None,
        function_call: None,
        refusal: None,
        reasoning_content: None,
    };
    let data = CreateChatCompletionStreamResponse {
        id: String::new(),
        choices: vec![ChatChoiceStream { index: 0, delta, finish_reason, logprobs: None }],
        created: 0,
        model: String::new(),
        system_fingerprint: None,
        object: String::new(),
        usage: None,
        service_tier: None,
    };
    Annotated { data: Some(data), id: None, event: None, comment: None, error: None }
}

async fn dynamo_stream([calls, reasoning]: [Option<&str>; 2], open: bool, pieces: &[&str]) -> Answer {
    let mut answer = Answer::default();
    let mut normal: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
    if let Some(name) = reasoning {
        let mut parser = ReasoningParserType::get_reasoning_parser_from_name(name);
        parser.set_in_reasoning(open);
        let mut found: Vec<_> =
            pieces.iter().map(|piece| parser.parse_reasoning_streaming_incremental(piece, &[])).collect();
        found.push(parser.finish_reasoning_stream());
        answer.reasoning = found.iter().map(|found| found.reasoning_text.as_str()).collect();
        normal = found.into_iter().map(|found| found.normal_text).collect();
    }
    let Some(parser) = calls else {
        answer.content = normal.concat();
        return answer;
    };
    let pieces = normal.into_iter().map(Some).chain([None]).map(dynamo_piece);
    let pieces: Vec<_> = pieces.collect();
    let jail = JailedStream::builder().tool_call_parser(parser).tool_definitions(dynamo_tools()).build();
    let mut by_index: BTreeMap<u32, (String, String)> = BTreeMap::new();
    let out: Vec<_> = jail.apply(futures::stream::iter(pieces)).collect().await;
    for delta in out.into_iter().filter_map(|piece| piece.data).flat_map(|data| data.choices).map(|choice| choice.delta)
    {
        if let Some(ChatCompletionMessageContent::Text(text)) = delta.content {
            answer.content.push_str(&text);
        }
        for part in delta.tool_calls.unwrap_or_default() {
            let call = by_index.entry(part.index).or_default();
            let function = part.function;
            call.0.push_str(&function.as_ref().and_then(|function| function.name.clone()).unwrap_or_default());
            call.1.push_str(&function.and_then(|function| function.arguments).unwrap_or_default());
        }
    }
    answer.calls = by_index.into_values().collect();
    answer
}
