//! Facts about a template, found by rendering small conversations when it is loaded.
//!
//! Templates disagree on the form of a conversation: 140 of 882 real ones need the arguments of a call as an object, 10 as text.
//! A probe renders each form with a word that no template has, and looks for the word in the prompt.

use crate::syntax::survey::Survey;
use omni_generation::{Chat, Content, Message, Part, Role, TemplateOptions, Tool, ToolCall, ToolChoice};
use serde_json::value::RawValue;

/// Form of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Contents {
    /// Text alone: text parts are joined by newlines.
    #[default]
    Text,
    /// Text, or parts as they are.
    Any,
    /// Parts alone: a text becomes one part.
    Parts,
}

/// Form of the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arguments {
    /// Object.
    #[default]
    Object,
    /// JSON text.
    Text,
}

/// Form of a content that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Absent {
    /// No such field.
    #[default]
    Omitted,
    /// Empty text.
    Empty,
    /// `none`.
    Null,
}

/// Form of the ids of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallIds {
    /// Any text.
    #[default]
    Any,
    /// Nine letters and digits.
    NineCharacters,
}

/// Facts about a template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Contents of system messages.
    pub system: Contents,
    /// Contents of the user.
    pub user: Contents,
    /// Contents of the assistant.
    pub assistant: Contents,
    /// Contents of tool results.
    pub tool: Contents,
    /// Messages of the role `developer` are printed; they become system messages otherwise.
    pub renders_developer: bool,
    /// Arguments of calls.
    pub arguments: Arguments,
    /// Absent contents beside calls.
    pub absent: Absent,
    /// Absent contents of messages without calls.
    pub absent_alone: Absent,
    /// Ids of calls.
    pub call_ids: CallIds,
    /// Results of tools must have the tool's name.
    pub needs_tool_name: bool,
    /// Calls in the history are printed.
    pub renders_calls: bool,
    /// Offered tools are printed.
    pub renders_tools: bool,
    /// The template reads `tools`.
    pub reads_tools: bool,
    /// The template reads `documents`.
    pub reads_documents: bool,
    /// Fields of a message in which the template looks for reasoning.
    pub reasoning: Vec<&'static str>,
}

impl Facts {
    /// Form of the contents of a role.
    #[must_use]
    pub fn contents(&self, role: Role) -> Contents {
        match role {
            Role::System | Role::Developer => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
            Role::Tool => self.tool,
        }
    }
}

/// Words of probes.
const CONTENT: &str = "Kestrel7 content";
const VALUE: &str = "Kestrel7 value";
const TOOL: &str = "kestrel7_tool";

/// Renders a probe with the facts that are tried; `None` if that fails.
type Render<'a> = &'a dyn Fn(&Chat, &Facts) -> Option<String>;

/// Finds the facts.
pub(crate) fn probe(survey: &Survey, render: Render<'_>) -> Facts {
    let mut facts = Facts { absent: Absent::Empty, absent_alone: Absent::Empty, ..Facts::default() };
    facts.reasoning =
        ["reasoning_content", "thinking", "reasoning"].into_iter().filter(|name| survey.mentions(name)).collect();
    facts.reads_tools = survey.names.contains("tools");
    facts.reads_documents = survey.names.contains("documents");
    facts.user = contents(render, &facts, Role::User);
    facts.system = contents(render, &facts, Role::System);
    facts.assistant = contents(render, &facts, Role::Assistant);
    probe_calls(render, &mut facts);
    facts.tool = contents(render, &facts, Role::Tool);
    let mut silent = message(Role::Assistant, false);
    silent.content = Content::Absent;
    let silent = chat(vec![Message::text(Role::User, "hello"), silent, Message::text(Role::User, "hello")]);
    let forms = [Absent::Omitted, Absent::Empty, Absent::Null].into_iter();
    let mut forms = forms.filter(|form| render(&silent, &Facts { absent_alone: *form, ..facts.clone() }).is_some());
    facts.absent_alone = forms.next().unwrap_or(Absent::Empty);
    let developer = chat(vec![message(Role::Developer, false), Message::text(Role::User, "hello")]);
    let as_developer = Facts { renders_developer: true, ..facts.clone() };
    facts.renders_developer = render(&developer, &as_developer).is_some_and(|prompt| prompt.contains(CONTENT));
    let mut offered = chat(vec![Message::text(Role::User, "hello")]);
    offered.tools = tools();
    facts.renders_tools = render(&offered, &facts).is_some_and(|prompt| prompt.contains(TOOL));
    facts
}

