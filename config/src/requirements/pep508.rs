//! Statements of a `requirements.txt` that uv refuses, as far as the text and the model's directory tell: names,
//! versions, hashes, addresses and files. Markers are not read.
//!
//! For `omnictl check`. Invariant: nothing that uv accepts is objected to.

use super::{Requirement, Statement, Unreadable, statements};

/// Endings of archives, which are installed as they are.
const ARCHIVES: [&str; 7] = [".whl", ".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar"];
/// Operators of versions, longer ones before their prefixes.
const OPERATORS: [&str; 8] = ["===", "~=", "==", "!=", "<=", ">=", "<", ">"];
/// Algorithms of hashes, with their numbers of digits.
const ALGORITHMS: [(&str, usize); 5] = [("md5", 32), ("sha256", 64), ("sha384", 96), ("sha512", 128), ("blake2b", 128)];
/// Names of pre-releases, longer ones before their prefixes.
const PRE: [&str; 8] = ["alpha", "beta", "preview", "pre", "rc", "a", "b", "c"];
const POST: [&str; 3] = ["post", "rev", "r"];

/// The first thing in the text that uv refuses. `exists` says whether a path is there, in the model's directory or absolute.
pub fn objection(text: &str, exists: &dyn Fn(&str) -> bool) -> Option<Unreadable> {
    statements(text).find_map(|statement| {
        let (line, wrong) = match statement {
            Err(unreadable) => return Some(unreadable),
            Ok(Statement::Option { line, name, value }) => (line, option(name, value.unwrap_or_default(), exists)),
            Ok(Statement::Requirement(requirement)) => (requirement.line, self::requirement(&requirement, exists)),
        };
        wrong.err().map(|message| Unreadable { line, message })
    })
}

fn option(name: &str, value: &str, exists: &dyn Fn(&str) -> bool) -> Result<(), String> {
    // Values with variables or quotes are left to uv.
    if value.contains(['$', '"', '\'', '\\']) || is_address(value) || exists(value) {
        return Ok(());
    }
    match name {
        "-r" | "--requirement" | "-c" | "--constraint" => Err(format!("`{name} {value}`: there is no such file")),
        "-i" | "--index-url" | "--extra-index-url" | "-f" | "--find-links" => {
            Err(format!("`{name} {value}`: this is neither an address nor a directory"))
        }
        _ => Ok(()),
    }
}

fn requirement(requirement: &Requirement<'_>, exists: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let text = requirement.text.trim();
    // Hashes of requirements that are not pinned are not checked.
    let hashes = requirement.hashes.iter().filter(|_| text.contains("=="));
    hashes.into_iter().try_for_each(|text| hash(text))?;
    let first = text.split([' ', '\t', ';', '[']).next().unwrap_or_default();
    let is_archive = ARCHIVES.iter().any(|end| first.ends_with(end));
    // `name@address`
    let is_named = first.split_once('@').is_some_and(|(before, _)| name(before).is_ok_and(str::is_empty));
    let is_path = first.starts_with(['.', '/']) || !is_named && (first.contains('/') || is_archive);
    // A backslash may belong to a path.
    if requirement.editable || first.contains('$') || text.contains('\\') || is_address(first) {
        Ok(())
    } else if is_path {
        path(first, exists)
    } else {
        named(text).map_err(|why| format!("`{}`: {why}", text.escape_debug()))
    }
}

fn path(path: &str, exists: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if let Some(stem) = name.strip_suffix(".whl")
        && !(5..=6).contains(&stem.split('-').count())
    {
        return Err(format!("`{path}`: a wheel's file is named `name-version-python-abi-platform.whl`"));
    }
    if exists(path) { Ok(()) } else { Err(format!("`{path}`: there is no such file or directory")) }
}

/// Matches `https:` and `git+ssh:`; a single letter is a drive.
fn is_address(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.len() > 1
            && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+.-".contains(character))
    })
}

