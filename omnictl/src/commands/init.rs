//! `omnictl init`: the directory of a new model of any kind, ready to serve and to test.
//!
//! The files are those in `omnictl/templates/`, with the model's name and kind put in. Invariants: nothing that exists is
//! overwritten, and the new files pass `omnictl check` and their own tests.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use omni_config::ModelName;
use omni_config::manifest::Kind;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, note};

/// Files of every new model.
const COMMON: [(&str, &str); 2] = [
    ("requirements.txt", include_str!("../../templates/requirements.txt")),
    ("omni.toml", include_str!("../../templates/omni.toml")),
];
const CHAT_TEMPLATE: &str = include_str!("../../templates/text-generation/chat_template.jinja");
/// Placeholder of the model's name in a template.
const NAME: &str = "MODEL_NAME";
/// Beginning of the manifest's line that a kind replaces.
const KIND: &str = "# kind = ";

/// Code and test of a new model.
macro_rules! code {
    ($kind:literal) => {
        [
            ("model.py", include_str!(concat!("../../templates/", $kind, "/model.py"))),
            ("test_model.py", include_str!(concat!("../../templates/", $kind, "/test_model.py"))),
        ]
    };
}

/// Files of a new model: names and contents, in the order in which its author reads them.
fn files(kind: Kind) -> Vec<(&'static str, String)> {
    let [code, test] = match kind {
        Kind::Custom => code!("custom"),
        Kind::TextGeneration => code!("text-generation"),
        Kind::Embeddings => code!("embeddings"),
        Kind::Rerank => code!("rerank"),
        Kind::SpeechToText => code!("speech-to-text"),
        Kind::TextToSpeech => code!("text-to-speech"),
        Kind::TextToImage => code!("text-to-image"),
    };
    let template = (kind == Kind::TextGeneration).then_some(("chat_template.jinja", CHAT_TEMPLATE));
    let [requirements, manifest] = COMMON;
    let files = [Some(code), template, Some(requirements), Some(manifest), Some(test)];
    files.into_iter().flatten().map(|(name, text)| (name, of_kind(text, kind))).collect()
}

/// A template's text with the model's kind in the place of the default, where it is a manifest.
fn of_kind(text: &str, kind: Kind) -> String {
    let line = |line: &str| {
        let is_replaced = kind != Kind::Custom && line.starts_with(KIND);
        if is_replaced { format!("kind = \"{}\"\n", kind.name()) } else { line.to_owned() }
    };
    text.split_inclusive('\n').map(line).collect()
}

pub(super) fn run(context: &mut Context<'_>, name: &str, kind: Kind, dir: &Path) -> Result<Exit, Failure> {
    let model: ModelName = name.parse().map_err(|source| Failure::Name { text: name.to_owned(), source })?;
    let directory = dir.join(model.as_str());
    create(&directory)?;
    let mut written = Vec::new();
    for (file, template) in files(kind) {
        let path = directory.join(file);
        write(&path, &template.replace(NAME, model.as_str())).map_err(|source| Failure::File {
            verb: "write",
            path: path.clone(),
            source,
        })?;
        written.push(path.display().to_string());
    }
    match context.format {
        Format::Json => context.out.json(&serde_json::Value::from(written).to_string())?,
        Format::Table => context.out.line(written.join("\n"))?,
    }
    let directory = directory.display();
    note(format_args!(
        "next: `python -m pytest {directory}` tests it, `omnictl check {directory}` looks at it as a node would;\n\
         a node serves it as `{model}` as soon as the directory is in its models folder"
    ));
    Ok(Exit::Ok)
}

/// Makes the model's directory, which must not be there or be empty.
fn create(directory: &Path) -> Result<(), Failure> {
    let failure = |verb| move |source| Failure::File { verb, path: PathBuf::from(directory), source };
    fs::create_dir_all(directory).map_err(failure("create"))?;
    let taken = fs::read_dir(directory).map_err(failure("read"))?.next().is_some();
    if taken { Err(Failure::Exists(directory.to_owned())) } else { Ok(()) }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use omni_config::Manifest;
    use omni_config::manifest::Kind;

    #[test]
    fn the_manifest_of_a_kind_differs_in_that_alone() {
        for kind in Kind::ALL {
            let files = super::files(kind);
            let (_, text) = files.iter().find(|(name, _)| *name == "omni.toml").unwrap();
            let mut expected = Manifest::default();
            expected.model.kind = kind;
            assert_eq!(Manifest::parse(text), Ok(expected), "{}", kind.name());
        }
    }

    #[test]
    fn the_commented_manifest_shows_the_defaults() {
        let template = include_str!("../../templates/omni.toml");
        let keys: Vec<&str> = template.lines().filter_map(|line| line.strip_prefix("# ")).filter(is_key).collect();
        assert!(keys.len() > 10);
        let sections = template.lines().filter(|line| !line.starts_with("# ") || is_key(&&line[2..]));
        let uncommented: Vec<&str> = sections.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        assert_eq!(Manifest::parse(&uncommented.join("\n")), Ok(Manifest::default()));
        assert_eq!(Manifest::parse(template), Ok(Manifest::default()));
    }

    fn is_key(line: &&str) -> bool {
        line.split_once(" = ").is_some_and(|(key, _)| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
    }
}
