//! Normalised conversations, bounds and literal texts of whole renders.

#![expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

use super::*;
use crate::facts::{Absent, Arguments, CallIds, Contents};
use omni_generation::{Content, InvalidCode, Message, Part, Role, TemplateOptions, Tool, ToolCall, ToolChoice};
use proptest::prelude::*;
use serde_json::value::RawValue;

const PLAIN: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";

fn load(jinja: &str) -> ChatTemplate {
    let config = r#"{"bos_token": "<s>", "eos_token": "</s>"}"#;
    ChatTemplate::new(&TemplateSource { jinja: Some(jinja), tokenizer_config: Some(config) }).unwrap()
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

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn calling(arguments: &str) -> Message {
    let mut message = Message::text(Role::Assistant, "");
    message.content = Content::Absent;
    message.tool_calls =
        vec![ToolCall { id: Some("call_1234".to_owned()), name: "f".to_owned(), arguments: arguments.to_owned() }];
    message
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn offered() -> Tool {
    let definition = raw(r#"{"type": "function", "function": {"name": "f", "z": 1, "a": {"y": 2, "b": 1.0}}}"#);
    Tool { name: "f".to_owned(), parameters: None, definition }
}

#[track_caller]
fn prompt(jinja: &str, chat: &Chat) -> String {
    load(jinja).render(chat, 0).unwrap().prompt
}

#[test]
fn arguments_have_the_form_that_the_template_takes() {
    let history = chat(vec![user("a"), calling(r#"{"z": 1, "a": null}"#)]);
    let calls = |form: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{form}{{% endfor %}}{{% endfor %}}"
        )
    };
    let object = calls("{{ c.function.arguments|tojson }}");
    assert_eq!(load(&object).facts(&history).arguments, Arguments::Object);
    assert_eq!(prompt(&object, &history), r#"a{"z": 1, "a": null}"#);
    let text = calls("{{ '!' + c.function.arguments }}");
    assert_eq!(load(&text).facts(&history).arguments, Arguments::Text);
    assert_eq!(prompt(&text, &history), r#"a!{"z": 1, "a": null}"#);
    assert_eq!(prompt(&object, &chat(vec![user("a"), calling("")])), "a{}");
}

#[test]
fn arguments_that_are_no_object_stay_text_and_are_refused_only_if_they_must_be_one() {
    let history = chat(vec![user("a"), calling("not json")]);
    let lenient =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
    assert_eq!(prompt(lenient, &history), "\"not json\"");
    let strict = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.items()|list }}{% endfor %}{% endfor %}";
    let error = load(strict).render(&history, 0).unwrap_err();
    let RenderError::Invalid(error) = error else { panic!("{error}") };
    assert_eq!(error.parameter.as_deref(), Some("messages[1].tool_calls[0].function.arguments"));
}

#[test]
fn contents_have_the_form_that_the_template_takes() {
    let mut parts = user("");
    parts.content = Content::Parts(vec![Part::Text("a".to_owned()), Part::Text("b".to_owned())]);
    let parts = chat(vec![parts]);
    let text = chat(vec![user("ab")]);
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
    let only = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}";
    let cases = [
        (PLAIN, Contents::Text, "<|user|>a\nb", "<|user|>ab"),
        (both, Contents::Any, "[a][b]", "ab"),
        (only, Contents::Parts, "[a][b]", "[ab]"),
    ];
    for (jinja, form, of_parts, of_text) in cases {
        assert_eq!(load(jinja).facts(&text).user, form, "{jinja}");
        assert_eq!(prompt(jinja, &parts), of_parts, "{jinja}");
        assert_eq!(prompt(jinja, &text), of_text, "{jinja}");
    }
}

#[test]
fn images_are_refused_by_templates_of_text_alone() {
    let mut message = user("");
    message.content = Content::Parts(vec![Part::Text("a".to_owned()), Part::Image { url: "data:x".to_owned() }]);
    let seen = chat(vec![message]);
    let RenderError::Invalid(error) = load(PLAIN).render(&seen, 0).unwrap_err() else { panic!() };
    assert_eq!(error.parameter.as_deref(), Some("messages[0].content[1]"));
    let vision = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|image|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
    assert_eq!(prompt(vision, &seen), "a<|image|>");
}

#[test]
fn absent_contents_have_the_form_that_the_template_takes() {
    let history = chat(vec![user("a"), calling("{}")]);
    let calls = "{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}";
    let cases = [
        ("{% if m.content is defined %}[{{ m.content }}]{% endif %}", Absent::Omitted, "[a]{}"),
        ("{{ '[' + m.content + ']' }}", Absent::Empty, "[a][]{}"),
        (
            "{% if m.content is none %}-{% else %}{{ m.content.upper() if m.content else nothing.x }}{% endif %}",
            Absent::Null,
            "A-{}",
        ),
    ];
    for (content, form, expected) in cases {
        let jinja = format!("{{% for m in messages %}}{content}{calls}{{% endfor %}}");
        assert_eq!(load(&jinja).facts(&history).absent, form, "{content}");
        assert_eq!(prompt(&jinja, &history), expected, "{content}");
    }
}

#[test]
fn an_absent_content_without_calls_is_empty_where_it_must_be_text() {
    let mut silent = Message::text(Role::Assistant, "");
    silent.content = Content::Absent;
    let messages = chat(vec![user("a"), silent]);
    let jinja = "{% for m in messages %}{% if not m.tool_calls %}{{ '[' + m.content + ']' }}{% endif %}{% endfor %}";
    assert_eq!(prompt(jinja, &messages), "[a][]");
    assert_eq!(prompt("{% for m in messages %}{{ m.content is defined }}{% endfor %}", &messages), "TrueFalse");
}

#[test]
fn developer_messages_become_system_messages_where_they_are_not_printed() {
    let messages = chat(vec![Message::text(Role::Developer, "x"), user("a")]);
    assert_eq!(prompt(PLAIN, &messages), "<|developer|>x<|user|>a");
    let dropping = "{% for m in messages %}{% if m.role in ['system', 'user'] %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(prompt(dropping, &messages), "<|system|>x<|user|>a");
    let raising = "{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('role') }}{% endif %}{{ m.role }}{{ m.content }}{% endfor %}";
    assert_eq!(prompt(raising, &messages), "systemxusera");
}

#[test]
fn reasoning_is_given_under_the_names_that_the_template_reads() {
    let mut message = Message::text(Role::Assistant, "b");
    message.reasoning = Some("r".to_owned());
    let messages = chat(vec![user("a"), message]);
    for field in ["reasoning_content", "reasoning", "thinking"] {
        let jinja = format!(
            "{{% for m in messages %}}{{% if m.{field} %}}({{{{ m['{field}'] }}}}){{% endif %}}{{{{ m.content }}}}{{% endfor %}}"
        );
        assert_eq!(prompt(&jinja, &messages), "a(r)b", "{field}");
    }
    assert_eq!(prompt(PLAIN, &messages), "<|user|>a<|assistant|>b");
}

#[test]
fn call_ids_and_names_of_results_are_what_the_template_demands() {
    let mut result = Message::text(Role::Tool, "r");
    result.tool_call_id = Some("call_1234".to_owned());
    let history = chat(vec![user("a"), calling("{\"k\": 1}"), result]);
    let jinja = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}{{ raise_exception('id') }}{% endif %}{{ c.id }}{{ c.function.arguments|tojson }}{% endfor %}{% if m.role == 'tool' %}|{{ m.tool_call_id }}|{{ '' + m.name }}{% endif %}{% endfor %}";
    let template = load(jinja);
    assert_eq!(template.facts(&history).call_ids, CallIds::NineCharacters);
    assert!(template.facts(&history).needs_tool_name);
    let prompt = template.render(&history, 0).unwrap().prompt;
    let (id, rest) = prompt.split_at(9);
    assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{prompt}");
    assert_eq!(rest, format!("{{\"k\": 1}}|{id}|f"));
}

#[test]
fn tools_keep_the_order_of_their_keys_and_choose_their_template() {
    let config = r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools|tojson }}"}]}"#;
    let template = ChatTemplate::new(&TemplateSource { jinja: None, tokenizer_config: Some(config) }).unwrap();
    let mut asked = chat(vec![user("a")]);
    assert_eq!(template.render(&asked, 0).unwrap().prompt, "plain");
    asked.tools.push(offered());
    let expected = r#"[{"type": "function", "function": {"name": "f", "z": 1, "a": {"y": 2, "b": 1.0}}}]"#;
    assert_eq!(template.render(&asked, 0).unwrap().prompt, expected);
    asked.tool_choice = ToolChoice::None;
    assert_eq!(template.render(&asked, 0).unwrap().prompt, "plain");
}

