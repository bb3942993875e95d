//! minijinja, set up as transformers sets up jinja2, with bounds.
//!
//! Fuel pays for instructions, for bytes and for visited items. Not in fuel, and bounded here: the text of nested containers
//! ([`text`], [`strings`]), values that contain themselves ([`guard`]), panics, and the recursion of the compiler ([`compile`]).

pub(crate) mod guard;
pub(crate) mod methods;
pub(crate) mod number;
pub(crate) mod strings;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod tojson;

use crate::error::LoadError;
use crate::syntax::rewrite::{self, GUARD};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest source, in bytes. The longest known is below a tenth of it.
pub(crate) const MAX_SOURCE: usize = 1 << 19;

/// Depth of macros and loops in each other; a macro counts four times.
const RECURSION_LIMIT: usize = 300;

/// Name of a template in its environment.
const NAME: &str = "chat_template";

/// Error of `raise_exception`, with its text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// A compiled template.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    environment: Environment<'static>,
}

/// Bounds of a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Fuel: an instruction takes 1, 64 bytes of data take 1.
    pub(crate) fuel: u64,
    /// Longest output, in bytes.
    pub(crate) output: usize,
}

/// Text of a render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// Text.
    pub(crate) text: String,
    /// Fuel that it took.
    pub(crate) fuel: u64,
}

/// Failure of a render.
#[derive(Debug)]
pub(crate) enum Failure {
    /// `raise_exception` with its text and line.
    Raised(String, usize),
    /// Error of the template.
    Error(Error),
    /// The fuel is used up.
    OutOfFuel,
    /// The output is too long.
    TooLong,
    /// A panic in minijinja, by its text.
    Panic(String),
}

impl Compiled {
    /// Renders with a context of variables.
    pub(crate) fn render(&self, context: Value, bounds: Bounds) -> Result<Output, Failure> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(bounds.fuel));
        let mut sink = Sink { bytes: Vec::with_capacity(4096), limit: bounds.output, full: false };
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            let template = environment.get_template(NAME)?;
            let captured = template.render_captured_to(context, &mut sink)?;
            Ok(captured.state().fuel_levels().map_or(0, |(used, _)| used))
        }));
        match rendered {
            Err(panic) => Err(Failure::Panic(panic_text(panic.as_ref()))),
            Ok(Err(_)) if sink.full => Err(Failure::TooLong),
            Ok(Err(error)) => Err(failure(error)),
            Ok(Ok(fuel)) => match String::from_utf8(sink.bytes) {
                Ok(text) => Ok(Output { text, fuel }),
                Err(_) => Err(Failure::Panic("the output is not UTF-8".to_owned())),
            },
        }
    }

    /// Variant whose errors name the variables that are undefined; slower.
    pub(crate) fn verbose(&self) -> Self {
        let mut environment = self.environment.clone();
        environment.set_debug(true);
        Self { environment }
    }
}

fn failure(error: Error) -> Failure {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Raised(text)) = cause.downcast_ref::<Raised>() {
            return Failure::Raised(text.clone(), error.line().unwrap_or(0));
        }
        if cause.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return Failure::OutOfFuel;
        }
        source = cause.source();
    }
    Failure::Error(error)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// Output with a limit.
struct Sink {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) > self.limit {
            self.full = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compiles a template. The compiler is recursive (a chain of a thousand `+` is a thousand calls), so it gets a stack that is
/// large enough for any source.
pub(crate) fn compile(source: &str) -> Result<Compiled, LoadError> {
    if source.len() > MAX_SOURCE {
        return Err(LoadError::TooLarge { limit: MAX_SOURCE });
    }
    let stack = (16 << 20) + source.len() * 2048;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, || compile_here(source)).map_err(LoadError::Thread)?;
        thread.join().unwrap_or_else(|panic| Err(LoadError::Template { message: panic_text(panic.as_ref()), line: 0 }))
    })
}

fn compile_here(source: &str) -> Result<Compiled, LoadError> {
    let source = rewrite::rewrite(source)
        .map_err(|unsupported| LoadError::Template { message: unsupported.message, line: unsupported.line })?;
    let mut environment = environment();
    environment.add_template_owned(NAME, source).map_err(|error| LoadError::Template {
        message: error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
        line: error.line().unwrap_or(0),
    })?;
    Ok(Compiled { environment })
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_formatter(text::print);
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", tojson::filter);
    environment.add_filter("indent", text::indent);
    environment.add_filter("join", text::join);
    environment.add_filter("string", text::string);
    strings::install(&mut environment);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function(GUARD, guard::guard);
    environment.add_function("raise_exception", raise_exception);
    // Both print the state of the engine, without bounds.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment
}

fn raise_exception(state: &State, message: Option<Value>, _more: Rest<Value>) -> Result<Value, Error> {
    let mut text = String::new();
    if let Some(message) = message {
        text::append(state, &mut text, &message)?;
    }
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

#[cfg(test)]
mod tests;
