//! The command that makes cards.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::process::Command;

#[test]
fn an_option_is_no_directory() {
    let dir = tempfile::TempDir::new().unwrap();
    for words in [&["create", "--help"][..], &["create", "-x"], &["create"], &["show", "--help"], &["--help"], &[]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuda-sim-card"));
        let said = command.args(words).current_dir(dir.path()).output().unwrap();
        assert_eq!(said.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8(said.stderr).unwrap().starts_with("usage:"), "{words:?}");
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_directory_of_cards_is_made_and_shown() {
    let dir = tempfile::TempDir::new().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuda-sim-card"));
        let said = command.args(words).current_dir(dir.path()).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    run(&["create", "cards", "--gpus", "2", "--memory", "1GiB"]);
    assert!(run(&["show", "cards"]).contains(r#""memory":1073741824"#));
    assert!(dir.path().join("cards/nvidia1").exists());
}
