//! Laws that hold for every text and every way to cut it. `PROPTEST_CASES` raises the number of cases.

use super::vectors::vectors;
use super::*;
use crate::cursor::HEADER_LIMIT;
use crate::marker::BLANK_LIMIT;
use proptest::prelude::*;

/// Texts from which hostile answers are made.
const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "<think>\n<tool_call>",
    "</tool_call>",
    "{\"name\": \"get_time\", ",
    "\"arguments\": {",
    "{\"arguments\": {",
    "}",
    "}}",
    "]",
    "[",
    ",",
    ";",
    "\"",
    "\\",
    "\\u00",
    "<function=get_weather>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "\n",
    " ",
    "a",
    "€",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "get_time",
    "[ARGS]",
    "{}",
    "<|python_tag|>",
    "get_time()",
    "(city='",
    "')",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>",
    "```json\n",
    "```",
    "<｜tool▁call▁end｜>",
    "<|tool_call_begin|>",
    "functions.get_time:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<arg_key>city</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "<invoke name=\"get_time\">",
    "<parameter name=\"city\">",
    "</invoke>",
    "<｜DSML｜function_calls>",
    "<｜DSML｜invoke name=\"get_time\">",
    "<｜DSML｜parameter name=\"city\" string=\"true\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "<|channel|>",
    "commentary to=functions.get_time ",
    "analysis",
    "<|message|>",
    "<|call|>",
    "<|end|>",
    "<|start|>",
    "<tool_calls>",
    "<|tool_call_start|>",
    "<|tool_call>",
    "call:get_time{",
    "city:",
    "<|\"|>",
    "<tool_call|>",
    "<|channel>",
    "thought",
    "<channel|>",
    "<|im_end|>",
    "null",
    "<",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}}",
];

/// Runs of a character that are as long as the limits.
const RUNS: [(&str, usize); 4] = [(" ", 70), ("a", 255), ("€", 85), ("x", 2000)];

fn hostile() -> impl Strategy<Value = String> {
    let run = prop::sample::select(&RUNS[..]).prop_map(|(text, count)| text.repeat(count));
    let fragment = prop_oneof![40 => prop::sample::select(FRAGMENTS).prop_map(str::to_owned), 1 => run];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

/// Cuts a text at any characters.
fn pieces<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut % (text.len() + 1))).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

fn variants() -> Vec<ParserOptions> {
    let base = options();
    vec![
        ParserOptions { parallel_tool_calls: false, starts_in_reasoning: true, ..base.clone() },
        ParserOptions { tool_choice: ToolChoice::None, ..base.clone() },
        ParserOptions { reasoning: None, ..base.clone() },
        ParserOptions { reasoning: Some(ReasoningFormat::Channel), ..base.clone() },
        base,
    ]
}

/// Arguments are JSON, a part of the text, or open as the text is.
fn assert_arguments(answer: &Answer, text: &str) {
    for call in &answer.choice.calls {
        let arguments = &call.arguments;
        let is_json = serde_json::from_str::<Value>(arguments).is_ok();
        let is_open = serde_json::from_str::<Value>(arguments).is_err_and(|error| error.is_eof());
        let is_encoded = text.contains('\\') || text.contains(":\"");
        assert!(is_json || is_open || is_encoded || text.contains(arguments.as_str()), "{arguments}");
    }
}

/// Text is held only as long as the law says.
fn assert_held(dialect: Dialect, options: &ParserOptions, text: &str) {
    let mut parser = Parser::new(dialect, options.clone());
    let mut out = Vec::new();
    for c in text.chars() {
        parser.push(c.encode_utf8(&mut [0; 4]), &mut out);
        let held = parser.input.rest().len();
        let is_long = matches!(parser.state, State::Held(_) | State::Fields(_));
        assert!(is_long || held <= HEADER_LIMIT + BLANK_LIMIT + 4, "{held} bytes in {:?}", parser.state);
    }
    parser.finish(&mut out);
    assert_eq!(parser.input.rest(), "", "all comes out at the end");
}

#[test]
fn vectors_cut_at_every_character_or_into_characters_are_the_same() {
    for vector in vectors() {
        for options in variants() {
            let expected = run(vector.dialect, &options, &[vector.text]);
            for at in (0..vector.text.len()).filter(|at| vector.text.is_char_boundary(*at)) {
                let (before, after) = vector.text.split_at(at);
                assert_eq!(run(vector.dialect, &options, &[before, after]), expected, "{before:?} {after:?}");
            }
            let characters: Vec<&str> = vector.text.split("").collect();
            assert_eq!(run(vector.dialect, &options, &characters), expected, "{}", vector.text);
            assert_held(vector.dialect, &options, vector.text);
        }
    }
}

#[test]
fn vectors_that_end_early_are_conserved() {
    for vector in vectors() {
        for at in (0..vector.text.len()).filter(|at| vector.text.is_char_boundary(*at)) {
            let text = &vector.text[..at];
            assert_arguments(&whole(vector.dialect, text), text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splits_of_vectors_change_nothing(at in any::<prop::sample::Index>(), variant in 0_usize..5, cuts in prop::collection::vec(0_usize..4000, 0..40)) {
        let vectors = vectors();
        let vector = at.get(&vectors);
        let options = &variants()[variant];
        let expected = run(vector.dialect, options, &[vector.text]);
        prop_assert_eq!(run(vector.dialect, options, &pieces(vector.text, &cuts)), expected);
    }

    #[test]
    fn splits_of_hostile_text_change_nothing(text in hostile(), variant in 0_usize..5, cuts in prop::collection::vec(0_usize..1000, 0..40)) {
        let options = &variants()[variant];
        for (_, dialect) in Dialect::ALL {
            let expected = run(dialect, options, &[&text]);
            assert_arguments(&expected, &text);
            prop_assert_eq!(&run(dialect, options, &pieces(&text, &cuts)), &expected, "{:?}", dialect);
            assert_held(dialect, options, &text);
        }
    }

    #[test]
    fn vectors_with_hostile_text_inside_are_split_alike(at in any::<prop::sample::Index>(), inside in hostile(), place in 0_usize..4000, cuts in prop::collection::vec(0_usize..4000, 0..40)) {
        let vectors = vectors();
        let vector = at.get(&vectors);
        let (before, after) = vector.text.split_at(vector.text.floor_char_boundary(place % (vector.text.len() + 1)));
        let text = format!("{before}{inside}{after}");
        let expected = run(vector.dialect, &options(), &[&text]);
        assert_arguments(&expected, &text);
        prop_assert_eq!(run(vector.dialect, &options(), &pieces(&text, &cuts)), expected);
    }

    #[test]
    fn any_text_is_conserved(text in any::<String>(), cuts in prop::collection::vec(0_usize..400, 0..8)) {
        for (_, dialect) in Dialect::ALL {
            let answer = run(dialect, &options(), &pieces(&text, &cuts));
            prop_assert_eq!(answer, run(dialect, &options(), &[&text]));
        }
    }
}
