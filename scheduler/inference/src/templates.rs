//! Chat templates and parsers of models, read from their snapshots once for each content.

use crate::aside::Aside;
use omni_chat_template::{ChatTemplate, LoadError, RenderError, Rendered, TemplateSource};
use omni_config::manifest::{AUTO, Kind, Manifest};
use omni_generation::Chat;
use omni_launcher_client::{LauncherHandle, NodeFiles};
use omni_node_protocol::id::SnapshotDigest;
use omni_request_error::Failure;
use omni_supervisor::model::content::Content;
use omni_tool_parser::{Dialect, ReasoningFormat};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most contents whose templates are kept. Templates take some hundred kilobytes each.
const MOST: usize = 256;
/// Longest file that is read, in bytes: the added tokens of a large vocabulary take a few megabytes.
const LONGEST: u64 = 64 << 20;
/// Longest time of a brief render. One that is longer, for the template's sake or another's, is the last of its content.
const BRIEF: Duration = Duration::from_millis(5);
/// Advice of a refusal while the launcher does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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

/// Contents whose files were read.
#[derive(Debug)]
pub(crate) struct Templates {
    launcher: LauncherHandle,
    loaded: Mutex<HashMap<SnapshotDigest, Arc<TextModel>>>,
}

impl Templates {
    pub(crate) fn new(launcher: LauncherHandle) -> Self {
        Self { launcher, loaded: Mutex::default() }
    }

    /// Templates of a content, read at its first request.
    ///
    /// # Errors
    /// The launcher does not answer, or the author's files cannot be used.
    pub(crate) async fn of(&self, content: &Content, deadline: Instant) -> Result<Arc<TextModel>, Failure> {
        if let Some(model) = self.loaded().get(&content.snapshot) {
            return Ok(Arc::clone(model));
        }
        let unavailable = || Failure::CannotStart { retry_after: RETRY_AFTER };
        let files = self.launcher.open_files(&content.snapshot).map_err(|_| unavailable())?;
        let files = tokio::time::timeout_at(deadline.into(), files).await.map_err(|_| Failure::Deadline)?;
        let (files, manifest) = (files.map_err(|_| unavailable())?, content.manifest.clone());
        // Files are read and compiled aside: that takes milliseconds.
        let read = tokio::task::spawn_blocking(move || TextModel::read(&files, &manifest));
        let model = read.await.map_err(|_| unavailable())?.map_err(|error| {
            tracing::warn!(snapshot = %content.snapshot, error = omni_log::chain(&error), "the chat template cannot be used");
            Failure::Raised
        })?;
        let model = Arc::new(model);
        let mut loaded = self.loaded();
        if loaded.len() >= MOST {
            loaded.clear(); // read again by their next requests
        }
        loaded.insert(content.snapshot.clone(), Arc::clone(&model));
        Ok(model)
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<SnapshotDigest, Arc<TextModel>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files of a content that cannot be used.
#[derive(Debug, thiserror::Error)]
enum TextModelError {
    /// A file cannot be read.
    #[error("`{name}` cannot be read")]
    File {
        name: String,
        #[source]
        error: io::Error,
    },
    /// The template cannot be used.
    #[error(transparent)]
    Template(#[from] LoadError),
    /// A parser that there is none of.
    #[error("`{key}` in [chat] of omni.toml is {name:?}: write one of {}", known.join(", "))]
    Parser { key: &'static str, name: String, known: Vec<&'static str> },
}

/// Checks the chat template and the parsers of a content that generates text. Takes some milliseconds.
///
/// # Errors
/// A message for the model's author.
pub fn check_content(files: &NodeFiles, manifest: &Manifest) -> Result<(), String> {
    TextModel::read(files, manifest).map(drop).map_err(|error| omni_log::chain(&error).to_string())
}

impl TextModel {
    fn read(files: &NodeFiles, manifest: &Manifest) -> Result<Self, TextModelError> {
        debug_assert_eq!(manifest.model.kind, Kind::TextGeneration);
        let text = |name: &str| {
            let Some(file) = files.get(name) else { return Ok(None) };
            let text = text_of(file).map_err(|error| TextModelError::File { name: name.to_owned(), error })?;
            Ok::<_, TextModelError>(Some(text))
        };
        let (jinja, tokenizer) = (text("chat_template.jinja")?, text("tokenizer_config.json")?);
        let source = TemplateSource { jinja: jinja.as_deref(), tokenizer_config: tokenizer.as_deref() };
        let template = match ChatTemplate::new(&source) {
            Ok(template) => Some(Arc::new(template)),
            Err(LoadError::Missing) => None,
            Err(error) => return Err(error.into()),
        };
        let printed = template.as_ref().and(jinja.or(tokenizer)).unwrap_or_default();
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
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Write;

    fn files(name: &str, text: &str) -> NodeFiles {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Arc::new(BTreeMap::from([(name.to_owned(), file)]))
    }

    fn manifest(chat: &str) -> Manifest {
        Manifest::parse(&format!("[model]\nkind = \"text-generation\"\n[chat]\n{chat}\n")).unwrap()
    }

    #[test]
    fn files_are_read_whole_each_time() {
        let files = files("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
        for _ in 0..2 {
            assert!(TextModel::read(&files, &manifest("")).unwrap().template.is_some());
        }
    }

    #[test]
    fn contents_that_cannot_be_used_are_refused_with_a_reason() {
        let good = files("chat_template.jinja", "{{ messages }}");
        assert_eq!(check_content(&good, &manifest("")), Ok(()));
        assert_eq!(check_content(&Arc::default(), &manifest("")), Ok(()));
        let message = check_content(&good, &manifest("tool-parser = \"hermes2\"")).unwrap_err();
        assert!(message.starts_with("`tool-parser` in [chat] of omni.toml is \"hermes2\": write one of "), "{message}");
        let broken = files("chat_template.jinja", "{% for m in messages %}\n{{ m.content }");
        let message = check_content(&broken, &manifest("")).unwrap_err();
        assert!(message.starts_with("line 2 of the chat template: "), "{message}");
    }
}
