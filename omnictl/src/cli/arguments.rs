//! Arguments of the commands that have several, and the checks of their texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use omni_config::manifest::Kind;
use omni_config::{ModelName, duration};

/// `start`, `stop`, `restart`.
#[derive(Debug, Args)]
pub(crate) struct Lifecycle {
    /// The model
    #[arg(value_name = "MODEL")]
    pub(crate) model: ModelName,
    /// Return when it is done: exit code 0, or 3 if the model failed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait at most this long; exit code 124 if it takes longer
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "2m", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}

/// States that `wait` can wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitFor {
    /// Takes requests.
    #[default]
    Ready,
    /// Has no process.
    Stopped,
}

/// `deploy`.
#[derive(Debug, Args)]
#[command(after_help = "\
The directory is checked as `omnictl check` does, copied beside the others in the node's models
folder and put in its place in one step. The new version starts beside the old one, which serves on
until the new one is ready, and further on if it never is: exit code 3.

Examples:
  omnictl deploy hello                        serves ./hello as `hello`
  omnictl deploy . @acme/summarize            serves this directory under that name
  omnictl rollback hello                      what served before serves again")]
pub(crate) struct Deploy {
    /// The model's directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The model's name [default: the directory's]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<ModelName>,
    /// Wait at most this long for it to serve; exit code 124 if it takes longer
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}

/// `rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
The version starts beside the one that serves, and takes its place when it is ready. It stays until
the model's directory changes.

Examples:
  omnictl rollback cowsay --wait              the version that served before
  omnictl rollback cowsay --to 3f2a           the one of `omnictl history` that begins like this")]
pub(crate) struct Rollback {
    /// The model
    #[arg(value_name = "MODEL")]
    pub(crate) model: ModelName,
    /// The first digits of the version [default: the one that served before]
    #[arg(long, value_name = "VERSION", value_parser = digits)]
    pub(crate) to: Option<String>,
    /// Return when it serves: exit code 0, or 3 if it failed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait at most this long; exit code 124 if it takes longer
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "2m", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}

/// Digits of a version, as the API takes them.
fn digits(text: &str) -> Result<String, String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(is_digit) {
        Ok(text.to_owned())
    } else {
        Err("a version is 64 hexadecimal digits; its first ones are enough".to_owned())
    }
}

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Text is printed as text and a stream as it arrives; other JSON is indented. With -o json the whole
answer of the run API is printed, or each event of a stream on a line. Bytes (images, sound) go to
--out or to a pipe, never to a terminal. Ctrl-C cancels the request.

Examples:
  omnictl run cowsay '{\"text\": \"hi\"}'
  omnictl run cowsay --field text=hi
  omnictl run counter --field to:=3 --stream
  omnictl run embeddings - <request.json
  omnictl run thumbnail --file cat.jpg --header 'x-thumbnail-size: 64' --out cat.png")]
pub(crate) struct Run {
    /// The model
    #[arg(value_name = "MODEL")]
    pub(crate) model: ModelName,
    /// The body as JSON, or `-` to read it from standard input [default: {}]
    #[arg(value_name = "JSON")]
    pub(crate) json: Option<String>,
    /// Set a key of the body: KEY=TEXT, or KEY:=JSON for anything but text; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) field: Vec<String>,
    /// Send the bytes of this file as the body, or `-` for those of standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "field", "stream"])]
    pub(crate) file: Option<PathBuf>,
    /// Ask for a stream: sets "stream": true in the body
    #[arg(long)]
    pub(crate) stream: bool,
    /// Add a header to the request; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// Give up after this time and cancel the request; exit code 124
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Write the answer to this file, or `-` to write even bytes to standard output
    #[arg(short = 'O', long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The model
    #[arg(value_name = "MODEL")]
    pub(crate) model: ModelName,
    /// Go on with new lines until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of last lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub(crate) lines: u32,
    /// Only lines of this request, of all lines that the node has
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) request: Option<String>,
}

/// Kinds of models by their names in a manifest.
pub(super) fn kind() -> impl TypedValueParser<Value = Kind> {
    let of_name = |name: String| Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_default();
    PossibleValuesParser::new(Kind::ALL.map(Kind::name)).map(of_name)
}

/// A name as the file of tokens takes it.
pub(super) fn token_holder(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("a token's name has 1 to 64 letters, digits, `-` and `_`".to_owned())
    }
}
