//! How the rule of circles fails.

use super::*;

fn found(files: &[(&'static str, &'static str)]) -> Vec<String> {
    of_modules(&files.iter().copied().collect())
}

#[test]
fn two_modules_that_use_each_other_are_a_circle() {
    let modules = ("lib.rs", "mod a;\nmod b;");
    let circle = ["lib.rs: a -> b -> a"];
    assert_eq!(found(&[modules, ("a.rs", "use crate::b::X;"), ("b.rs", "fn f() { super::a::g() }")]), circle);
    assert_eq!(found(&[modules, ("a.rs", "use super::b;"), ("b.rs", "use crate::{a::{self, g}, c};")]), circle);
    assert_eq!(
        found(&[modules, ("a.rs", "use super::b;"), ("b.rs", "macro_rules! m { () => { $crate::a::g() } }")]),
        circle
    );
    assert_eq!(found(&[modules, ("a.rs", "use super::b;"), ("b.rs", "")]), Vec::<String>::new());
}

#[test]
fn a_module_stands_for_what_is_below_it() {
    let files = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a/mod.rs", "mod deep;\nmod other;"),
        ("a/deep.rs", "use super::super::b::X;"),
        ("a/other.rs", ""),
        ("b.rs", "use crate::a::other::Y;"),
    ];
    assert_eq!(found(&files), ["lib.rs: a -> b -> a"]);
}

#[test]
fn children_of_one_parent_are_looked_at_too() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod one; mod two; mod three;"),
        ("a/one.rs", "use super::two::X;"),
        ("a/two.rs", "use super::three::Y;"),
        ("a/three.rs", "use crate::a::one::Z;"),
    ];
    assert_eq!(found(&files), ["a: one -> two -> three -> one"]);
}

#[test]
fn a_parent_and_its_children_may_use_each_other() {
    let files = [
        ("lib.rs", "mod a;\nuse a::X;\npub struct Y;"),
        ("a/mod.rs", "mod b; use b::Z; struct Q;"),
        ("a/b.rs", "use super::Q; use crate::Y;"),
    ];
    assert_eq!(found(&files), Vec::<String>::new());
}

#[test]
fn a_name_is_followed_to_where_it_comes_from() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::X;"),
        ("a.rs", "use crate::X;"),
        ("b.rs", "use super::c::Again;"),
        ("c.rs", "pub use crate::a::Thing as Again;"),
    ];
    assert_eq!(found(&files), ["lib.rs: a -> b -> a", "lib.rs: c -> a -> b -> c"]);
}

#[test]
fn tests_comments_and_other_crates_are_no_mention() {
    let files = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a.rs", "use crate::b::X;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse crate::b;"),
        (
            "b.rs",
            "//! See [`crate::a`].\nuse other::a::X;\n#[cfg(test)]\nmod tests { use crate::a; }\n#[test]\nfn f() { crate::a::g() }",
        ),
    ];
    assert_eq!(found(&files), Vec::<String>::new());
    assert_eq!(sources_of("x/src/tests.rs"), 0);
    assert_eq!(sources_of("x/src/a_tests.rs"), 0);
    assert_eq!(sources_of("x/tests/main.rs"), 0);
    assert_eq!(sources_of("x/inner/src/lib.rs"), 0);
    assert_eq!(sources_of("x/src/a/b.rs"), 1);
}

fn sources_of(path: &str) -> usize {
    let files = Files::from([(path.to_owned(), String::new())]);
    let [outer, inner] = ["x/", "x/inner/"].map(|dir| Crate { dir, manifest: "", sources: Vec::new() });
    sources(&outer, &[inner], &files).len()
}

#[test]
fn programs_of_one_crate_are_looked_at_each() {
    let files = [
        ("bin/tool.rs", "mod a; mod b;"),
        ("bin/a.rs", "use super::b;"),
        ("bin/b.rs", "use crate::a;"),
        ("main.rs", ""),
    ];
    assert_eq!(found(&files), ["bin/tool.rs: a -> b -> a"]);
}

#[test]
fn crates_in_a_circle_and_stale_exceptions_are_found() {
    let member =
        |name: &str, needs: &str| format!("[package]\nname = \"{name}\"\n[dependencies]\n{needs}.workspace = true");
    let (one, two) = (member("one", "two"), member("two", "one"));
    let crates = [("one/", &one), ("two/", &two)].map(|(dir, manifest)| Crate { dir, manifest, sources: Vec::new() });
    assert_eq!(of_crates(&crates), ["crates: one -> two -> one"]);
    let crates = &crates[..1];
    let circle = Files::from(
        [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")]
            .map(|(file, text)| (format!("one/src/{file}"), text.to_owned())),
    );
    assert_eq!(in_workspace(crates, &circle, &[]), ["one: lib.rs: a -> b -> a"]);
    assert_eq!(in_workspace(crates, &circle, &[("one", "a reason")]), Vec::<String>::new());
    assert_eq!(
        in_workspace(crates, &Files::new(), &[("one", "a reason")]),
        ["one: has no circle; take it off the list"]
    );
    assert_eq!(
        in_workspace(crates, &Files::new(), &[("gone", "a reason")]),
        ["gone: is no crate; take it off the list"]
    );
}