fn hash(text: &str) -> Result<(), String> {
    let (name, digits) = text.split_once(':').unwrap_or((text, ""));
    let Some((_, length)) = ALGORITHMS.iter().find(|(known, _)| *known == name) else {
        return Err(format!("`--hash={text}` begins with none of md5:, sha256:, sha384:, sha512:, blake2b:"));
    };
    if digits.len() == *length {
        Ok(())
    } else {
        Err(format!("`--hash={text}`: a {name} has {length} hexadecimal digits, not {}", digits.len()))
    }
}

/// `name[extra] >= 1, < 2 ; marker`, or `name @ address`.
fn named(text: &str) -> Result<(), String> {
    let rest = name(text)?.trim_start();
    let rest = match rest.strip_prefix('[') {
        None => rest,
        Some(extras) => {
            let (extras, rest) = extras.split_once(']').ok_or("`]` is missing")?;
            let is_name = |extra: &str| name(extra).is_ok_and(str::is_empty);
            if !extras.trim().is_empty() && !extras.split(',').all(|extra| is_name(extra.trim())) {
                return Err(format!("`[{extras}]` is no list of extras"));
            }
            rest.trim_start()
        }
    };
    if let Some(address) = rest.strip_prefix('@') {
        return if address.trim().is_empty() { Err("an address is missing behind `@`".to_owned()) } else { Ok(()) };
    }
    let (versions, marker) = match rest.split_once(';') {
        Some((versions, marker)) => (versions.trim(), Some(marker)),
        None => (rest.trim(), None),
    };
    let inner = versions.strip_prefix('(').map(|inner| inner.strip_suffix(')').ok_or("`)` is missing")).transpose()?;
    let versions = inner.unwrap_or(versions);
    let all = versions.split(',').map(str::trim).filter(|version| !version.is_empty());
    all.into_iter().try_for_each(specifier)?;
    match marker {
        Some(marker) if marker.trim().is_empty() => Err("a marker is missing behind `;`".to_owned()),
        Some(_) | None => Ok(()),
    }
}

/// The rest of a requirement behind its name.
fn name(text: &str) -> Result<&str, String> {
    let end = text.find(|character: char| !(character.is_ascii_alphanumeric() || "._-".contains(character)));
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let is_plain = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    if is_plain(name.as_bytes().first()) && is_plain(name.as_bytes().last()) {
        Ok(rest)
    } else {
        Err("a package's name begins and ends with a letter or a digit".to_owned())
    }
}

fn specifier(text: &str) -> Result<(), String> {
    let found = OPERATORS.iter().find_map(|operator| Some((*operator, text.strip_prefix(operator)?.trim())));
    let Some((operator, version)) = found else {
        return Err(format!("`{text}` begins with none of ~=, ==, !=, <=, >=, <, >, ==="));
    };
    if let Some(prefix) = version.strip_suffix(".*") {
        let may = matches!(operator, "==" | "!=") && self::version(prefix).is_some();
        return if may { Ok(()) } else { Err(format!("`{text}`: `.*` stands behind numbers and `==` or `!=`")) };
    }
    match self::version(version) {
        None => Err(format!("`{version}` is no version")),
        Some(1) if operator == "~=" => Err("`~=` wants at least two numbers, as in `~=1.0`".to_owned()),
        Some(_) => Ok(()),
    }
}

/// The count of numbers in a version's release, by PEP 440; `None` if it is not a version.
fn version(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_prefix('v').unwrap_or(&text);
    let (text, local) = text.split_once('+').map_or((text, None), |(text, local)| (text, Some(local)));
    let fits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if local.is_some_and(|local| !local.split(['.', '-', '_']).all(fits)) {
        return None;
    }
    let text = match text.split_once('!') {
        Some((epoch, rest)) => number(epoch).filter(|rest| rest.is_empty()).map(|_| rest)?,
        None => text,
    };
    let (mut rest, mut count) = (number(text)?, 1);
    while let Some(next) = rest.strip_prefix('.').and_then(number) {
        (rest, count) = (next, count + 1);
    }
    rest = part(rest, &PRE);
    rest = match rest.strip_prefix('-').and_then(number) {
        Some(next) => next,
        None => part(rest, &POST),
    };
    part(rest, &["dev"]).is_empty().then_some(count)
}

