//! Properties of each refusal of a configuration text: readable by people and by line-based log readers.

use omni_config::Problem;

/// Problems that are listed of one text.
const LISTED: usize = 20;
/// Most bytes of one problem's line: a few excerpts with every character escaped, and our own text.
const LINE: usize = 4096;

/// `message`: the whole refusal of `text`, whose parts are `problems`.
pub(crate) fn holds(text: &str, problems: &[Problem], message: &str) {
    assert!((1..=LISTED).contains(&problems.len()), "{message}");
    assert!(problems.is_sorted_by_key(Problem::line), "in the order of the text: {message}");
    let lines: Vec<&str> = message.split('\n').collect();
    let counted = match &lines[problems.len()..] {
        [] => problems.len(),
        [rest] => {
            let more = rest.strip_prefix("and ").and_then(|rest| rest.strip_suffix(" more")).map(str::parse::<usize>);
            problems.len() + more.expect("the last line counts the rest").expect("a number")
        }
        _ => panic!("a problem of several lines: {message}"),
    };
    assert!(counted == problems.len() || problems.len() == LISTED, "left out without need: {message}");
    for (problem, line) in problems.iter().zip(&lines) {
        let shown = problem.to_string();
        assert_eq!(&shown, line);
        assert!(!shown.contains(is_unsound), "characters that no line has: {shown:?}");
        assert!(shown.len() <= LINE, "{} bytes: {shown}", shown.len());
        names_its_place(text, problem);
    }
}

/// Characters that end a line, control a terminal, or change the order in which a line is read.
fn is_unsound(character: char) -> bool {
    let orders = ['\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
    character.is_control()
        || orders.contains(&character)
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn names_its_place(text: &str, problem: &Problem) {
    let (key, line) = match problem {
        Problem::TooLong { bytes, limit } => return assert!(*bytes == text.len() && bytes > limit),
        Problem::Syntax { line, message } => {
            assert!(!message.is_empty());
            (None, *line)
        }
        Problem::UnknownKey { key, line, hint } => {
            assert!(hint.starts_with("did you mean `") || hint.starts_with("known here: "), "{problem}");
            (Some(key), *line)
        }
        Problem::Value { key, line, .. } | Problem::Refused { key, line, .. } => (Some(key), *line),
    };
    let lines = 1 + text.matches('\n').count();
    assert!((1..=lines).contains(&line), "line {line} of {lines}: {problem}");
    // A key that is written with escapes, or shown with them, is not found literally.
    if let Some(key) = key.filter(|key| !key.contains('"') && !text.contains('\\')) {
        let path = key.split('[').next().unwrap_or(key);
        assert!(path.split('.').all(|part| !part.is_empty() && text.contains(part)), "not in the text: {problem}");
        if matches!(problem, Problem::UnknownKey { .. }) {
            let name = path.rsplit('.').next().unwrap_or(path);
            assert!(
                text.split('\n').nth(line - 1).is_some_and(|text| text.contains(name)),
                "on another line: {problem}"
            );
        }
    }
}