/// Form of the contents of a role.
fn contents(render: Render<'_>, facts: &Facts, role: Role) -> Contents {
    let conversation = |parts: bool| {
        let probe = message(role, parts);
        let user = || Message::text(Role::User, "hello");
        chat(match role {
            Role::System | Role::Developer => vec![probe, user()],
            Role::User => vec![probe],
            Role::Assistant => vec![user(), probe, user()],
            Role::Tool => vec![user(), calling(), probe],
        })
    };
    let with = |form: Contents| {
        let mut facts = facts.clone();
        match role {
            Role::System | Role::Developer => facts.system = form,
            Role::User => facts.user = form,
            Role::Assistant => facts.assistant = form,
            Role::Tool => facts.tool = form,
        }
        facts
    };
    let shown = |prompt: &String| prompt.contains(CONTENT);
    let text = render(&conversation(false), &with(Contents::Text)).filter(shown);
    // A template that prints a list of parts as it is shows their fields.
    let raw = |prompt: &String| ["'text'", "\"text\"", "'type'", "\"type\""].iter().any(|field| prompt.contains(field));
    let parts = render(&conversation(true), &with(Contents::Any)).filter(|prompt| shown(prompt) && !raw(prompt));
    match (text, parts) {
        (Some(_), Some(_)) => Contents::Any,
        (None, Some(_)) => Contents::Parts,
        (_, None) => Contents::Text,
    }
}

/// Forms of a history with calls: the first that shows the call's argument, or else the first that is rendered at all.
fn probe_calls(render: Render<'_>, facts: &mut Facts) {
    let mut history = chat(vec![
        Message::text(Role::User, "hello"),
        calling(),
        result(),
        Message::text(Role::Assistant, "done"),
        Message::text(Role::User, "thanks"),
    ]);
    history.tools = tools();
    let mut rendered: Option<Facts> = None;
    for arguments in [Arguments::Object, Arguments::Text] {
        for call_ids in [CallIds::Any, CallIds::NineCharacters] {
            for needs_tool_name in [false, true] {
                for absent in [Absent::Omitted, Absent::Empty, Absent::Null] {
                    let tried = Facts { arguments, call_ids, needs_tool_name, absent, ..facts.clone() };
                    let Some(prompt) = render(&history, &tried) else { continue };
                    if prompt.contains(VALUE) {
                        *facts = Facts { renders_calls: true, ..tried };
                        return;
                    }
                    rendered.get_or_insert(tried);
                }
            }
        }
    }
    if let Some(rendered) = rendered {
        *facts = rendered;
    }
}

fn chat(messages: Vec<Message>) -> Chat {
    Chat {
        messages,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        template: TemplateOptions::default(),
    }
}

fn message(role: Role, parts: bool) -> Message {
    let mut message = Message::text(role, CONTENT);
    if parts {
        message.content = Content::Parts(vec![Part::Text(CONTENT.to_owned())]);
    }
    if role == Role::Tool {
        message.tool_call_id = Some(call_id());
    }
    message
}

fn call_id() -> String {
    "call_kestrel_0".to_owned()
}

fn calling() -> Message {
    let mut message = Message::text(Role::Assistant, "");
    message.content = Content::Absent;
    let arguments = format!("{{\"key\": \"{VALUE}\"}}");
    message.tool_calls = vec![ToolCall { id: Some(call_id()), name: TOOL.to_owned(), arguments }];
    message
}

fn result() -> Message {
    let mut message = Message::text(Role::Tool, "42");
    message.tool_call_id = Some(call_id());
    message
}

fn tools() -> Vec<Tool> {
    let parameters = r#"{"type": "object", "properties": {"key": {"type": "string", "description": "A key."}}, "required": ["key"]}"#;
    let definition = format!(
        r#"{{"type": "function", "function": {{"name": "{TOOL}", "description": "A tool.", "parameters": {parameters}}}}}"#
    );
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    let tool =
        raw(&definition).map(|definition| Tool { name: TOOL.to_owned(), parameters: raw(parameters), definition });
    tool.into_iter().collect()
}
