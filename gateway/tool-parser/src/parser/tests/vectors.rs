//! Answers in each dialect, with the calls in them.

use super::*;
use serde_json::json;

/// An answer of a model.
pub(super) struct Vector {
    pub(super) dialect: Dialect,
    pub(super) text: &'static str,
    reasoning: &'static str,
    content: &'static str,
    calls: Vec<(&'static str, Value)>,
}

fn vector(dialect: Dialect, text: &'static str, calls: &[(&'static str, Value)]) -> Vector {
    Vector { dialect, text, reasoning: "", content: "", calls: calls.to_vec() }
}

impl Vector {
    fn content(self, content: &'static str) -> Self {
        Self { content, ..self }
    }

    fn reasoning(self, reasoning: &'static str) -> Self {
        Self { reasoning, ..self }
    }
}

fn paris() -> (&'static str, Value) {
    ("get_weather", json!({"city": "Paris"}))
}

fn days() -> (&'static str, Value) {
    ("get_weather", json!({"city": "Rome", "days": 3}))
}

fn time() -> (&'static str, Value) {
    ("get_time", json!({}))
}

fn tagged() -> Vec<Vector> {
    use Dialect::{Hermes, Qwen3Coder};
    vec![
        vector(Hermes, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", &[paris()]),
        vector(
            Hermes,
            "<think>\nLet me see.\n</think>\n\nI look.\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}</tool_call>\n<tool_call>\n{\"name\": \"get_time\"}\n</tool_call>",
            &[days(), time()],
        )
        .reasoning("Let me see.")
        .content("I look."),
        vector(Hermes, "<tool_call>[{\"name\": \"get_time\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</tool_call>", &[time(), paris()]),
        vector(Hermes, "<|tool_call|>[{\"name\": \"get_time\", \"arguments\": null}]", &[time()]),
        vector(Hermes, "<TOOLCALL>[{\"name\": \"get_time\", \"arguments\": {}}]</TOOLCALL> Done.", &[time()]).content("Done."),
        vector(Hermes, "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call>", &[paris()]),
        vector(Hermes, "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Par\\u0069s\\\"}\"}</tool_call>", &[paris()]),
        vector(Hermes, "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, \"id\": \"x\"}</tool_call>", &[paris()]),
        vector(
            Qwen3Coder,
            "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call><|im_end|>",
            &[days(), time()],
        )
        .content("I look."),
        vector(Qwen3Coder, "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", &[paris()]),
        vector(Qwen3Coder, "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>", &[paris()]),
    ]
}

fn named() -> Vec<Vector> {
    use Dialect::{DeepSeekV3, KimiK2, Llama3, Mistral, Pythonic};
    vec![
        vector(Llama3, "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"get_time\", \"parameters\": {}}<|eom_id|>", &[paris(), time()]),
        vector(Llama3, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", &[paris()]),
        vector(Llama3, "{\"type\": \"function\", \"name\": \"get_time\", \"parameters\": {}};\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}<|eot_id|>", &[time(), paris()]),
        vector(Llama3, "<function=get_weather>{\"city\": \"Paris\"}</function>", &[paris()]),
        vector(Llama3, "<|python_tag|>get_weather.call(city=\"Paris\")", &[paris()]),
        vector(Pythonic, "[get_weather(city='Rome', days=3), get_time()]", &[days(), time()]),
        vector(Pythonic, "<|python_start|>[get_weather(city=\"Paris\")]<|python_end|>", &[paris()]),
        vector(Pythonic, "Now. <|tool_call_start|>[get_weather(city=\"Paris\")]<|tool_call_end|>", &[paris()]).content("Now."),
        vector(Pythonic, "<function_calls>\nget_weather(city=\"Paris\")\nget_time()\n</function_calls>", &[paris(), time()]),
        vector(Mistral, "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"get_time\", \"arguments\": {}}]</s>", &[paris(), time()]),
        vector(Mistral, "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}[TOOL_CALLS]get_time{}", &[paris(), time()]),
        vector(Mistral, "Well.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Rome\", \"days\": 3}", &[days()]).content("Well."),
        vector(Mistral, "[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}", &[time()]),
        vector(
            DeepSeekV3,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            &[paris(), time()],
        ),
        vector(
            DeepSeekV3,
            "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Rome\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
            &[days(), time()],
        )
        .content("I look."),
        vector(
            KimiK2,
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
            &[paris(), time()],
        )
        .content("I look."),
        vector(
            KimiK2,
            "<think>Call it.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            &[time()],
        )
        .reasoning("Call it."),
    ]
}

fn markup() -> Vec<Vector> {
    use Dialect::{DeepSeekV32, Gemma, Glm, Harmony, Json, MiniMax};
    vec![
        vector(
            Glm,
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call><|observation|>",
            &[days(), time()],
        ),
        vector(
            MiniMax,
            "<think>\nHm.\n</think>\nI look.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n</minimax:tool_call>[e~[",
            &[days(), time()],
        )
        .reasoning("Hm.")
        .content("I look."),
        vector(MiniMax, "<tool_calls>\n{\"name\": \"get_time\", \"arguments\": {}}\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_calls>", &[time(), paris()]),
        vector(
            DeepSeekV32,
            "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_time\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>",
            &[days(), time()],
        )
        .content("I look."),
        vector(
            Harmony,
            "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            &[paris()],
        )
        .reasoning("Let me see.")
        .content("I look."),
        vector(Harmony, " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>", &[time()]),
        vector(Harmony, "<|channel|>final<|message|>Hello.<|return|>", &[]).content("Hello."),
        vector(Json, "[{\"name\": \"get_time\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]", &[time(), paris()]),
        vector(
            Gemma,
            "I look.<|tool_call>call:get_weather{city:<|\"|>Rome<|\"|>,days:3}<tool_call|><|tool_call>call:get_time{}<tool_call|>",
            &[days(), time()],
        )
        .content("I look."),
        vector(Gemma, "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>", &[paris()]),
        vector(Dialect::None, "<tool_call>{\"name\": \"get_time\"}</tool_call>", &[]).content("<tool_call>{\"name\": \"get_time\"}</tool_call>"),
    ]
}

pub(super) fn vectors() -> Vec<Vector> {
    [tagged(), named(), markup()].into_iter().flatten().collect()
}

#[test]
fn answers_of_every_dialect_have_their_calls() {
    for vector in vectors() {
        let answer = whole(vector.dialect, vector.text);
        let calls: Vec<_> = (0..answer.outcome.calls)
            .map(|call| (answer.choice.calls[call].name.as_str(), json(&answer, call)))
            .collect();
        assert_eq!(calls, vector.calls, "{}", vector.text);
        assert_eq!(answer.choice.content, vector.content, "{}", vector.text);
        assert_eq!(answer.choice.reasoning, vector.reasoning, "{}", vector.text);
    }
}

#[test]
fn every_dialect_has_a_vector_and_a_name_of_its_own() {
    for (name, dialect) in Dialect::ALL {
        assert!(vectors().iter().any(|vector| vector.dialect == dialect), "{name}");
        assert_eq!(Dialect::of_name(name), Some(dialect));
    }
    for (name, format) in ReasoningFormat::ALL {
        assert_eq!(ReasoningFormat::of_name(name), Some(format));
    }
    assert_eq!(Dialect::of_name("unknown"), None);
}

#[test]
fn answers_without_calls_stay_as_they_are() {
    let texts = [
        "Use <tool_call> and </tool_call>.",
        "<tool_call>\nnot JSON\n</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"get_time\", \"argum",
        "[TOOL_CALLS] of Mistral",
        "<|python_tag|> is a token",
        "<function=unknown><parameter=a>b</parameter></function>",
        "<｜tool▁calls▁begin｜>",
        "<|tool_call_begin|>x",
        "<|tool_call>call:get_time{city:",
        "<|tool_call>call:get_time{city:{}<tool_call|>",
        "[1, 2] is a list. [get_time() is a call",
        "{\"name\": \"get_time\", \"arguments\": {}} is a call.",
        "{\"name\": \"unknown\", \"arguments\": {}}",
        "  a  \n\n ",
        " ",
    ];
    for (name, dialect) in Dialect::ALL {
        for text in texts {
            let answer = whole(dialect, text);
            assert_eq!((answer.choice.content.as_str(), answer.outcome.calls), (text, 0), "{name}");
        }
    }
}

/// vllm#36032, sglang#27640, sglang#13411, mlx-lm#1310.
#[test]
fn raw_arguments_have_the_types_of_the_schema() {
    let table = [
        ("text", "03106", json!("03106")),
        ("text", "true", json!("true")),
        ("text", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("whole", "42", json!(42)),
        ("whole", "42.0", json!(42)),
        ("whole", "2026-01-15", json!("2026-01-15")),
        ("whole", "03106", json!("03106")),
        ("real", "-1.5e3", json!(-1500.0)),
        ("real", "7", json!(7)),
        ("flag", "True", json!(true)),
        ("flag", "yes", json!("yes")),
        ("list", "[1, \"a\"]", json!([1, "a"])),
        ("list", "['a', None, (1, True)]", json!(["a", null, [1, true]])),
        ("list", "{}", json!("{}")),
        ("map", "{'a': {\"b\": -1}}", json!({"a": {"b": -1}})),
        ("map", "{not JSON}", json!("{not JSON}")),
        ("any", "{\"a\": 1}", json!({"a": 1})),
        ("any", "hello", json!("hello")),
        ("maybe", "false", json!(false)),
        ("maybe", "null", json!(null)),
        ("union", "{\"a\": [1]}", json!({"a": [1]})),
        ("union", "[1]", json!("[1]")),
        ("choice", "1", json!("1")),
        ("optional", "null", json!(null)),
        ("optional", "5", json!("5")),
        ("reference", "{\"x\": 1}", json!({"x": 1})),
        ("undeclared", "5", json!("5")),
        ("text", "a\"b\\c\u{1}\né", json!("a\"b\\c\u{1}\né")),
        ("text", "\nfirst\n\nlast\n", json!("\nfirst\n\nlast\n")),
    ];
    for (parameter, raw, expected) in table {
        let text = format!(
            "<tool_call>\n<function=types>\n<parameter={parameter}>\n{raw}\n</parameter>\n</function>\n</tool_call>"
        );
        assert_eq!(json(&whole(Dialect::Qwen3Coder, &text), 0)[parameter], expected, "{parameter}: {raw}");
    }
    let deep = "[".repeat(100_000);
    let text = format!("<tool_call><function=types><parameter=list>{deep}</parameter></function></tool_call>");
    assert_eq!(json(&whole(Dialect::Qwen3Coder, &text), 0)["list"], json!(deep));
}

#[test]
fn an_answer_without_marks_is_held_up_to_a_limit_and_is_text_beyond() {
    let answer =
        |length: usize| format!("{{\"name\": \"types\", \"arguments\": {{\"text\": \"{}\"}}}}", "x".repeat(length));
    assert_eq!(whole(Dialect::Json, &answer(1 << 20)).outcome.calls, 1);
    let text = answer(4 << 20);
    let (before, after) = text.split_at(5 << 10);
    for pieces in [&[text.as_str()][..], &[before, after]] {
        let answer = run(Dialect::Json, &options(), pieces);
        assert!(answer.choice.content == text && answer.outcome.calls == 0);
    }
}

#[test]
fn values_of_gemma_become_json() {
    let table = [
        ("{}", json!({})),
        ("{a:-7,b:1.5e3,c:true,d:null}", json!({"a": -7, "b": 1500.0, "c": true, "d": null})),
        (
            "{a:[<|\"|>x, }<tool_call|>y<|\"|>,[]],b:{c:{},<|\"|>d:<|\"|>:1}}",
            json!({"a": ["x, }<tool_call|>y", []], "b": {"c": {}, "d:": 1}}),
        ),
        ("{a:two words}", json!({"a": "two words"})),
        ("{ a : <|\"|>1<|\"|> , }", json!({"a": "1"})),
    ];
    for (raw, expected) in table {
        let answer = whole(Dialect::Gemma, &format!("<|tool_call>call:types{raw}<tool_call|>"));
        assert_eq!(json(&answer, 0), expected, "{raw}");
    }
    assert_eq!(whole(Dialect::Gemma, "<|tool_call>call:get_time{}").outcome.calls, 1, "the end may be cut off");
}

#[test]
fn dialects_are_guessed_from_templates() {
    let table = [
        ("{{ '<tool_call>\\n' }}{{ tools | tojson }}", Some(Dialect::Hermes)),
        ("<tool_call>\n<function=example>\n<parameter=x>{{ tools }}", Some(Dialect::Qwen3Coder)),
        ("<|start_header_id|>{{ tools }}", Some(Dialect::Llama3)),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", Some(Dialect::Mistral)),
        ("<｜tool▁calls▁begin｜>", Some(Dialect::DeepSeekV3)),
        ("<|channel|>final<|message|>", Some(Dialect::Harmony)),
        ("{{ tools }}", Some(Dialect::Json)),
        ("{{ messages }}", None),
    ];
    for (template, expected) in table {
        assert_eq!(Dialect::of_template(template), expected, "{template}");
    }
}
