//! Inputs on which parsers of others did better, found by `make differential`.

use super::*;

/// Answer in one piece, and the same in characters.
fn both(dialect: Dialect, options: &ParserOptions, text: &str) -> Answer {
    let answer = run(dialect, options, &[text]);
    assert_eq!(run(dialect, options, &text.split("").collect::<Vec<_>>()), answer, "{text}");
    answer
}

/// Markup of each form whose first parameter is cut off or broken: the function must not run without its parameters.
#[test]
fn a_call_whose_first_parameter_is_none_is_text() {
    let table = [
        (Dialect::Qwen3Coder, "<tool_call>\n<function=get_weather>\n<parameter=ci"),
        (
            Dialect::Qwen3Coder,
            "<tool_call>\n<function=get_weather>\n<parameter=ci<b>ty>\nRome\n</parameter>\n</function>",
        ),
        (Dialect::Glm, "<tool_call>get_weather\n<arg_key>ci"),
        (Dialect::Glm, "<tool_call>get_weather<arg_key>city</arg_key><arg_val>Rome</arg_value></tool_call>"),
        (Dialect::MiniMax, "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"ci"),
        (Dialect::DeepSeekV32, "<｜DSML｜invoke name=\"get_weather\"><｜DSML｜parameter name=\"city\" string=\"tr"),
        (
            Dialect::DeepSeekV32,
            "<｜DSML｜invoke name=\"get_weather\"><｜DSML｜parameter name=\"city\" string=\"tru{e\">Rome</｜DSML｜parameter></｜DSML｜invoke>",
        ),
    ];
    for (dialect, text) in table {
        let answer = both(dialect, &options(), text);
        assert_eq!((answer.choice.content.as_str(), answer.outcome.calls), (text, 0));
    }
}

#[test]
fn a_call_of_gpt_oss_that_is_cut_off_before_its_arguments_has_none() {
    let text = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";
    assert_eq!(calls(&both(Dialect::Harmony, &options(), text)), [("get_weather", "")]);
    let text = format!("{text}<|call|>");
    assert_eq!(calls(&both(Dialect::Harmony, &options(), &text)), [("get_weather", "{}")]);
}

#[test]
fn an_object_with_other_members_and_no_arguments_is_text() {
    for object in [
        "{\"name\": \"get_weather\", \"city\": \"Paris\"}",
        "{\"name\": \"get_weather\", \"argum\": \"Paris\", \"type\": \"function\"}",
        "{\"city\": \"Paris\", \"name\": \"get_weather\"}",
    ] {
        for (dialect, text) in
            [(Dialect::Hermes, format!("<tool_call>{object}</tool_call>")), (Dialect::Json, object.to_owned())]
        {
            let answer = both(dialect, &options(), &text);
            assert_eq!((answer.choice.content.as_str(), answer.outcome.calls), (text.as_str(), 0));
        }
    }
    let text = "<tool_call>{\"type\": \"function\", \"id\": \"a\", \"name\": \"get_time\"}</tool_call>";
    assert_eq!(calls(&both(Dialect::Hermes, &options(), text)), [("get_time", "{}")]);
}

#[test]
fn a_mark_is_no_part_of_an_id_of_kimi() {
    let call = "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let answer = both(Dialect::KimiK2, &options(), &format!("<|tool_call_begin|>functions.get{call}"));
    assert_eq!(calls(&answer), [("get_time", "{}")]);
    assert_eq!(answer.choice.content, "<|tool_call_begin|>functions.get");
}

#[test]
fn calls_of_gemma_and_of_python_end_reasoning_as_others_do() {
    let channel = ParserOptions { reasoning: Some(ReasoningFormat::Channel), ..options() };
    let table = [
        (Dialect::Gemma, &channel, "<|channel>thought\nI call.\n<|tool_call>call:get_time{}<tool_call|>", 1),
        (Dialect::Gemma, &channel, "<|channel>thought\nI call.\n<|tool_call>call:unknown{}<tool_call|>", 0),
        (Dialect::Gemma, &channel, "<|channel>thought\nI call. <|tool_call>call:get_time{}<tool_call|>", 0),
        (Dialect::Pythonic, &options(), "<think>I call.\n<|tool_call_start|>[get_time()]<|tool_call_end|>", 1),
        (Dialect::Pythonic, &options(), "<think>I call.\n<|tool_call_start|>[unknown()]<|tool_call_end|>", 0),
    ];
    for (dialect, options, text, count) in table {
        let answer = both(dialect, options, text);
        assert_eq!(answer.outcome.calls, count, "{text}");
        assert_eq!(answer.choice.content, "");
        assert!(answer.choice.reasoning.starts_with("I call."));
    }
}
