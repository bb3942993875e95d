//! Output of a model in its log: it controls no terminal, and passes for no other line.

use crate::control::FOLDER;
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::process::Command;

const FORGER: &str = include_str!("probes/forger.py");
/// Lines of one stream: each that is listed, one of them in three parts and one in two at its carriage return, and one that
/// is no text.
const LINES: usize = 12 + 2 + 1 + 1;

/// Characters that control a terminal, or change the order of a line.
fn commands(text: &str) -> Vec<char> {
    let is_order = |c: &char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| (c.is_control() && !['\n', '\t'].contains(c)) || is_order(c)).collect()
}

/// Lines that do not begin as one of this instance's log does.
fn foreign<'a>(text: &'a str, instance: &str) -> Vec<&'a str> {
    let own = |line: &&str| {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let time = words.next().is_some_and(|word| word.len() == 24 && word.ends_with('Z'));
        time && words.next() == Some(instance)
            && words.next().is_some_and(|stream| ["stdout", "stderr"].contains(&stream))
    };
    text.lines().filter(|line| !own(line)).collect()
}

/// Lines that are not the daemon's, and lines with a model's output that do not name the model.
fn forged(log: &str) -> Vec<String> {
    let is_forged = |line: &&str| match serde_json::from_str::<Value>(line) {
        Err(_) => true,
        Ok(line) => {
            let said = line["message"].as_str().is_some_and(|text| text.contains("forged") || text.contains("owned"));
            let told_of = ["forger", "failing"].iter().any(|model| line["model"] == *model);
            said && !told_of
        }
    };
    log.lines().filter(is_forged).map(str::to_owned).collect()
}

#[test]
fn output_of_a_model_forges_no_log_line_and_controls_no_terminal() {
    // The control: the same output, printed raw.
    let raw = Command::new("python3").arg("-B").arg(format!("{FOLDER}/probes/forger.py")).output().unwrap();
    let raw = String::from_utf8_lossy(&raw.stdout).into_owned();
    assert!(commands(&raw).len() > 40 && commands(&raw).contains(&'\u{9b}'), "{raw:?}");
    assert!(foreign(&raw, "0").len() > 10 && forged(&raw).len() > 5, "{raw:?}");
    assert!(raw.lines().any(|line| serde_json::from_str::<Value>(line).is_ok()), "one is a whole line of the daemon's");

    let reason = [("model.py", FORGER), ("omni.toml", "[env]\nFORGE_REASON = \"1\"\n")];
    let node =
        Node::builder().config(crate::ROOMY).model("forger", &[("model.py", FORGER)]).model("failing", &reason).start();
    assert_eq!(node.http().run("forger", &json!(0)).status, 200);
    let instance = node.instance("forger").unwrap().id;
    let logs = || node.omnictl(["logs", "forger"]).stdout;
    wait_for("all lines", PATIENCE, || (logs().lines().count() >= 2 * LINES).then_some(()));
    assert_eq!(logs().lines().count(), 2 * LINES, "{}", logs());
    assert_eq!(foreign(&logs(), &instance), Vec::<&str>::new());

    assert_eq!(node.http().run("failing", &json!(0)).status, 503);
    // Files in a directory may have such a name, and the launcher says why it serves nothing of it.
    node.publish("odd", &[("model.py", FORGER)]);
    symlink("/name \u{9b}2J\u{202e}order", node.folder().join("odd/link")).unwrap();
    wait_for("the refusal", PATIENCE, || node.log().contains("model refused").then_some(()));
    let seen = [
        logs(),
        node.omnictl(["logs", "failing"]).stdout,
        node.omnictl(["status", "failing"]).stdout,
        node.omnictl(["list"]).stdout,
        node.omnictl(["start", "failing", "--wait"]).stderr,
        node.log(),
    ];
    for text in &seen {
        assert_eq!(commands(text), Vec::<char>::new(), "{text}");
    }
    assert!(seen[2].contains("RuntimeError") && seen[2].contains("\\u{1b}[2J"), "it is shown: {}", seen[2]);
    assert!(node.log().contains("u{9b}2J"), "the name is shown");
    assert_eq!(forged(&node.log()), Vec::<String>::new());
    node.stop();
}
