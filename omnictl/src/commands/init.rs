//! `omnictl init`: the directory of a new model, ready to serve and to test.
//!
//! The files are those in `omnictl/templates/`, with the model's name put in. Invariants: nothing that exists is
//! overwritten, and the new files pass `omnictl check`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use omni_config::ModelName;

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, note};

/// The files of a new model, in the order in which its author reads them.
const FILES: [(&str, &str); 4] = [
    ("model.py", include_str!("../../templates/model.py")),
    ("requirements.txt", include_str!("../../templates/requirements.txt")),
    ("omni.toml", include_str!("../../templates/omni.toml")),
    ("test_model.py", include_str!("../../templates/test_model.py")),
];
/// Stands for the model's name in a template.
const NAME: &str = "MODEL_NAME";

pub(super) fn run(context: &mut Context<'_>, name: &str, dir: &Path) -> Result<Exit, Failure> {
    let model: ModelName = name.parse().map_err(|source| Failure::Name { text: name.to_owned(), source })?;
    let directory = dir.join(model.as_str());
    create(&directory)?;
    let mut written = Vec::new();
    for (file, template) in FILES {
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
