//! Templates and parsers of a model that generates text, as the files of its content and of its weights have them.
//!
//! ```text
//!  directory:  chat_template.jinja ── tokenizer_config.json ──┐ the first that has a chat template
//!  weights:    chat_template.jinja ── tokenizer_config.json ── *.gguf
//! ```
//!
//! Special tokens are those of the same `tokenizer_config.json`, or else of the next one that there is. The weights count for
//! the native engine alone, whose models have nothing beside them; without a source they are in the directory.

use crate::aside::Aside;
use omni_chat_template::{ChatTemplate, LoadError, RenderError, Rendered, TemplateSource};
use omni_config::Foreign;
use omni_config::manifest::{AUTO, Engine, Kind, Manifest};
use omni_generation::Chat;
use omni_gguf::Conversation;
use omni_launcher_client::NodeFiles;
use omni_node_protocol::launcher::GGUF;
use omni_tool_parser::{Dialect, ReasoningFormat};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest file that is read whole, in bytes: the added tokens of a large vocabulary take a few megabytes.
const LONGEST: u64 = 64 << 20;
/// Longest time of a brief render. One that is longer, for the template's sake or another's, is the last of its content.
const BRIEF: Duration = Duration::from_millis(5);
/// Names of the files.
const JINJA: &str = "chat_template.jinja";
const TOKENIZER: &str = "tokenizer_config.json";

/// Knowledge of the node about a content that generates text.
#[derive(Debug)]
pub(crate) struct TextModel {
    /// Chat template; `None`: the model has none.
    pub(crate) template: Option<Arc<ChatTemplate>>,
    /// Threads for renders, and for what clients' schemas take.
    pub(crate) aside: Aside,
    /// A render that had to be brief was not: all further ones are aside.
    is_slow: AtomicBool,
    /// Dialect of tool calls in its output.
    pub(crate) dialect: Dialect,
    /// Form of reasoning in its output.
    pub(crate) reasoning: Option<ReasoningFormat>,
}

/// Files of a content that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextModelError {
    /// A file cannot be read.
    #[error("`{name}`{place} cannot be read")]
    File {
        name: String,
        place: &'static str,
        #[source]
        error: io::Error,
    },
    /// A GGUF file that is none, or whose template cannot be read.
    #[error("`{name}`{place} {defect}")]
    Gguf { name: String, place: &'static str, defect: omni_gguf::Defect },
    /// The template of the directory cannot be used.
    #[error(transparent)]
    Template(#[from] LoadError),
    /// The template of another file cannot be used.
    #[error("the chat template of `{name}`{place} cannot be used")]
    TemplateOf {
        name: String,
        place: &'static str,
        #[source]
        error: LoadError,
    },
    /// A parser that there is none of.
    #[error("`{key}` in [chat] of omni.toml is {name:?}: write one of {}", known.join(", "))]
    Parser { key: &'static str, name: String, known: Vec<&'static str> },
}

/// Checks the chat template and the parsers of a content that generates text, as far as its directory has them. Takes some
/// milliseconds.
///
/// # Errors
/// A message for the model's author.
pub fn check_content(files: &NodeFiles, manifest: &Manifest) -> Result<(), String> {
    let own = OwnFiles::read(files, manifest).map_err(|error| omni_log::chain(&error).to_string())?;
    let (OwnFiles::Complete(texts) | OwnFiles::Incomplete(texts)) = own;
    TextModel::new(texts, manifest).map(drop).map_err(|error| omni_log::chain(&error).to_string())
}

/// Texts of a model's files.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    template: Option<Arc<ChatTemplate>>,
    /// Text that the template is in.
    printed: String,
    /// `tokenizer_config.json` of the directory.
    tokenizer: Option<String>,
}

/// Texts of the files of a content's directory.
#[derive(Debug)]
pub(crate) enum OwnFiles {
    /// All that there is of the model.
    Complete(Texts),
    /// Without a chat template; that of the weights is the model's.
    Incomplete(Texts),
}

impl OwnFiles {
    /// Reads them, and the weights that are among them.
    pub(crate) fn read(files: &NodeFiles, manifest: &Manifest) -> Result<Self, TextModelError> {
        debug_assert_eq!(manifest.model.kind, Kind::TextGeneration);
        let (jinja, tokenizer) = (text(files, JINJA, "")?, text(files, TOKENIZER, "")?);
        if let Some(template) = compiled(jinja.as_deref(), tokenizer.as_deref())? {
            return Ok(Self::Complete(Texts::new(template, jinja.or(tokenizer))));
        }
        let texts = Texts { tokenizer, ..Texts::default() };
        match (manifest.runtime.engine == Engine::Native, manifest.weights.source.is_some()) {
            (true, true) => Ok(Self::Incomplete(texts)),
            (true, false) => Ok(Self::Complete(texts.with_gguf(files, "")?)),
            (false, _) => Ok(Self::Complete(texts)),
        }
    }
}

impl Texts {
    fn new(template: ChatTemplate, printed: Option<String>) -> Self {
        Self { template: Some(Arc::new(template)), printed: printed.unwrap_or_default(), tokenizer: None }
    }

