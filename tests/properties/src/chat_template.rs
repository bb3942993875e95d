//! Chat templates: any source and any text end, without a panic; literal texts are where they are said to be, and are none any
//! more in the neutralised prompt.

use omni_chat_template::{ChatTemplate, RenderError, TemplateSource, lint};
use omni_generation::{Chat, Content, Message, Role, TemplateOptions, ToolCall, ToolChoice};

/// Between the source of the template, the user's text and the arguments of a call.
const SEPARATOR: u8 = 0;

/// Renders a conversation by a template.
///
/// # Panics
///
/// A render panics, or its literal texts are not as they should be.
pub fn holds(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == SEPARATOR).map(String::from_utf8_lossy);
    let (source, text, arguments) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let source = TemplateSource { jinja: source.as_deref(), tokenizer_config: None };
    let Ok(template) = ChatTemplate::new(&source) else { return };
    for continued in [false, true] {
        let chat = conversation(&text, &arguments, continued);
        match template.render(&chat, 0) {
            Ok(rendered) => {
                let mut end = 0;
                for range in &rendered.literals {
                    assert!(end <= range.start && range.start < range.end, "out of order: {:?}", rendered.literals);
                    let literal = rendered.prompt.get(range.clone()).expect("whole characters");
                    assert!(!template.control_tokens().find(literal).is_empty(), "no control token: {literal:?}");
                    end = range.end;
                }
                let neutral = template.neutralised(&rendered);
                assert_eq!(neutral.replace('\u{200b}', ""), rendered.prompt.replace('\u{200b}', ""));
                assert_eq!(template.render(&chat, 0).ok().as_ref(), Some(&rendered), "another prompt");
            }
            Err(RenderError::Template { line, message }) => assert_ne!(line, 0, "a panic: {message}"),
            Err(_) => {}
        }
    }
    assert!(lint(&source).is_ok());
}

fn conversation(text: &str, arguments: &str, continued: bool) -> Chat {
    let mut calling = Message::text(Role::Assistant, "");
    calling.content = Content::Absent;
    let call = ToolCall { id: Some("call_0".to_owned()), name: "f".to_owned(), arguments: arguments.to_owned() };
    calling.tool_calls = vec![call];
    let mut result = Message::text(Role::Tool, text);
    result.tool_call_id = Some("call_0".to_owned());
    let mut answer = Message::text(Role::Assistant, text);
    answer.reasoning = Some(text.to_owned());
    Chat {
        messages: vec![Message::text(Role::System, text), Message::text(Role::User, text), calling, result, answer],
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        template: TemplateOptions { continue_final_message: continued, ..TemplateOptions::default() },
    }
}
