//! The help texts: people learn the program from them, so that a change is looked at.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use common::omnictl;

#[test]
fn every_command_explains_itself() {
    let commands = [
        "",
        "list",
        "status",
        "show",
        "run",
        "logs",
        "stack",
        "start",
        "stop",
        "pull",
        "restart",
        "wait",
        "deploy",
        "rollback",
        "history",
        "explain",
        "init",
        "check",
        "token",
        "top",
        "usage",
        "jobs",
        "gpu",
        "doctor",
        "completion",
        "upgrade",
        "version",
    ];
    for command in commands {
        let arguments: Vec<&str> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let output = omnictl(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        let name = if command.is_empty() { "omnictl" } else { command };
        insta::assert_snapshot!(format!("help_{name}"), String::from_utf8(output.stdout).unwrap());
    }
}

#[test]
fn mistakes_on_the_command_line_have_exit_code_2_and_a_way_out() {
    let lines: [&[&str]; 10] = [
        &[],
        &["lst"],
        &["status", "--watch"],
        &["status", "../etc"],
        &["list", "-o", "yaml"],
        &["start", "cowsay", "--timeout", "5m"],
        &["start", "cowsay", "--wait", "--timeout", "5"],
        &["run", "cowsay", "{}", "--file", "x"],
        &["init", "a b"],
        &["run", "cowsay", "{text: hi}"],
    ];
    let mut said = String::new();
    for line in lines {
        let output = omnictl(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert_eq!(output.stdout, b"", "{line:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        // Without arguments the answer is the full help, which has its own snapshot.
        let shown = if line.is_empty() { error.lines().next().unwrap_or_default() } else { error.trim_end() };
        said.push_str(&format!("$ omnictl {}\n{shown}\n\n", line.join(" ")));
    }
    insta::assert_snapshot!("mistakes", said);
}

#[test]
fn completion_scripts_for_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = omnictl(&["completion", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("restart") && script.contains("socket"), "{shell}");
    }
}
