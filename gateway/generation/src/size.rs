//! Memory of a request that was parsed: small values take many times the bytes of their JSON.

use crate::message::{Content, Message, Part, Tool, ToolCall};
use crate::request::{Chat, GenerationRequest, Prompt, ResponseFormat};

/// Bytes that an allocation takes beside its content.
const ALLOCATION: u64 = 16;

impl GenerationRequest {
    /// Bytes of memory that the request takes, roughly.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let biases = list::<(u32, f32)>(self.sampling.logit_bias.len());
        let texts = text(&self.model) + self.session.as_deref().map_or(0, text);
        self.prompts.iter().map(of_prompt).sum::<u64>() + strings(&self.stop) + self.format.bytes() + biases + texts
    }
}

impl ResponseFormat {
    /// Bytes of memory that the format takes beside itself, roughly.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Text | Self::JsonObject => 0,
            Self::JsonSchema { name, schema } => text(name) + text(schema.get()),
        }
    }
}

fn of_prompt(prompt: &Prompt) -> u64 {
    let content = match prompt {
        Prompt::Chat(chat) => of_chat(chat),
        Prompt::Text(prompt) => text(prompt),
        Prompt::Tokens(tokens) => list::<u32>(tokens.len()),
    };
    size_of::<Prompt>() as u64 + content
}

fn of_chat(chat: &Chat) -> u64 {
    let messages = list::<Message>(chat.messages.len()) + chat.messages.iter().map(of_message).sum::<u64>();
    let tools = list::<Tool>(chat.tools.len()) + chat.tools.iter().map(of_tool).sum::<u64>();
    let variables = chat.template.variables.iter().map(|(name, value)| pair(name, value.get())).sum::<u64>();
    size_of::<Chat>() as u64 + messages + tools + variables
}

fn of_message(message: &Message) -> u64 {
    let content = match &message.content {
        Content::Absent => 0,
        Content::Text(content) => text(content),
        Content::Parts(parts) => list::<Part>(parts.len()) + parts.iter().map(of_part).sum::<u64>(),
    };
    let texts = [&message.name, &message.reasoning, &message.tool_call_id].into_iter().flatten();
    let calls = list::<ToolCall>(message.tool_calls.len()) + message.tool_calls.iter().map(of_call).sum::<u64>();
    let extra = message.extra.iter().map(|(name, value)| pair(name, value.get())).sum::<u64>();
    content + texts.map(|value| text(value)).sum::<u64>() + calls + extra
}

fn of_part(part: &Part) -> u64 {
    match part {
        Part::Text(content) | Part::Image { url: content } => text(content),
        Part::Audio { data, format } => text(data) + text(format),
    }
}

fn of_call(call: &ToolCall) -> u64 {
    call.id.as_deref().map_or(0, text) + text(&call.name) + text(&call.arguments)
}

fn of_tool(tool: &Tool) -> u64 {
    text(&tool.name) + tool.parameters.as_ref().map_or(0, |schema| text(schema.get())) + text(tool.definition.get())
}

fn pair(name: &str, value: &str) -> u64 {
    size_of::<(String, Box<str>)>() as u64 + text(name) + text(value)
}

fn strings(texts: &[String]) -> u64 {
    list::<String>(texts.len()) + texts.iter().map(|content| text(content)).sum::<u64>()
}

fn list<T>(length: usize) -> u64 {
    if length == 0 { 0 } else { (length * size_of::<T>()) as u64 + ALLOCATION }
}

fn text(text: &str) -> u64 {
    if text.is_empty() { 0 } else { text.len() as u64 + ALLOCATION }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;
    use crate::request::{Sampling, TemplateOptions};
    use std::sync::Arc;

    fn request(prompts: Vec<Prompt>) -> GenerationRequest {
        GenerationRequest {
            model: "m".to_owned(),
            prompts,
            choices: 1,
            sampling: Sampling::default(),
            stop: Vec::new(),
            format: ResponseFormat::Text,
            logprobs: None,
            echo: false,
            stream: false,
            stream_usage: false,
            session: None,
        }
    }

    fn chat(messages: Vec<Message>) -> Prompt {
        let (tools, template) = (Vec::new(), TemplateOptions::default());
        let tool_choice = crate::message::ToolChoice::Auto;
        Prompt::Chat(Arc::new(Chat { messages, tools, tool_choice, parallel_tool_calls: true, template }))
    }

    #[test]
    fn large_texts_take_their_length_and_small_values_more() {
        let of = |prompts| request(prompts).bytes();
        let empty = of(vec![]);
        let large = of(vec![Prompt::Text("x".repeat(100_000))]) - empty;
        assert!((100_000..100_200).contains(&large), "{large}");
        let tokens = of(vec![Prompt::Tokens(vec![1; 1000])]) - empty;
        assert!((4000..4200).contains(&tokens), "{tokens}");
        let messages = of(vec![chat(vec![Message::text(Role::User, "x"); 1000])]) - empty;
        assert!((100_000..400_000).contains(&messages), "{messages}: a message has many fields");
    }

    #[test]
    fn every_text_of_a_client_counts() {
        let long = "x".repeat(10_000);
        let json = || serde_json::value::to_raw_value(&long).unwrap();
        let call = ToolCall { id: Some(long.clone()), name: long.clone(), arguments: long.clone() };
        let parts = vec![
            Part::Text(long.clone()),
            Part::Image { url: long.clone() },
            Part::Audio { data: long.clone(), format: long.clone() },
        ];
        let message = Message {
            role: Role::Tool,
            content: Content::Parts(parts),
            name: Some(long.clone()),
            reasoning: Some(long.clone()),
            tool_calls: vec![call],
            tool_call_id: Some(long.clone()),
            extra: vec![(long.clone(), json())],
        };
        let tool = Tool { name: long.clone(), parameters: Some(json()), definition: json() };
        let mut with = Chat {
            messages: vec![message],
            tools: vec![tool],
            tool_choice: crate::message::ToolChoice::Auto,
            parallel_tool_calls: true,
            template: TemplateOptions::default(),
        };
        with.template.variables.push((long.clone(), json()));
        let mut request = request(vec![Prompt::Chat(Arc::new(with))]);
        request.stop = vec![long.clone()];
        request.session = Some(long.clone());
        request.format = ResponseFormat::JsonSchema { name: long.clone(), schema: json() };
        let texts = 4 + 3 + 3 + 2 + 3 + 2 + 1 + 1 + 2;
        let bytes = request.bytes();
        assert!((texts * 10_000..(texts + 1) * 10_000).contains(&bytes), "{bytes} of {texts} texts");
    }
}