    /// Adds the template of the weights' files.
    pub(crate) fn with_weights(self, files: &NodeFiles) -> Result<Self, TextModelError> {
        const PLACE: &str = " in the folder of the weights";
        let of = |name: &str| {
            let name = name.to_owned();
            |error| TextModelError::TemplateOf { name, place: PLACE, error }
        };
        let (jinja, tokenizer) = (text(files, JINJA, PLACE)?, text(files, TOKENIZER, PLACE)?);
        if let Some(jinja) = jinja {
            let tokenizer = match self.tokenizer.or(tokenizer) {
                Some(tokenizer) => Some(tokenizer),
                None => gguf(files, PLACE)?.map(|(_, conversation)| conversation.tokens.configuration()),
            };
            let template = compiled(Some(&jinja), tokenizer.as_deref()).map_err(of(JINJA))?;
            return Ok(template.map(|template| Self::new(template, Some(jinja))).unwrap_or_default());
        }
        if let Some(template) = compiled(None, tokenizer.as_deref()).map_err(of(TOKENIZER))? {
            return Ok(Self::new(template, tokenizer));
        }
        Self { tokenizer: self.tokenizer.or(tokenizer), ..self }.with_gguf(files, PLACE)
    }

    /// Adds the template inside of the GGUF file, if there is one.
    fn with_gguf(self, files: &NodeFiles, place: &'static str) -> Result<Self, TextModelError> {
        let Some((name, Conversation { template: Some(printed), tokens })) = gguf(files, place)? else {
            return Ok(self);
        };
        let tokenizer = self.tokenizer.unwrap_or_else(|| tokens.configuration());
        let template = compiled(Some(&printed), Some(&tokenizer));
        let template = template.map_err(|error| TextModelError::TemplateOf { name, place, error })?;
        Ok(template.map(|template| Self::new(template, Some(printed))).unwrap_or_default())
    }
}

/// Template of these texts; `None`: they have none.
fn compiled(jinja: Option<&str>, tokenizer_config: Option<&str>) -> Result<Option<ChatTemplate>, LoadError> {
    match ChatTemplate::new(&TemplateSource { jinja, tokenizer_config }) {
        Ok(template) => Ok(Some(template)),
        Err(LoadError::Missing) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Name of the GGUF file, and what it has for conversations; `None`: there is no such file.
fn gguf(files: &NodeFiles, place: &'static str) -> Result<Option<(String, Conversation)>, TextModelError> {
    let is_gguf = |name: &str| Path::new(name).extension().is_some_and(|extension| extension == GGUF);
    let Some((name, file)) = files.iter().find(|(name, _)| is_gguf(name)) else { return Ok(None) };
    let name = Foreign(name).to_string();
    match Conversation::read(file) {
        Ok(conversation) => Ok(Some((name, conversation))),
        Err(defect) => Err(TextModelError::Gguf { name, place, defect }),
    }
}

impl TextModel {
    pub(crate) fn new(texts: Texts, manifest: &Manifest) -> Result<Self, TextModelError> {
        let Texts { template, printed, tokenizer: _ } = texts;
        let (dialects, formats) = (&Dialect::ALL, &ReasoningFormat::ALL);
        let dialect = match manifest.chat.tool_parser.as_str() {
            AUTO => Dialect::of_template(&printed).unwrap_or(Dialect::None),
            name => Dialect::of_name(name).ok_or_else(|| TextModelError::unknown("tool-parser", name, dialects))?,
        };
        let reasoning = match manifest.chat.reasoning_parser.as_str() {
            AUTO => ReasoningFormat::of_template(&printed),
            "none" => None,
            name => {
                let format = ReasoningFormat::of_name(name);
                Some(format.ok_or_else(|| TextModelError::unknown("reasoning-parser", name, formats))?)
            }
        };
        Ok(Self { template, aside: Aside::new(), is_slow: AtomicBool::new(false), dialect, reasoning })
    }

    /// Renders a conversation: at once if that is brief, as it is for most of them; else aside, one at a time for each content. The
    /// time of a template is bounded, and may be long, and other models are not to wait for it.
    pub(crate) async fn render(
        &self,
        template: &Arc<ChatTemplate>,
        chat: &Arc<Chat>,
        now: i64,
    ) -> Result<Rendered, RenderError> {
        if !self.is_slow.load(Ordering::Relaxed) {
            let began = Instant::now();
            let rendered = template.render_briefly(chat, now);
            self.is_slow.fetch_or(began.elapsed() > BRIEF, Ordering::Relaxed);
            if let Some(rendered) = rendered {
                return rendered;
            }
        }
        let (template, chat) = (Arc::clone(template), Arc::clone(chat));
        let rendered = self.aside.clone().run(move || template.render(&chat, now)).await;
        rendered.unwrap_or_else(|_| Err(RenderError::Template { message: "the render broke off".to_owned(), line: 0 }))
    }
}

/// Text of a file; `None`: there is none.
fn text(files: &NodeFiles, name: &str, place: &'static str) -> Result<Option<String>, TextModelError> {
    let Some(file) = files.get(name) else { return Ok(None) };
    text_of(file).map(Some).map_err(|error| TextModelError::File { name: name.to_owned(), place, error })
}

/// The text of a file, whatever its offset is: requests at the same time share descriptors.
fn text_of(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    if length > LONGEST {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {LONGEST} bytes")));
    }
    let mut text = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut text, 0)?;
    String::from_utf8(text).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

impl TextModelError {
    fn unknown<T>(key: &'static str, name: &str, known: &[(&'static str, T)]) -> Self {
        let known = known.iter().map(|(known, _)| *known).collect();
        Self::Parser { key, name: name.to_owned(), known }
    }
}

#[cfg(test)]
mod tests;
