//! The rules of the house as tests over the source tree: layers, `unsafe`, length, headers, dependencies, documents.
//!
//! Each rule is a pure function from a file's text to its violations, with tests of its own that show how it fails; the
//! tests here apply it to every file. A new exception goes into the rule's table, with its reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod circles;
mod crates;
mod documents;
mod layers;
mod manifests;
mod pages;
mod rust;
mod text;
mod tree;
mod unsafety;
mod words;

use tree::Tree;

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// Applies a rule for one file to every file with one of the extensions.
fn every_file(extensions: &[&str], rule: impl Fn(&str, &str) -> Vec<String>) {
    let tree = Tree::read();
    let files: Vec<_> = tree.files.iter().filter(|(path, _)| tree::has_extension(path, extensions)).collect();
    assert!(files.len() > 10, "the tree was not found: {files:?}");
    assert_none(&files.into_iter().flat_map(|(path, content)| rule(path, content)).collect::<Vec<_>>());
}

#[test]
fn layers_keep_their_functions_to_themselves() {
    every_file(&["rs"], layers::confined);
}

#[test]
fn policy_is_pure() {
    every_file(&["rs"], layers::pure);
}

#[test]
fn unsafe_is_confined_and_explained() {
    every_file(&["rs"], unsafety::fenced);
    every_file(&["rs"], unsafety::explained);
    assert_none(&unsafety::stale(&Tree::read().files));
}

#[test]
fn long_files_have_a_reason() {
    every_file(&["rs", "py"], text::length);
    assert_none(&text::stale_lengths(&Tree::read().files));
}

#[test]
fn files_say_what_they_are_for() {
    every_file(&["rs", "py"], text::header);
}

#[test]
fn comments_begin_with_a_noun_or_a_verb() {
    every_file(&["rs", "py", "sh", "toml"], words::openers);
}

#[test]
fn nothing_is_left_for_later() {
    every_file(&["rs", "py", "toml", "sh"], text::unfinished);
}

#[test]
fn crates_depend_downwards() {
    let tree = Tree::read();
    assert_none(&tree.crates().flat_map(|krate| manifests::directions(&krate)).collect::<Vec<_>>());
}

#[test]
fn neither_modules_nor_crates_go_round_in_a_circle() {
    let tree = Tree::read();
    let crates: Vec<_> = tree.crates().collect();
    assert_none(&circles::in_workspace(&crates, &tree.files, circles::EXCEPTIONS));
}

#[test]
fn every_dependency_is_the_workspaces_and_is_used() {
    let tree = Tree::read();
    let crates: Vec<_> = tree.crates().collect();
    let mut violations = manifests::used_by_a_member(&tree.files["Cargo.toml"], &crates);
    violations.extend(crates.iter().flat_map(manifests::inherited));
    violations.extend(crates.iter().flat_map(manifests::mentioned));
    assert_none(&violations);
}

#[test]
fn every_file_of_tests_is_built() {
    let tree = Tree::read();
    assert_none(&manifests::unbuilt_tests(&tree.files));
}

#[test]
fn fuzz_targets_use_the_versions_that_are_built() {
    let (built, fuzzed) = (include_str!("../../Cargo.lock"), include_str!("../../fuzz/Cargo.lock"));
    assert_none(&manifests::same_versions(built, fuzzed));
}

#[test]
fn the_toolchain_is_pinned_and_documented_commands_exist() {
    let tree = Tree::read();
    assert_none(&manifests::toolchain(&tree.files["rust-toolchain.toml"], &tree.files["Cargo.toml"]));
    assert_none(&documents::commands(&tree.files["README.md"], &tree.files["Makefile"]));
}

#[test]
fn every_page_is_found_from_the_readme_and_no_link_is_broken() {
    let tree = Tree::read();
    assert_none(&documents::unreachable(&tree.files));
    assert_none(&documents::broken(&tree.files, |path| tree.exists(path)));
}

#[test]
fn pages_name_only_existing_metrics_commands_and_messages() {
    let tree = Tree::read();
    let known = include_str!(
        "../../scheduler/admin/src/snapshots/omni_admin__metrics__tests__names_and_help_of_all_metrics.snap"
    );
    let pages: Vec<_> = tree.files.iter().filter(|(path, _)| path.starts_with("docs/")).collect();
    assert!(pages.len() > 10, "the pages were not found: {pages:?}");
    assert_none(&pages.iter().flat_map(|(path, page)| pages::metrics(path, page, known)).collect::<Vec<_>>());
    let commands = |(path, page): &(&String, &String)| pages::commands(path, page, |file| tree.exists(file));
    assert_none(&pages.iter().flat_map(commands).collect::<Vec<_>>());
    assert_none(&pages::messages(&tree.files));
}

#[test]
fn every_attack_of_the_threat_model_has_its_test() {
    let tree = Tree::read();
    assert!(tree.files["docs/threat-model.md"].matches("`escape::").count() > 60, "its tables were not found");
    assert_none(&documents::untested("docs/threat-model.md", &tree.files));
}
