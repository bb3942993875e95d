//! All that the fuzzer found and that was worth keeping, once more: `fuzz/kept/TARGET` has what leads everywhere,
//! `fuzz/cases/TARGET` what shows a flaw, once there or made by hand.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_properties::ALL;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn files(of: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(of).join(target);
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn hold(target: &str) {
    let (_, holds) = ALL.iter().find(|(name, _)| *name == target).unwrap();
    let kept = files("kept", target);
    assert!(!kept.is_empty(), "nothing is kept of {target}");
    for path in kept.into_iter().chain(files("cases", target)) {
        let data = fs::read(&path).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| holds(&data))).is_ok(), "{}", path.display());
    }
}

/// A test for each folder, so that results carry its name.
macro_rules! tests {
    ($($target:ident)*) => {
        $(#[test] fn $target() { hold(stringify!($target)); })*

        #[test]
        fn every_property_has_its_test() {
            assert_eq!([$(stringify!($target)),*], ALL.map(|(name, _)| name));
        }
    };
}

tests! {
    answer chat_template gguf gpu_account gpu_control http manifest messages model_config node request_bodies
    requirements safetensors tokenizer tool_calls
}

#[test]
fn every_folder_belongs_to_a_fuzz_target() {
    for of in ["kept", "cases", "fuzz_targets"] {
        for path in files(of, "") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(ALL.iter().any(|(target, _)| *target == name), "{}", path.display());
        }
    }
}
