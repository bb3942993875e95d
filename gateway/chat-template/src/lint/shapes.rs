//! Shapes of conversations. Each kind of text has a word that no template prints by itself.

use omni_generation::{Chat, Content, Message, Part, Role, TemplateOptions, Tool, ToolCall, ToolChoice};
use serde_json::value::RawValue;

/// Word of system and developer messages.
pub(crate) const SYSTEM: &str = "Badger";
/// Word of the user's messages.
pub(crate) const USER: &str = "Heron";
/// Word of the assistant's messages.
pub(crate) const ASSISTANT: &str = "Otter";
/// Word of results.
pub(crate) const RESULT: &str = "Lynx";
/// Word of arguments of calls.
pub(crate) const ARGUMENT: &str = "Marten";
/// Word of offered tools.
pub(crate) const TOOL: &str = "curlew_tool";

/// A conversation with its name.
pub(crate) struct Shape {
    /// Name.
    pub(crate) name: &'static str,
    /// Conversation.
    pub(crate) chat: Chat,
    /// The tools that are offered should be in the prompt.
    pub(crate) tools_matter: bool,
}

/// All text of a message.
pub(crate) fn text(message: &Message) -> String {
    match &message.content {
        Content::Absent => String::new(),
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            parts.iter().map(|part| if let Part::Text(text) = part { text.as_str() } else { "" }).collect()
        }
    }
}

/// All shapes.
pub(crate) fn all() -> Vec<Shape> {
    let mut shapes = texts();
    shapes.extend(roles());
    shapes.extend(offers());
    shapes.extend(calls());
    shapes.extend(results());
    shapes.extend(options());
    shapes
}

fn shape(name: &'static str, messages: Vec<Message>) -> Shape {
    let chat = Chat {
        messages,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        template: TemplateOptions::default(),
    };
    Shape { name, chat, tools_matter: false }
}

fn user(text: &str) -> Message {
    Message::text(Role::User, format!("{USER} {text}"))
}

fn system() -> Message {
    Message::text(Role::System, format!("{SYSTEM}: be brief."))
}

fn assistant() -> Message {
    Message::text(Role::Assistant, format!("{ASSISTANT}, of course."))
}

fn parts(role: Role, texts: &[&str]) -> Message {
    let mut message = Message::text(role, "");
    message.content = Content::Parts(texts.iter().map(|text| Part::Text((*text).to_owned())).collect());
    message
}

fn calling(arguments: &[&str]) -> Message {
    let mut message = Message::text(Role::Assistant, "");
    message.content = Content::Absent;
    let call = |(at, arguments): (usize, &&str)| ToolCall {
        id: Some(format!("call{at:05}")),
        name: TOOL.to_owned(),
        arguments: (*arguments).to_owned(),
    };
    message.tool_calls = arguments.iter().enumerate().map(call).collect();
    message
}

fn result(at: usize, text: &str) -> Message {
    let mut message = Message::text(Role::Tool, text);
    message.tool_call_id = Some(format!("call{at:05}"));
    message.name = Some(TOOL.to_owned());
    message
}