/// The rest of a text behind its leading number.
fn number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|character: char| character.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// The rest of a text behind one of these names and its number; the whole text without one.
fn part<'a>(text: &'a str, words: &[&str]) -> &'a str {
    let begin = text.strip_prefix(['.', '-', '_']).unwrap_or(text);
    let Some(rest) = words.iter().find_map(|word| begin.strip_prefix(word)) else { return text };
    let numbered = rest.strip_prefix(['.', '-', '_']).unwrap_or(rest);
    number(numbered).unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objected(text: &str) -> Option<(usize, String)> {
        let exists = |path: &str| matches!(path, "." | "./there" | "more.txt" | "./a-1-py3-none-any.whl" | "wheels");
        objection(text, &exists).map(|Unreadable { line, message }| (line, message))
    }

    #[test]
    fn texts_that_uv_reads_get_no_objection() {
        for text in [
            "",
            "numpy",
            "A_b.c [x , y] (>=1,<2) ; os_name==\"x\"",
            "a[]",
            "a>=1,",
            "a==1.0.*\na!=1.*\na~=1.0\na===1",
            "a==1.0dev\na==v1!2.0a.1.post-2+x_y\na==1-1\na>=2.0rc1.dev3\na==1.0.post",
            "a@http://x/a.zip\na @ git+https://host/a@main",
            "git+https://host/a\nhttps://host/a.tar.gz",
            "a\\b\na --hash=x",
            "./there\n.\n-e .\n./a-1-py3-none-any.whl\n${HOME}/x",
            "-r more.txt\n-c more.txt\n-i https://index\n-f wheels\n--pre\n-r \"a b\"",
            "a ; python_version > '3' and (x == 'y' or z in 'w') # why",
        ] {
            assert_eq!(objected(text), None, "{text:?}");
        }
        let hashed = format!("a==1 --hash=sha256:{} \\\n  --hash=md5:{}\n", "0".repeat(64), "a".repeat(32));
        assert_eq!(objected(&hashed), None);
    }

    #[test]
    fn refused_text_is_named_with_its_line() {
        for (text, line, words) in [
            ("a\n--no-cache-dir", 2, "begins neither a requirement nor an option"),
            ("[packages]\nsix = \"*\"", 1, "begins neither"),
            ("six = \"*\"", 1, "begins with none of"),
            ("# c\ra=1", 2, "begins with none of"),
            ("a==x", 1, "`x` is no version"),
            ("a===foo", 1, "is no version"),
            ("a>=1.0.*", 1, "`.*` stands behind"),
            ("a~=1", 1, "at least two numbers"),
            ("a >=1 <2", 1, "`1 <2` is no version"),
            ("a[x", 1, "`]` is missing"),
            ("a (>=1", 1, "`)` is missing"),
            ("a-", 1, "begins and ends with"),
            ("a @ ", 1, "an address is missing"),
            ("a;", 1, "a marker is missing"),
            ("numpy 1.0 py311_0", 1, "begins with none of"),
            ("./none.whl", 1, "name-version-python"),
            ("./none-1-py3-none-any.whl", 1, "no such file"),
            ("-r none.txt", 1, "there is no such file"),
            ("--index-url name", 1, "neither an address nor a directory"),
            ("lfs==1 --hash=md5:abc", 1, "32 hexadecimal digits, not 3"),
            ("a==1 --hash=sha256", 1, "64 hexadecimal digits, not 0"),
            ("a==1 --hash=sha1:00", 1, "none of md5:"),
        ] {
            let (found, message) = objected(text).unwrap_or_else(|| panic!("{text:?} is read"));
            assert!(found == line && message.contains(words), "{text:?}: {found} {message}");
        }
    }
}
