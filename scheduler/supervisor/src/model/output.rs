//! Level and request id of a line of output, as the line itself gives them. Pure.
//!
//! Lines of `context.logger`, and tracebacks, begin with `LEVEL [request id] ` (`worker/python/omni/_log.py`); other
//! programs' lines may begin with `<3>`, as systemd's do (sd-daemon(3)). A model can write any of this: it serves only to
//! find the model's own lines again.

/// How important a line is; none less than information, since a model's lines are wanted, or it would not print them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is odd.
    Warning,
    /// All else.
    Info,
}

/// A line, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Output<'a> {
    /// How important it is.
    pub level: Level,
    /// Request that was being served when the line was written, if any.
    pub request_id: Option<&'a str>,
    /// The rest.
    pub text: &'a str,
}

/// Ids of four requests, with commas between them.
const LONGEST_IDS: usize = 4 * 64 + 3;

/// Returns whether a line is one of those with which Python's `faulthandler` shows where a process's threads are.
pub fn is_stack(line: &str) -> bool {
    let begins =
        ["Fatal Python error: ", "Thread 0x", "Current thread ", "Stack (most recent call first)", "  Binary file \""];
    // A traceback has a comma before the function's name.
    let is_frame = line.starts_with("  File \"") && line.contains("\", line ") && !line.contains(", in ");
    is_frame || begins.iter().any(|begin| line.starts_with(begin))
}

/// Takes a line apart; one that says nothing is information.
pub fn output(line: &str) -> Output<'_> {
    of_logger(line).or_else(|| of_daemon(line)).unwrap_or(Output { level: Level::Info, request_id: None, text: line })
}

fn of_logger(line: &str) -> Option<Output<'_>> {
    let (name, rest) = line.split_once(" [")?;
    let (id, text) = rest.split_once("] ")?;
    let level = match name {
        "CRITICAL" | "ERROR" => Level::Error,
        "WARNING" => Level::Warning,
        "INFO" | "DEBUG" => Level::Info,
        _ => return None,
    };
    let is_id = |id: &&str| (1..=LONGEST_IDS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let request_id = Some(id).filter(is_id)?;
    Some(Output { level, request_id: (request_id != "-").then_some(request_id), text })
}

fn of_daemon(line: &str) -> Option<Output<'_>> {
    let (number, text) = line.strip_prefix('<')?.split_once('>')?;
    let level = match number {
        "0" | "1" | "2" | "3" => Level::Error,
        "4" => Level::Warning,
        "5" | "6" | "7" => Level::Info,
        _ => return None,
    };
    Some(Output { level, request_id: None, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines() {
        for (line, level, request_id, text) in [
            ("INFO [0198c5f2-7d] loaded 3 pages", Level::Info, Some("0198c5f2-7d"), "loaded 3 pages"),
            ("ERROR [-] Traceback (most recent call last):", Level::Error, None, "Traceback (most recent call last):"),
            ("WARNING [a] [b] c", Level::Warning, Some("a"), "[b] c"),
            ("<3>broken", Level::Error, None, "broken"),
            ("<4>odd", Level::Warning, None, "odd"),
            ("<6>fine", Level::Info, None, "fine"),
            ("<html>", Level::Info, None, "<html>"),
            ("ERROR without an id", Level::Info, None, "ERROR without an id"),
            ("ERROR [two words] x", Level::Info, None, "ERROR [two words] x"),
            ("NOTICE [a] b", Level::Info, None, "NOTICE [a] b"),
            ("", Level::Info, None, ""),
        ] {
            assert_eq!(output(line), Output { level, request_id, text }, "{line}");
        }
    }

    #[test]
    fn stacks_are_told_from_tracebacks() {
        for line in [
            "Fatal Python error: Segmentation fault",
            "Current thread 0x00007f2d32fb8610 (most recent call first):",
            "Thread 0x00007f2d32fb8610 (most recent call first):",
            "  File \"/model/model.py\", line 7 in handle_request",
        ] {
            assert!(is_stack(line), "{line}");
        }
        for line in ["  File \"/model/model.py\", line 7, in handle_request", "Thread pool of 4", "", "    work()"] {
            assert!(!is_stack(line), "{line}");
        }
    }

    proptest! {
        #[test]
        fn only_level_marks_are_removed_from_a_line(line in "(<[0-9]>|INFO \\[|ERROR \\[)?[ -~]{0,60}") {
            prop_assert!(line.ends_with(output(&line).text));
        }
    }
}
