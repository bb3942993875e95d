//! Rules about documents: every page is found from the first ones, links lead somewhere, promised commands exist.

use crate::tree::{Files, is_test};
use std::collections::BTreeSet;

/// Where readers begin.
const ENTRANCES: &[&str] = &["README.md", "ARCHITECTURE.md"];
/// Commands that the README names, in this order.
const COMMANDS: &[&str] = &["run", "test"];
/// All targets of the design that exist by now.
const TARGETS: &[&str] = &["run", "test", "soak", "build", "bench", "check"];

pub(crate) fn commands(readme: &str, makefile: &str) -> Vec<String> {
    let unnamed = COMMANDS
        .iter()
        .filter(|name| !readme.contains(&format!("make {name}")))
        .map(|name| format!("README.md: does not name `make {name}`"));
    let defined = |name: &str| {
        makefile.lines().any(|line| {
            line.split_once(':').is_some_and(|(targets, _)| targets.split_whitespace().any(|target| target == name))
        })
    };
    let undefined =
        TARGETS.iter().filter(|name| !defined(name)).map(|name| format!("Makefile: has no target `{name}`"));
    unnamed.chain(undefined).collect()
}

/// Pages that no chain of links reaches.
pub(crate) fn unreachable(files: &Files) -> Vec<String> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut next: Vec<String> = ENTRANCES.iter().map(|page| (*page).to_owned()).collect();
    while let Some(page) = next.pop() {
        if seen.insert(page.clone())
            && let Some(text) = files.get(&page)
        {
            next.extend(links(&page, text).into_iter().filter(|target| target.ends_with(".md")));
        }
    }
    let pages = files.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    pages
        .filter(|page| !seen.contains(*page))
        .map(|page| format!("{page}: not linked from {}", ENTRANCES.join(" or ")))
        .collect()
}

/// Links to files that are not there.
pub(crate) fn broken(files: &Files, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let pages = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let dead = pages
        .flat_map(|(path, text)| links(path, text).into_iter().map(move |target| (path, target)))
        .filter(|(_, target)| !exists(target));
    dead.map(|(path, target)| format!("{path}: links to {target}, which is not there")).collect()
}

/// Rows of a page's tables whose last column, `test`, names no test, or one that is not there. A test is named by its file
/// or folder and its function, `limits::large_bodies_pass_through`; a probe of a test is a function in Python.
pub(crate) fn untested(page: &str, files: &Files) -> Vec<String> {
    let cells = |line: &str| line.trim_matches('|').rsplit('|').next().map(|cell| cell.trim().to_owned());
    let is_there = |name: &str| {
        let Some((test, function)) = name.split_once("::") else { return false };
        let of_test = |path: &String| path.contains(&format!("/{test}/")) || path.ends_with(&format!("/{test}.rs"));
        let sources = files.iter().filter(|(path, _)| is_test(path) && of_test(path));
        let defined = [format!("fn {function}("), format!("def {function}(")];
        sources.into_iter().any(|(_, text)| defined.iter().any(|definition| text.contains(definition)))
    };
    let text = files.get(page).map_or("", String::as_str);
    let mut violations = Vec::new();
    let mut in_table = false;
    for line in text.lines() {
        let last = cells(line).filter(|_| line.starts_with('|'));
        match last {
            None => in_table = false,
            Some(cell) if cell == "test" => in_table = true,
            Some(cell) if in_table && !cell.starts_with("---") => {
                let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
                if named.is_empty() {
                    violations.push(format!("{page}: names no test: {line}"));
                }
                let lost = named.into_iter().filter(|name| !is_there(name));
                violations.extend(lost.map(|name| format!("{page}: there is no test `{name}`")));
            }
            Some(_) => {}
        }
    }
    violations
}

/// Targets of a page's links to files, as paths from the root.
fn links(page: &str, text: &str) -> Vec<String> {
    let target =
        |after: &str| after.split_once(')').map(|(target, _)| target.split('#').next().unwrap_or("").to_owned());
    let local = |target: &String| !target.is_empty() && !target.contains(':') && !target.contains(' ');
    // A link in an example of code is no link.
    let prose: String = text.split("```").step_by(2).collect();
    prose.split("](").skip(1).filter_map(target).filter(local).map(|target| resolve(page, &target)).collect()
}

fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(pages: &[(&str, &str)]) -> Files {
        pages.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_lost_page_is_found() {
        let files = tree(&[
            ("README.md", "[a](docs/a.md) and [x](https://example.org/docs/lost.md)"),
            ("ARCHITECTURE.md", "```\n[lost](docs/lost.md)\n```"),
            ("docs/a.md", "[b](deep/b.md#part)"),
            ("docs/deep/b.md", "[up](../../README.md)"),
            ("docs/lost.md", "[itself](lost.md)"),
        ]);
        assert_eq!(unreachable(&files), ["docs/lost.md: not linked from README.md or ARCHITECTURE.md"]);
    }

    #[test]
    fn a_dead_link_is_found() {
        let files =
            tree(&[("docs/a.md", "[b](b.md), [root](../Cargo.toml), [site](https://example.org), [here](#part)")]);
        assert_eq!(broken(&files, |path| path == "Cargo.toml"), ["docs/a.md: links to docs/b.md, which is not there"]);
    }

    #[test]
    fn a_row_without_its_test_is_found() {
        let table =
            "| tries | test |\n| --- | --- |\n| a | `one::well`, `two::probe` |\n| b | `one::gone` |\n| c | none |\n";
        let files = tree(&[
            ("docs/a.md", &format!("{table}\n| other | table |\n| --- | --- |\n| `lost` | `x::y` |\n")),
            ("tests/kind/one.rs", "fn well() {}"),
            ("tests/two/probes/x.py", "def probe(world):"),
            ("src/one.rs", "fn gone() {}"),
        ]);
        let expected = ["docs/a.md: there is no test `one::gone`", "docs/a.md: names no test: | c | none |"];
        assert_eq!(untested("docs/a.md", &files), expected);
    }

    #[test]
    fn missing_commands_are_found() {
        let makefile = "check test: build\nrun:\nsoak bench:\nbuild:\n\techo\n";
        assert_eq!(commands("make run, make test", makefile), Vec::<String>::new());
        assert_eq!(commands("make run", "run:\n").len(), 1 + 5);
    }
}