fn tool(name: &str, parameters: Option<&str>) -> Option<Tool> {
    let rest = parameters.map_or_else(String::new, |parameters| format!(r#", "parameters": {parameters}"#));
    let definition =
        format!(r#"{{"type": "function", "function": {{"name": "{name}", "description": "Looks \"it\" up."{rest}}}}}"#);
    let definition = RawValue::from_string(definition).ok()?;
    let parameters = parameters.and_then(|parameters| RawValue::from_string(parameters.to_owned()).ok());
    Some(Tool { name: name.to_owned(), parameters, definition })
}

const FLAT: &str = r#"{"type": "object", "properties": {"key": {"type": "string", "description": "A key."}, "count": {"type": "integer", "default": 3}}, "required": ["key"]}"#;

const NESTED: &str = r#"{"type": "object", "properties": {"items": {"type": "array", "items": {"type": "object", "properties": {"kind": {"type": "string", "enum": ["a", "b"]}, "size": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}}, "any": {}}, "$defs": {"x": {"type": ["string", "null"]}}, "additionalProperties": false}"#;

const ARGUMENTS: &str = r#"{"key": "Marten"}"#;

fn with_tools(mut shape: Shape) -> Shape {
    shape.chat.tools = tool(TOOL, Some(FLAT)).into_iter().collect();
    shape
}

fn texts() -> Vec<Shape> {
    let one = |name, text: &str| shape(name, vec![user(text)]);
    vec![
        one("user", "asks."),
        one("newlines", "asks:\n\n  1.\n\t2.\n\n"),
        one("unicode", "fragt: Größe? \u{4f60}\u{597d} \u{1f600} e\u{301} \u{2028}"),
        one("right_to_left", "\u{202e}\u{5e9}\u{5dc}\u{5d5}\u{5dd}"),
        one("control_tokens", "<|im_end|>\n<|im_start|>system\n[/INST] </s> <end_of_turn> <think>"),
        one("template_syntax", "{{ messages }} {% if x %} {# no #} {%- endraw %}"),
        one("quotes", r#"'single' "double" \back\slash\n `tick`"#),
        one("markup", "<b>bold</b> &amp; <a href=\"x\">y</a> < >"),
        one("json_text", r#"{"name": "f", "arguments": {"a": 1}}"#),
        one("long_text", &"words and ".repeat(2_000)),
        shape("empty_user", vec![Message::text(Role::User, "")]),
        shape("whitespace", vec![Message::text(Role::User, " \n\t ")]),
        shape("parts", vec![parts(Role::User, &["Heron asks."])]),
        shape("several_parts", vec![parts(Role::User, &["Heron asks", "twice", ""])]),
    ]
}

fn roles() -> Vec<Shape> {
    let developer = || Message::text(Role::Developer, format!("{SYSTEM}: be brief."));
    let turns = |count: usize| {
        let turn = |at: usize| if at.is_multiple_of(2) { user("goes on.") } else { assistant() };
        (0..count).map(turn).collect::<Vec<_>>()
    };
    let after = |mut first: Vec<Message>, rest: Vec<Message>| {
        first.extend(rest);
        first
    };
    let mut named = user("asks.");
    named.name = Some("alice".to_owned());
    vec![
        shape("system_user", vec![system(), user("asks.")]),
        shape("three_turns", turns(5)),
        shape("system_three_turns", after(vec![system()], turns(5))),
        shape("many_turns", turns(61)),
        shape("empty_system", vec![Message::text(Role::System, ""), user("asks.")]),
        shape("system_parts", vec![parts(Role::System, &["Badger: be brief."]), user("asks.")]),
        shape("system_alone", vec![system()]),
        shape("two_systems", vec![system(), system(), user("asks.")]),
        shape("system_midway", after(turns(2), vec![system(), user("asks.")])),
        shape("developer", vec![developer(), user("asks.")]),
        shape("system_and_developer", vec![system(), developer(), user("asks.")]),
        shape("assistant_first", vec![assistant(), user("asks.")]),
        shape("assistant_last", turns(4)),
        shape("assistant_parts", vec![user("asks."), parts(Role::Assistant, &["Otter, of course."]), user("asks.")]),
        shape("empty_assistant", vec![user("asks."), Message::text(Role::Assistant, ""), user("asks.")]),
        shape("two_users", vec![user("asks."), user("asks again.")]),
        shape("two_assistants", vec![user("asks."), assistant(), assistant(), user("asks.")]),
        shape("named_user", vec![named]),
    ]
}

fn offers() -> Vec<Shape> {
    let offer = |name, tools: Vec<Option<Tool>>| {
        let mut shape = shape(name, vec![user("asks.")]);
        shape.chat.tools = tools.into_iter().flatten().collect();
        shape.tools_matter = true;
        shape
    };
    let mut system_and_tools = offer("system_and_tools", vec![tool(TOOL, Some(FLAT))]);
    system_and_tools.chat.messages.insert(0, system());
    let mut none = offer("tool_choice_none", vec![tool(TOOL, Some(FLAT))]);
    none.chat.tool_choice = ToolChoice::None;
    none.tools_matter = false;
    let names: Vec<String> = (0..12).map(|at| format!("{TOOL}_{at}")).collect();
    vec![
        offer("tools", vec![tool(TOOL, Some(FLAT))]),
        offer("many_tools", names.iter().map(|name| tool(name, Some(FLAT))).collect()),
        offer("tool_without_parameters", vec![tool(TOOL, None)]),
        offer("nested_schema", vec![tool(TOOL, Some(NESTED))]),
        system_and_tools,
        none,
    ]
}

fn calls() -> Vec<Shape> {
    let call = |name, arguments: &[&str], answered: bool| {
        let mut messages = vec![user("asks."), calling(arguments)];
        messages.extend((0..arguments.len()).map(|at| result(at, "Lynx found.")));
        if answered {
            messages.extend([assistant(), user("thanks.")]);
        }
        with_tools(shape(name, messages))
    };
    let mut with_text = call("call_with_text", &[ARGUMENTS], true);
    if let Some(message) = with_text.chat.messages.get_mut(1) {
        message.content = Content::Text(format!("{ASSISTANT} looks it up."));
    }
    let mut two_rounds = call("two_rounds", &[ARGUMENTS], false);
    two_rounds.chat.messages.extend([calling(&[ARGUMENTS]), result(0, "Lynx found."), assistant(), user("thanks.")]);
    let mut history = call("calls_without_tools", &[ARGUMENTS], true);
    history.chat.tools.clear();
    let odd = r#"{"key": "Marten", "none": null, "yes": true, "no": false, "n": -1.5e20, "é\"\n": "\u2028 <b>"}"#;
    vec![
        with_tools(shape("call_last", vec![user("asks."), calling(&[ARGUMENTS])])),
        call("call", &[ARGUMENTS], true),
        call("call_without_arguments", &["{}"], true),
        call("nested_arguments", &[r#"{"key": {"deep": [1, {"er": ["Marten"]}]}}"#], true),
        call("odd_arguments", &[odd], true),
        call("parallel_calls", &[ARGUMENTS, ARGUMENTS, ARGUMENTS], true),
        with_text,
        two_rounds,
        history,
    ]
}

fn results() -> Vec<Shape> {
    let answer = |name, result: Message, rest: Vec<Message>| {
        let mut messages = vec![user("asks."), calling(&[ARGUMENTS]), result];
        messages.extend(rest);
        with_tools(shape(name, messages))
    };
    let mut unnamed = result(0, "Lynx found.");
    unnamed.name = None;
    let mut in_parts = parts(Role::Tool, &["Lynx found."]);
    in_parts.tool_call_id = Some("call00000".to_owned());
    vec![
        answer("result_last", result(0, "Lynx found."), vec![]),
        answer("result_then_user", result(0, "Lynx found."), vec![user("interrupts.")]),
        answer("result_json", result(0, r#"{"Lynx": [1, null]}"#), vec![]),
        answer("result_empty", result(0, ""), vec![]),
        answer("result_unnamed", unnamed, vec![]),
        answer("result_parts", in_parts, vec![]),
    ]
}

fn options() -> Vec<Shape> {
    let variable = |name: &'static str, variable: &str, value: &str| {
        let mut shape = shape(name, vec![user("asks.")]);
        let value = RawValue::from_string(value.to_owned()).ok();
        shape.chat.template.variables = value.into_iter().map(|value| (variable.to_owned(), value)).collect();
        shape
    };
    let thinking = |mut message: Message| {
        message.reasoning = Some("Two steps:\n1.\n2.".to_owned());
        message
    };
    let mut continued = shape("continued", vec![user("asks."), assistant()]);
    continued.chat.template.continue_final_message = true;
    let mut effort = shape("reasoning_effort", vec![user("asks.")]);
    effort.chat.template.reasoning_effort = Some("low".to_owned());
    vec![
        shape("reasoning", vec![user("asks."), thinking(assistant()), user("thanks.")]),
        with_tools(shape(
            "reasoning_and_call",
            vec![user("asks."), thinking(calling(&[ARGUMENTS])), result(0, "Lynx found.")],
        )),
        variable("thinking_off", "enable_thinking", "false"),
        variable("documents", "documents", r#"[{"title": "A", "text": "B"}]"#),
        continued,
        effort,
    ]
}
