//! Inputs on which other servers failed, a test for each report. Types of raw arguments are in `vectors.rs`, requests that are refused
//! (TGI#1976, llama.cpp#19051) in the crates of the APIs.

use super::*;
use serde_json::json;

/// Deltas of pieces, those of each piece apart.
fn deltas(dialect: Dialect, pieces: &[&str]) -> Vec<Vec<Delta>> {
    let mut parser = Parser::new(dialect, options());
    let mut all: Vec<Vec<Delta>> = Vec::new();
    for piece in pieces {
        let mut out = Vec::new();
        parser.push(piece, &mut out);
        all.push(out);
    }
    let mut out = Vec::new();
    parser.finish(&mut out);
    all.push(out);
    all
}

fn characters(dialect: Dialect, text: &str) -> Answer {
    run(dialect, &options(), &text.split("").collect::<Vec<_>>())
}

fn content(answer: &Answer) -> &str {
    &answer.choice.content
}

fn arguments(text: &str) -> Delta {
    Delta::CallArguments { call: 0, text: text.to_owned() }
}

/// vllm#10395, vllm#10398.
#[test]
fn streamed_arguments_are_the_bytes_of_the_model() {
    let pieces =
        ["<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"ci", "ty\":  \"Par", "is\" }", "}</tool_call>"];
    let out = deltas(Dialect::Hermes, &pieces);
    assert_eq!(out[0][1..], [arguments("{\"ci")]);
    assert_eq!(out[1], [arguments("ty\":  \"Par")]);
    assert_eq!(out[2], [arguments("is\" }")]);
    assert!(out[3].is_empty() && out[4].is_empty());
}

/// vllm#10395: a bracket that the model has not written is not sent.
#[test]
fn arguments_that_the_model_leaves_open_stay_open() {
    let answer = whole(Dialect::Hermes, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par");
    assert_eq!(calls(&answer), [("get_weather", "{\"city\": \"Par")]);
    let answer = whole(
        Dialect::Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=content>\nhalf \"of",
    );
    assert_eq!(calls(&answer), [("write_file", "{\"path\": \"a\", \"content\": \"half \\\"of")]);
}

/// vllm#22885.
#[test]
fn the_last_bracket_comes_with_the_end() {
    for text in [
        "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}",
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}",
    ] {
        assert_eq!(
            json(&characters(if text.starts_with('[') { Dialect::Mistral } else { Dialect::Hermes }, text), 0),
            json!({"city": "Paris"})
        );
    }
    let answer = characters(Dialect::Qwen3Coder, "<function=get_weather><parameter=city>Paris</parameter>");
    assert_eq!(calls(&answer), [("get_weather", "{\"city\": \"Paris\"}")]);
}

/// A call that the limit of tokens cuts off between two parameters may miss some: it stays open, and is not run.
#[test]
fn a_call_that_is_cut_off_in_markup_is_left_open() {
    let first = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>";
    for (rest, is_open, content) in [
        ("", true, ""),
        ("\n", true, ""),
        ("\n</function>", false, ""),
        ("\n</function>\n</tool", false, "</tool"),
        ("\n</tool_call>", false, ""),
        ("\n</tool_call>\nSo", false, "So"),
    ] {
        let read = |finish: fn(&mut Parser, &mut Vec<Delta>) -> Outcome| {
            let mut parser = Parser::new(Dialect::Qwen3Coder, options());
            let (mut out, mut choice) = (Vec::new(), Choice::default());
            parser.push(&format!("{first}{rest}"), &mut out);
            finish(&mut parser, &mut out);
            choice.extend(&out, &[]);
            (choice.calls[0].arguments.clone(), choice.content)
        };
        let whole = ("{\"city\": \"Paris\"}".to_owned(), content.to_owned());
        let cut = if is_open { ("{\"city\": \"Paris\"".to_owned(), String::new()) } else { whole.clone() };
        assert_eq!((read(Parser::finish_cut), read(Parser::finish)), (cut, whole), "{rest:?}");
    }
    // A mark that is cut off may be a part of the value, which stays open in any case.
    for rest in ["\n<param", "\n<parameter=da", "\n<parameter=days>\n1", "\n</func"] {
        let answer = characters(Dialect::Qwen3Coder, &format!("{first}{rest}"));
        assert!(serde_json::from_str::<Value>(calls(&answer)[0].1).is_err(), "{rest:?}: {answer:?}");
    }
}