#[test]
fn variables_of_a_request_are_the_templates_except_its_own() {
    let jinja = "{{ enable_thinking }} {{ reasoning_effort }} {{ documents[0].t if documents }} {{ add_generation_prompt }} {{ tools is none }}";
    let mut asked = chat(vec![user("a")]);
    assert_eq!(prompt(jinja, &asked), "   True True");
    asked.template.reasoning_effort = Some("none".to_owned());
    asked.template.variables.push(("documents".to_owned(), raw(r#"[{"t": "d"}]"#)));
    asked.template.variables.push(("add_generation_prompt".to_owned(), raw("false")));
    assert_eq!(prompt(jinja, &asked), "False none d False True");
    for name in ["messages", "tools", "chat_template", "bos_token", "omni_guard__"] {
        let mut asked = chat(vec![user("a")]);
        asked.template.variables.push((name.to_owned(), raw("1")));
        let RenderError::Invalid(error) = load(jinja).render(&asked, 0).unwrap_err() else { panic!("{name}") };
        assert_eq!(error.parameter, Some(format!("chat_template_kwargs.{name}")));
    }
}

#[test]
fn documents_without_a_place_are_refused() {
    let with = |documents: &str| {
        let mut asked = chat(vec![user("a")]);
        asked.template.variables.push(("documents".to_owned(), raw(documents)));
        load("{{ messages[0].content }}").render(&asked, 0)
    };
    let RenderError::Invalid(error) = with(r#"[{"text": "d"}]"#).unwrap_err() else { panic!("not the client's") };
    assert_eq!((error.parameter.as_deref(), error.code), (Some("documents"), InvalidCode::Unsupported));
    for none in ["[]", "null"] {
        assert_eq!(with(none).unwrap().prompt, "a");
    }
}

#[test]
fn a_final_message_is_continued() {
    let jinja = "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}</s>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    let mut asked = chat(vec![user("a"), Message::text(Role::Assistant, "The answer is ")]);
    asked.template.continue_final_message = true;
    assert_eq!(prompt(jinja, &asked), "<|user|>a</s>\n<|assistant|>The answer is ");
    let silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    assert!(matches!(load(silent).render(&asked, 0), Err(RenderError::Invalid(_))));
    asked.messages.pop();
    asked.messages.push(calling("{}"));
    assert!(matches!(load(jinja).render(&asked, 0), Err(RenderError::Invalid(_))));
}

#[test]
fn the_beginning_and_open_reasoning_are_found_in_the_prompt() {
    let asked = chat(vec![user("what is <think>?")]);
    let cases = [
        ("{{ bos_token }}{{ messages[0].content }}", true, false),
        ("{{ messages[0].content }}<|a|><think>\n", false, true),
        ("{{ messages[0].content }}<|a|><think></think>\n", false, false),
        ("<think>{{ messages[0].content }}", false, false),
    ];
    for (jinja, adds_bos, reasoning_open) in cases {
        let rendered = load(jinja).render(&asked, 0).unwrap();
        assert_eq!((rendered.adds_bos, rendered.reasoning_open), (adds_bos, reasoning_open), "{jinja}");
    }
    let tail = chat(vec![user("<think>")]);
    assert!(!load("{{ '<think>' if x }}{{ messages[0].content }}").render(&tail, 0).unwrap().reasoning_open);
}

#[test]
fn control_tokens_of_clients_are_literal_texts() {
    let jinja = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
    let template = load(jinja);
    let rendered = template.render(&chat(vec![user("x<|end|>y</s>")]), 0).unwrap();
    assert_eq!(rendered.prompt, "<|user|>x<|end|>y</s><|end|>");
    assert_eq!(rendered.literals, [9..16, 17..21]);
    assert_eq!(template.neutralised(&rendered), "<|user|>x<\u{200b}|end|>y<\u{200b}/s><|end|>");
    assert!(template.render(&chat(vec![user("x")]), 0).unwrap().literals.is_empty());
}

#[test]
fn control_tokens_are_found_in_all_that_a_client_sends() {
    let jinja = "{{ tools|tojson }}{{ x }}{% for m in messages %}{{ m.name }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c|tojson(ensure_ascii=true) }}{% endfor %}{% endfor %}<|end|>";
    let mut asked = chat(vec![user("a"), calling(r#"{"k": "é<|end|>"}"#)]);
    asked.messages[0].name = Some("<|end|>".to_owned());
    asked.tools.push(Tool { name: "f".to_owned(), parameters: None, definition: raw(r#"{"d": "<|end|>"}"#) });
    asked.template.variables.push(("x".to_owned(), raw(r#"{"<|end|>": ["<|end|>"]}"#)));
    let rendered = load(jinja).render(&asked, 0).unwrap();
    assert_eq!(rendered.literals.len(), 5, "{rendered:?}");
    assert!(rendered.prompt.contains(r"\u00e9<|end|>"));
    for range in rendered.literals {
        assert_eq!(&rendered.prompt[range], "<|end|>");
    }
}

#[test]
fn many_control_tokens_take_linear_time() {
    let template = load("{% for m in messages %}{{ m.content[1:] }}<|end|>{% endfor %}");
    let text = "<|end|><".repeat(100_000);
    let start = std::time::Instant::now();
    let rendered = template.render(&chat(vec![user(&text)]), 0).unwrap();
    assert_eq!(rendered.literals.len(), 99_999);
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

#[test]
fn reasoning_in_the_assistants_text_is_cut_off_where_the_template_does_so() {
    let jinja = "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}<|{{ m.role }}|>{{ c }}{% endfor %}";
    let messages = vec![user("a</think>b"), Message::text(Role::Assistant, "<think>r</think>c")];
    let rendered = load(jinja).render(&chat(messages), 0).unwrap();
    assert_eq!(rendered.prompt, "<|user|>a</think>b<|assistant|>c");
    assert_eq!(rendered.literals, [9..17]);
}

#[test]
fn the_time_is_a_parameter() {
    let template = load("{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}");
    assert_eq!(template.render(&chat(vec![user("a")]), 86_400).unwrap().prompt, "1970-01-02a");
}

#[test]
fn failures_are_told_apart() {
    let asked = chat(vec![user("a")]);
    let error = |jinja: &str| load(jinja).render(&asked, 0).unwrap_err();
    assert!(
        matches!(error("{{ raise_exception('no') }}"), RenderError::Refused { message, line: 1 } if message == "no")
    );
    assert!(matches!(error("\n\n{{ nothing.x.y }}"), RenderError::Template { line: 3, .. }));
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert!(matches!(error(endless), RenderError::OutOfFuel { .. }));
    assert!(matches!(error("{% for i in range(90000) %}0123456789012345{% endfor %}"), RenderError::TooLong { .. }));
    assert_eq!(error("\n{{ nothing.x }}{{ nothing.x.y }}").to_string(), "line 2 of the chat template: undefined value");
    let broken = ChatTemplate::new(&TemplateSource { jinja: Some("a\n{% if %}"), tokenizer_config: None });
    assert!(matches!(broken, Err(LoadError::Template { line: 2, .. })));
}

#[test]
fn variables_are_rendered_as_they_are() {
    let template = load("{{ messages[0].content }}{{ x }}");
    let rendered = template.render_variables(r#"{"messages": [{"content": null}], "x": 1.0}"#, 0).unwrap();
    assert_eq!(rendered.prompt, "None1.0");
    assert!(matches!(template.render_variables("[]", 0), Err(RenderError::Invalid(_))));
}

proptest! {
    #[test]
    fn texts_come_through_a_render_unchanged(
        texts in prop::collection::vec("(<\\|end\\|>|</s>|</?think>|[<>|\\[a-z é\n]){0,12}", 1..5),
    ) {
        let messages = texts.iter().map(|text| user(text)).collect();
        let template = load("{% for m in messages %}<|u|>{{ m.content }}<|end|>{% endfor %}<think>");
        let rendered = template.render(&chat(messages), 0).unwrap();
        let expected: String = texts.iter().map(|text| format!("<|u|>{text}<|end|>")).collect();
        prop_assert_eq!(&rendered.prompt, &(expected + "<think>"));
        let tokens = template.control_tokens();
        let control: usize = tokens.find(&rendered.prompt).iter().map(|range| range.len()).sum();
        let literal: usize = rendered.literals.iter().map(|range| range.len()).sum();
        // The template's own: two tokens for each message, and one at the end.
        prop_assert_eq!(control - literal, texts.len() * ("<|u|>".len() + "<|end|>".len()) + "<think>".len());
    }
}
