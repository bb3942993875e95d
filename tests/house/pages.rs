//! Rules about what pages name: metrics, commands and messages must be those of the programs.

use crate::tree::Files;

/// The page whose quotes are messages of the programs, or of those whose words they hand on.
const MESSAGES: &str = "docs/troubleshooting.md";
/// Parts of a message are at most so far apart in the source, what stands between them included.
const NEAR: usize = 400;

/// Metrics that pages name and the scheduler does not have; `known` is what it says of all of them.
pub(crate) fn metrics(path: &str, page: &str, known: &str) -> Vec<String> {
    let is_known = |name: &str| known.contains(&format!("\n{name} ")) || known.contains(&format!("\n{name}{{"));
    // A family of them: `omni_a_{b,c}_total`. A histogram has three series.
    let exists = |name: &str| is_known(name) || is_known(&format!("{name}_count"));
    // Metrics of servers have names that only the servers know.
    let ours = |span: &&str| span.starts_with("omni_") && !span.starts_with("omni_engine_");
    let named = spans(page).filter(ours).flat_map(members);
    named.filter(|name| !exists(name)).map(|name| format!("{path}: there is no metric {name}")).collect()
}

/// Commands of omnictl that pages name and that it does not have.
pub(crate) fn commands(path: &str, page: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let named = spans(page).filter_map(|span| span.strip_prefix("omnictl ")?.split(' ').next());
    let commands = named.filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    let unknown = commands.filter(|word| !exists(&format!("omnictl/tests/snapshots/help__help_{word}.snap")));
    unknown.map(|word| format!("{path}: there is no `omnictl {word}`")).collect()
}

/// Messages that a page quotes and that no program says. `…` stands for anything.
pub(crate) fn messages(files: &Files) -> Vec<String> {
    let sources: Vec<String> =
        files.iter().filter(|(path, _)| path.ends_with(".rs")).map(|(_, source)| plain(source)).collect();
    let page = files.get(MESSAGES).map_or("", String::as_str);
    let unsaid = quoted(page).into_iter().filter(|message| !sources.iter().any(|source| says(source, message)));
    unsaid.map(|message| format!("{MESSAGES}: nothing says \"{message}\"")).collect()
}

/// Code spans of the prose.
fn spans(page: &str) -> impl Iterator<Item = &str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(|part| part.lines()).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// `a_{b,c}_d` as `a_b_d` and `a_c_d`; labels behind a name are none of it.
fn members(span: &str) -> Vec<String> {
    match span.split_once('{').map(|(begin, rest)| (begin, rest.split_once('}'))) {
        Some((begin, Some((list, end)))) if begin.ends_with('_') => {
            list.split(',').map(|part| format!("{begin}{part}{end}")).collect()
        }
        Some((name, _)) => vec![name.to_owned()],
        None => vec![span.to_owned()],
    }
}

/// Texts in straight quotes in rows of tables.
fn quoted(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let unescaped: String = rows.map(|row| row.replace("\\\"", "'") + "\n").collect();
    unescaped.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A source with its texts as they are printed: without the breaks and marks that the language needs.
fn plain(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or("").to_owned();
    let joined = lines.fold(first, |text, line| text + line.trim_start());
    joined.replace("\\\"", "'")
}

/// Returns true if all parts of a message stand near each other, in its order.
fn says(source: &str, message: &str) -> bool {
    let parts: Vec<&str> = message.split('…').map(str::trim).filter(|part| !part.is_empty()).collect();
    let Some((first, rest)) = parts.split_first() else { return false };
    source.match_indices(first).any(|(at, _)| {
        let mut end = at + NEAR;
        while !source.is_char_boundary(end.min(source.len())) {
            end += 1;
        }
        let mut after = &source[at + first.len()..end.max(at + first.len()).min(source.len())];
        rest.iter().all(|part| match after.split_once(part) {
            Some((_, behind)) => {
                after = behind;
                true
            }
            None => false,
        })
    })
}

#[test]
fn unknown_metrics_are_found() {
    let known = "\nomni_one_total 1\nomni_two{model=\"a\"} 1\nomni_three_count 0\n";
    let good = "`omni_one_total`, `omni_two{model}`, `omni_three`, `omni_{one,one}_total`, omni_prose, `omnictl`, `omni_engine_x`";
    assert_eq!(metrics("a.md", good, known), Vec::<String>::new());
    assert_eq!(metrics("a.md", "`omni_{one,four}_total`", known), ["a.md: there is no metric omni_four_total"]);
    assert_eq!(metrics("a.md", "`omni_on`", known).len(), 1);
}

#[test]
fn unknown_commands_are_found() {
    let exists = |path: &str| path == "omnictl/tests/snapshots/help__help_status.snap";
    let page = "`omnictl status MODEL`, `omnictl --help`, `omnictl COMMAND`\n```\n`omnictl gone`\n```\n";
    assert_eq!(commands("a.md", page, exists), Vec::<String>::new());
    assert_eq!(commands("a.md", "`omnictl start m`", exists), ["a.md: there is no `omnictl start`"]);
}

#[test]
fn unknown_messages_are_found() {
    let source = "#[error(\"cannot {what} {}: \\\n     make it\", x)]\nformat!(\"mode = \\\"a\\\" is not here\")";
    let of = |page: &str| {
        messages(&Files::from([("a.rs".to_owned(), source.to_owned()), (MESSAGES.to_owned(), page.to_owned())]))
    };
    let good = "| 78 | \"cannot …: make it\", \"… is not here\" | \"mode = \\\"a\\\" is not …\" |\nno \"row\"";
    assert_eq!(of(good), Vec::<String>::new());
    assert_eq!(of("| \"make it … cannot\" |"), ["docs/troubleshooting.md: nothing says \"make it … cannot\""]);
    assert_eq!(of("| \"…\" |").len(), 1);
}
