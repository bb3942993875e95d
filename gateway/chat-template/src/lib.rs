//! Chat templates of Hugging Face models: rendering within bounds, normalised conversations, lint.
//!
//! ```text
//!  Chat ──▶ normalised by the facts about the template ──▶ marks in control tokens ──▶ minijinja, bounded ──▶ Rendered
//!  messages, tools,      arguments as objects,              of the client's texts       fuel, output       prompt, literals,
//!  variables             parts, absent contents                                                            adds_bos, …
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `source` | the files of a model: templates and special tokens |
//! | `syntax` | repairs of a source before it is compiled, words and literals in it |
//! | `engine` | minijinja as transformers sets up jinja2: filters, methods, bounds |
//! | `facts` | facts about a template, found by rendering small conversations |
//! | `chat` | conversations in the form that a template takes |
//! | `control` | control tokens, and which of them are a client's text |
//! | `lint` | conversations of many shapes that a template should render |
//!
//! Renders take time in proportion to their input. Comparisons of large lists and maps are the one work that minijinja's fuel
//! does not count in full, so a render of a template that is not trusted belongs on a thread of its own, few at a time.
#![forbid(unsafe_code)]

mod chat;
mod control;
mod engine;
mod error;
mod facts;
mod json;
mod lint;
mod source;
mod syntax;
mod template;

pub use control::ControlTokens;
pub use error::{LoadError, RenderError};
pub use facts::{Absent, Arguments, CallIds, Contents, Facts};
pub use lint::{Finding, Severity, lint};
pub use source::TemplateSource;
pub use template::{ChatTemplate, Rendered};