/// vllm#28806, vllm#47901.
#[test]
fn a_call_without_arguments_has_an_empty_object_and_the_next_call_its_own() {
    let table = [
        (
            Dialect::Hermes,
            "<tool_call>{\"name\": \"get_time\"}</tool_call><tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>",
        ),
        (
            Dialect::Qwen3Coder,
            "<tool_call><function=get_time></function></tool_call><tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        ),
        (
            Dialect::KimiK2,
            "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|><|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|>",
        ),
        (
            Dialect::Glm,
            "<tool_call>get_time</tool_call><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        ),
        (
            Dialect::Harmony,
            "<|channel|>commentary to=functions.get_time<|message|><|call|><|start|>assistant<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Paris\"}<|call|>",
        ),
    ];
    for (dialect, text) in table {
        let answer = characters(dialect, text);
        assert_eq!(calls(&answer), [("get_time", "{}"), ("get_weather", "{\"city\": \"Paris\"}")], "{text}");
    }
}

/// vllm#57490, vllm#51701.
#[test]
fn markers_in_pieces_of_any_length_are_found() {
    let text = "Now. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|>";
    for length in 1..9 {
        let pieces: Vec<&str> =
            (0..text.len()).step_by(length).map(|at| &text[at..text.len().min(at + length)]).collect();
        let answer = run(Dialect::KimiK2, &options(), &pieces);
        assert_eq!((content(&answer), calls(&answer)), ("Now.", vec![("get_weather", "{\"city\": \"Paris\"}")]));
    }
    let answer = whole(Dialect::Mistral, "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}</s>");
    assert_eq!((content(&answer), calls(&answer)), ("", vec![("get_weather", "{\"city\": \"Paris\"}")]));
}

/// vllm#49205.
#[test]
fn a_held_prefix_belongs_to_the_marker_that_follows() {
    let out = deltas(Dialect::Hermes, &["a <tool_", "call>", "{\"name\": \"get_time\"", "}"]);
    assert_eq!(out[0], [Delta::Content("a".to_owned())]);
    assert!(out[1].is_empty() && out[2].is_empty());
    assert_eq!(out[3].len(), 2);
    let out = deltas(Dialect::Hermes, &["a <tool_", "box>"]);
    assert_eq!(out[1], [Delta::Content(" <tool_box>".to_owned())]);
}

/// vllm#58315: the text decides, not the tokens or the grammar that the engine kept.
#[test]
fn functions_and_objects_are_both_found_behind_the_tag() {
    for dialect in [Dialect::Hermes, Dialect::Qwen3Coder] {
        for text in [
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>",
            "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
            "<tool_call><function=get_weather>{\"city\": \"Paris\"}</function></tool_call>",
        ] {
            assert_eq!(calls(&whole(dialect, text)), [("get_weather", "{\"city\": \"Paris\"}")]);
        }
    }
}

/// sglang#23363, vllm#27701.
#[test]
fn braces_in_strings_and_nested_objects_are_arguments() {
    let arguments = "{\"a\": {\"b\": [\"}\", \"\\\"}{\", {\"c\": {}}]}, \"d\": \"</tool_call>\"}";
    let text = format!("<tool_call>{{\"name\": \"types\", \"arguments\": {arguments}}}</tool_call>");
    assert_eq!(calls(&characters(Dialect::Hermes, &text)), [("types", arguments)]);
}

/// vllm#27701: a call that does not parse leaves nothing behind for the next.
#[test]
fn a_broken_call_is_text_and_the_next_call_is_a_call() {
    let text = "<tool_call>{name: get_time}</tool_call>\n<tool_call>{\"name\": \"get_time\"}</tool_call>";
    let answer = characters(Dialect::Hermes, text);
    assert_eq!(
        (content(&answer), calls(&answer)),
        ("<tool_call>{name: get_time}</tool_call>", vec![("get_time", "{}")])
    );
    let text = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"</tool_call><tool_call>{\"name\": \"get_time\"}</tool_call>";
    assert_eq!(
        calls(&characters(Dialect::Hermes, text)),
        [("get_weather", "{\"city\": \"Paris\""), ("get_time", "{}")]
    );
}

/// mlx-lm#1448.
#[test]
fn each_value_ends_at_its_own_bracket() {
    let text = "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}{\"name\": \"get_time\", \"parameters\": {}} Done {x}.";
    let answer = characters(Dialect::Llama3, text);
    assert_eq!(
        (content(&answer), calls(&answer)),
        ("Done {x}.", vec![("get_weather", "{\"city\": \"Paris\"}"), ("get_time", "{}")])
    );
}

/// dynamo#9536.
#[test]
fn calls_between_semicolons_are_all_calls() {
    let object = "{\"name\": \"get_time\", \"parameters\": {}}";
    for text in [format!("<|python_tag|>{object};{object}; {object}"), format!("{object}; {object};{object}")] {
        assert_eq!(characters(Dialect::Llama3, &text).outcome.calls, 3, "{text}");
    }
}

/// llama.cpp#18183, agno#1404.
#[test]
fn without_a_marker_only_a_whole_answer_of_offered_calls_is_a_call() {
    let object = "{\"name\": \"get_time\", \"parameters\": {}}";
    for dialect in [Dialect::Llama3, Dialect::Json, Dialect::Pythonic] {
        assert_eq!(whole(dialect, object).outcome.calls, 1);
        for text in [
            format!("{object} is the call."),
            format!("The call is {object}"),
            "{\"name\": \"Anna\", \"parameters\": {}}".to_owned(),
            "{\"name\": \"get_time\"".to_owned(),
            "{\"city\": \"Paris\"}".to_owned(),
            "[get_time(), unknown()]".to_owned(),
            "[get_time()] is code".to_owned(),
            "print([get_time()])".to_owned(),
            format!("```json\n{object}\n```"),
        ] {
            let answer = characters(dialect, &text);
            assert_eq!((content(&answer), answer.outcome.calls), (text.as_str(), 0));
        }
    }
}

/// vllm#46863.
#[test]
fn json_of_a_model_with_another_dialect_is_a_call_by_the_same_rule() {
    let text = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}";
    for dialect in
        [Dialect::Pythonic, Dialect::Mistral, Dialect::KimiK2, Dialect::Glm, Dialect::MiniMax, Dialect::DeepSeekV32]
    {
        assert_eq!(calls(&characters(dialect, text)), [("get_weather", "{\"city\": \"Paris\"}")]);
    }
}

/// llama.cpp#20729, llama.cpp#24644, llama.cpp#20260, llama.cpp#23838.
#[test]
fn text_that_does_not_parse_stays_text() {
    let text = "I call: <tool_call>\n<function=get_time\n</tool_call> or <tool_call>{\"name\": 1}</tool_call>";
    assert_eq!(content(&characters(Dialect::Qwen3Coder, text)), text);
    let answer = characters(Dialect::Qwen3Coder, "First.\n\n<tool_call><function=get_time></function></tool_call>");
    assert_eq!((content(&answer), answer.outcome.calls), ("First.", 1));
}

/// vllm-mlx#631.
#[test]
fn marks_behind_a_name_are_not_a_part_of_it() {
    for text in
        ["[TOOL_CALLS]get_time[ARGS]{}", "[TOOL_CALLS]get_time[CALL_ID]123456789[ARGS]{}", "[TOOL_CALLS]get_time{}"]
    {
        assert_eq!(calls(&characters(Dialect::Mistral, text)), [("get_time", "{}")]);
    }
}

/// vllm#10821, vllm#47734.
#[test]
fn ids_have_the_form_of_the_dialect_streamed_or_not() {
    let text = "[TOOL_CALLS]get_time{}[TOOL_CALLS]get_time{}";
    let answer = characters(Dialect::Mistral, text);
    assert_eq!(answer, whole(Dialect::Mistral, text));
    let ids: Vec<&str> = answer.choice.calls.iter().map(|call| call.id.as_deref().unwrap()).collect();
    assert!(
        ids[0] != ids[1] && ids.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    );
    let id = |dialect, options: &ParserOptions, text: &str| {
        run(dialect, options, &[text]).choice.calls[0].id.clone().unwrap()
    };
    assert_eq!(id(Dialect::Mistral, &options(), "[TOOL_CALLS]get_time[CALL_ID]123456789[ARGS]{}"), "123456789");
    let kimi = "<|tool_call_begin|>functions.get_time:5<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(id(Dialect::KimiK2, &options(), kimi), "functions.get_time:5");
    let later = ParserOptions { earlier_calls: 3, ..options() };
    let object = "{\"name\": \"get_time\", \"arguments\": {}}";
    assert_eq!(id(Dialect::KimiK2, &later, object), "functions.get_time:3");
    assert!(id(Dialect::Json, &later, object).starts_with("call_"));
    assert_ne!(id(Dialect::Json, &later, object), id(Dialect::Json, &options(), object));
}

/// vllm#44060, Rapid-MLX#1515, Rapid-MLX#1542.
#[test]
fn end_marks_inside_of_a_written_file_are_its_text() {
    let inside = [
        "a </parameter> b",
        "</tool_call>",
        "</function>\n</tool_call>",
        "<parameter=x>\n1\n</parameter>",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\nand\n</parameter>\n</function>\n</tool_call>\nmore",
        "The call ends with\n</parameter>\n</function>\n</tool_call>\nand so on.",
        "An opening <parameter=x> alone.",
        "</parameter>\n<parameter=content>\n",
    ];
    for file in inside {
        let text = format!(
            "<tool_call>\n<function=write_file>\n<parameter=path>\na.md\n</parameter>\n<parameter=content>\n{file}\n</parameter>\n</function>\n</tool_call>"
        );
        let answer = characters(Dialect::Qwen3Coder, &text);
        assert_eq!(json(&answer, 0), json!({"path": "a.md", "content": file}));
        let is_plain = !file.contains("</parameter>")
            || file.starts_with('<') && !file.contains("and") && !file.contains("content");
        assert_eq!(answer.outcome.ambiguous == 0, is_plain, "{file}");
        let text = text.replace("<parameter=path>\na.md\n</parameter>\n", "")
            + "\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
        let answer = characters(Dialect::Qwen3Coder, &text);
        assert_eq!((json(&answer, 0), answer.outcome.calls), (json!({"content": file}), 2), "{file}");
    }
}

/// vllm#44060: text behind a call is text although the call is certain only then.
#[test]
fn text_behind_a_call_in_markup_is_content() {
    let text =
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>\nThat was the call.";
    let answer = characters(Dialect::Qwen3Coder, text);
    assert_eq!(
        (content(&answer), calls(&answer)),
        ("That was the call.", vec![("get_weather", "{\"city\": \"Paris\"}")])
    );
    assert_eq!(answer.outcome.ambiguous, 0);
}

/// sglang#34677.
#[test]
fn a_name_that_is_not_offered_is_handed_on_with_the_others() {
    let text = "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let answer = characters(Dialect::Hermes, text);
    assert_eq!(answer, whole(Dialect::Hermes, text));
    assert_eq!(calls(&answer), [("unknown", "{}"), ("get_time", "{}")]);
}

/// vllm#38158.
#[test]
fn choices_share_nothing_but_the_tools() {
    let options = options();
    let (mut first, mut second) =
        (Parser::new(Dialect::Hermes, options.clone()), Parser::new(Dialect::Hermes, options));
    let (mut out, mut other) = (Vec::new(), Vec::new());
    first.push("<tool_call>{\"name\": \"get_time\", ", &mut out);
    second.push("Hello.", &mut other);
    first.push("\"arguments\": {}}</tool_call>", &mut out);
    assert_eq!((first.finish(&mut out).calls, second.finish(&mut other).calls), (1, 0));
    assert_eq!(other, [Delta::Content("Hello.".to_owned())]);
}

/// dynamo#4723, smolagents#1958, vllm#39584: the numbers are checked by every run.
#[test]
fn two_calls_in_one_piece_are_two_calls() {
    let object = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
    let out = deltas(Dialect::Hermes, &[&object.repeat(2)]);
    let numbers = out[0].iter().map(|delta| match delta {
        Delta::CallStart { call, .. } | Delta::CallArguments { call, .. } => *call,
        Delta::Content(_) | Delta::Reasoning(_) => panic!("text"),
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 0, 1, 1]);
}

/// vllm#39584.
#[test]
fn without_parallel_calls_the_answer_is_cut_after_the_first() {
    let options = ParserOptions { parallel_tool_calls: false, ..options() };
    for vector in vectors::vectors() {
        let (one, all) = (run(vector.dialect, &options, &[vector.text]), whole(vector.dialect, vector.text));
        assert_eq!(one.outcome.calls, all.outcome.calls.min(1), "{}", vector.text);
        assert_eq!(one.outcome.dropped, all.outcome.calls > 1, "{}", vector.text);
        assert_eq!(one.choice.calls.first(), all.choice.calls.first());
    }
}

/// vllm#9209, vllm#25054: the reason for the end follows from the number of calls, streamed or not.
#[test]
fn the_outcome_counts_calls_of_every_path() {
    let text = "<tool_call>{\"name\": \"get_time\"}</tool_call>";
    assert_eq!(characters(Dialect::Hermes, text).outcome, Outcome { calls: 1, dropped: false, ambiguous: 0 });
    let none = ParserOptions { tool_choice: ToolChoice::None, ..options() };
    let answer = run(Dialect::Hermes, &none, &[text]);
    assert_eq!((content(&answer), answer.outcome.calls), (text, 0));
    for tool_choice in [ToolChoice::Required, ToolChoice::Named("get_time".to_owned())] {
        let options = ParserOptions { tool_choice, ..options() };
        assert_eq!(run(Dialect::Hermes, &options, &[text]).outcome.calls, 1);
        assert_eq!(run(Dialect::Hermes, &options, &["No."]).outcome.calls, 0);
    }
}

/// vllm#53924, vllm#55195, litellm#14121.
#[test]
fn only_the_first_close_ends_the_reasoning() {
    for pieces in
        [&["<think>a</think>b</think><think>c</think>"][..], &["<think>a</think>b</think>", "<think>c</think>"]]
    {
        let answer = run(Dialect::Hermes, &options(), pieces);
        assert_eq!((answer.choice.reasoning.as_str(), content(&answer)), ("a", "b</think><think>c</think>"));
    }
    let answer = whole(Dialect::Hermes, "The mark </think> ends it.");
    assert_eq!((answer.choice.reasoning.as_str(), content(&answer)), ("", "The mark </think> ends it."));
}

/// vllm-mlx#725, vllm#32490.
#[test]
fn the_end_of_the_prompt_decides_whether_reasoning_is_open() {
    let starts = ReasoningFormat::Think.is_open("<user>Hi<assistant><think>\n");
    let options = ParserOptions { starts_in_reasoning: starts, ..options() };
    let answer = run(Dialect::Hermes, &options, &["Hm.\n</think>\n\nYes."]);
    assert_eq!((answer.choice.reasoning.as_str(), content(&answer)), ("Hm.", "Yes."));
    assert!(!ReasoningFormat::Think.is_open("<assistant><think>a</think>b<user>Hi<assistant>"));
    assert!(!ReasoningFormat::Think.is_open("<assistant><think>\n\n</think>\n\n"));
}
