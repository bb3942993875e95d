//! Reasoning before the text.

use super::*;

fn parsed(format: ReasoningFormat, starts: bool, text: &str) -> (String, String) {
    let options = ParserOptions { reasoning: Some(format), starts_in_reasoning: starts, ..options() };
    let Answer { choice, outcome: _ } = run(Dialect::Hermes, &options, &[text]);
    (choice.reasoning, choice.content)
}

#[test]
fn all_formats_are_parsed_from_their_marks() {
    for (name, format) in ReasoningFormat::ALL {
        for (open, close) in format.opens().iter().zip(format.closes()) {
            let text = format!("{open}\nHm, {open}.\n{close}\n\nYes.");
            assert_eq!(
                parsed(format, false, &text),
                (format!("Hm, {open}.").trim().to_owned(), "Yes.".to_owned()),
                "{name}"
            );
            let text = format!("Hm.{close}Yes.");
            assert_eq!(parsed(format, true, &text), ("Hm.".to_owned(), "Yes.".to_owned()), "{name}");
            assert!(format.is_open(&format!("prompt{open}\n")));
            assert!(!format.is_open(&format!("{open}{close}prompt")));
        }
        let template = format!("{}{}", format.opens()[0], format.closes()[0]);
        assert_eq!(ReasoningFormat::of_template(&template), Some(format), "{name}");
    }
    assert_eq!(ReasoningFormat::of_template("{{ messages }}"), None);
}

#[test]
fn empty_reasoning_is_none() {
    assert_eq!(
        parsed(ReasoningFormat::Think, false, "<think>\n\n</think>\n\nYes."),
        (String::new(), "Yes.".to_owned())
    );
    assert_eq!(parsed(ReasoningFormat::Think, true, "\n</think>Yes."), (String::new(), "Yes.".to_owned()));
}

#[test]
fn an_opening_mark_that_the_prompt_already_had_is_a_mark() {
    assert_eq!(parsed(ReasoningFormat::Think, true, "<think>\nHm.</think>Yes."), ("Hm.".to_owned(), "Yes.".to_owned()));
}

#[test]
fn reasoning_that_does_not_end_is_all_reasoning() {
    assert_eq!(parsed(ReasoningFormat::Think, false, "<think>Hm. </thi"), ("Hm. </thi".to_owned(), String::new()));
    assert_eq!(parsed(ReasoningFormat::Think, true, "Hm.\n"), ("Hm.\n".to_owned(), String::new()));
}

#[test]
fn marks_of_calls_in_reasoning_are_reasoning() {
    let text = "<think>I use <tool_call>{\"name\": \"get_time\"}</tool_call>.</think>No.";
    let expected = "I use <tool_call>{\"name\": \"get_time\"}</tool_call>.";
    assert_eq!(parsed(ReasoningFormat::Think, false, text), (expected.to_owned(), "No.".to_owned()));
}

#[test]
fn a_call_that_begins_a_line_ends_the_reasoning() {
    let call = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    for (text, reasoning, content, calls) in [
        (format!("<think>{call}"), "", "", 1),
        (format!("<think>\nI call.\n\n{call}\nDone."), "I call.", "Done.", 1),
        (
            format!("<think>I call {call}</think>"),
            "I call <tool_call>\n<function=get_time>\n</function>\n</tool_call>",
            "",
            0,
        ),
        (format!("<think>\nI call.\n{call}\n</think>\n\nDone."), "I call.", "Done.", 1),
        (format!("<think>{call}</think>{call}"), "", "", 2),
        (format!("<think>{call}\nSo.\n</think>\nDone, </think>."), "", "So.Done, </think>.", 1),
        (format!("<think>a</think>{call}</think>"), "a", "</think>", 1),
        ("<think>a\n<tool_call>b</think>".to_owned(), "a\n<tool_call>b", "", 0),
        (
            "<think>a\n<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</think>b".to_owned(),
            "a\n<tool_call>{\"name\": \"unknown\", \"arguments\": {}}",
            "b",
            0,
        ),
    ] {
        let answer = run(Dialect::Qwen3Coder, &options(), &[&text]);
        let found = (answer.choice.reasoning.as_str(), answer.choice.content.as_str(), answer.outcome.calls);
        assert_eq!(found, (reasoning, content, calls), "{text}");
    }
}

#[test]
fn marks_around_the_answer_are_no_part_of_it() {
    let text = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>";
    assert_eq!(parsed(ReasoningFormat::Command, false, text), ("Hm.".to_owned(), "Yes.".to_owned()));
    let text = "Hm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]";
    assert_eq!(parsed(ReasoningFormat::Steps, true, text), ("Hm.".to_owned(), "Yes.".to_owned()));
}

#[test]
fn reasoning_is_parsed_without_tools() {
    let options = ParserOptions { reasoning: Some(ReasoningFormat::Think), ..ParserOptions::default() };
    let answer =
        run(Dialect::Hermes, &options, &["<think>Hm.</think>\n", "\n<tool_call>{\"name\": \"get_time\"}</tool_call>"]);
    assert_eq!(answer.choice.reasoning, "Hm.");
    assert_eq!(answer.choice.content, "<tool_call>{\"name\": \"get_time\"}</tool_call>");
}
