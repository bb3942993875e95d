//! Lint of a model's templates: conversations of many shapes are rendered, and what goes wrong is reported by its line.

mod shapes;

use crate::chat::DOCUMENTS;
use crate::error::{LoadError, RenderError};
use crate::source::TemplateSource;
use crate::template::{ChatTemplate, Rendered};
use omni_generation::Role;
use shapes::Shape;
use std::collections::BTreeMap;

/// Time of the renders, in seconds since 1970.
const NOW: i64 = 1_735_689_600;

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Requests of this shape are refused, or the model does not see a part of them.
    Warning,
    /// The template fails.
    Error,
}

/// Something in a template that is wrong, or will surprise its users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Weight.
    pub severity: Severity,
    /// Template: `default` or `tool_use`.
    pub template: &'static str,
    /// Line of the template, from 1; `None` if the finding has no place.
    pub line: Option<usize>,
    /// Problem, in words for the author.
    pub message: String,
    /// Shapes of the conversations that show it; none if all do.
    pub shapes: Vec<&'static str>,
}

/// Lints the templates of a model. Takes some milliseconds.
///
/// # Errors
/// There is no template, or it cannot be compiled.
pub fn lint(source: &TemplateSource<'_>) -> Result<Vec<Finding>, LoadError> {
    let template = ChatTemplate::new(source)?;
    let mut found: BTreeMap<(Severity, &'static str, Option<usize>, String), Vec<&'static str>> = BTreeMap::new();
    for (name, token, line) in template.missing_tokens() {
        let message = format!("`{token}` is printed, and tokenizer_config.json has none: nothing stands in its place");
        found.insert((Severity::Warning, name, Some(line).filter(|line| *line > 0), message), Vec::new());
    }
    for shape in shapes::all() {
        let name = template.variant_name(&shape.chat);
        let rendered = template.verbose(&shape.chat, NOW);
        let endless = matches!(rendered, Err(RenderError::OutOfFuel { .. }));
        for (severity, line, message) in check(rendered, &shape) {
            found.entry((severity, name, line, message)).or_default().push(shape.name);
        }
        if endless {
            break; // the others would take as long
        }
    }
    let findings = found.into_iter().rev();
    Ok(findings
        .map(|((severity, template, line, message), shapes)| Finding { severity, template, line, message, shapes })
        .collect())
}

type Problem = (Severity, Option<usize>, String);

fn check(rendered: Result<Rendered, RenderError>, shape: &Shape) -> Vec<Problem> {
    match rendered {
        Ok(rendered) => problems(shape, &rendered),
        Err(RenderError::Refused { message, line }) => {
            vec![(Severity::Warning, Some(line).filter(|line| *line > 0), format!("refused: {message}"))]
        }
        Err(RenderError::Template { message, line }) => {
            vec![(Severity::Error, Some(line).filter(|line| *line > 0), message)]
        }
        Err(error @ (RenderError::OutOfFuel { .. } | RenderError::TooLong { .. })) => {
            vec![(Severity::Error, None, error.to_string())]
        }
        // Few templates have a place for documents.
        Err(RenderError::Invalid(invalid)) if invalid.parameter.as_deref() == Some(DOCUMENTS) => Vec::new(),
        Err(error) => vec![(Severity::Warning, None, format!("refused: {error}"))],
    }
}

/// Parts of a conversation that its prompt lacks.
fn problems(shape: &Shape, rendered: &Rendered) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut lost = |what: &str| found.push((Severity::Warning, None, format!("{what} are not in the prompt")));
    let has = |role: Role, word: &str| {
        shape.chat.messages.iter().any(|message| message.role == role && shapes::text(message).contains(word))
    };
    for (role, word, what) in [
        (Role::System, shapes::SYSTEM, "system messages"),
        (Role::Developer, shapes::SYSTEM, "developer messages"),
        (Role::User, shapes::USER, "the user's messages"),
        (Role::Assistant, shapes::ASSISTANT, "the assistant's messages"),
        (Role::Tool, shapes::RESULT, "results of tools"),
    ] {
        if has(role, word) && !rendered.prompt.contains(word) {
            lost(what);
        }
    }
    let calls = shape.chat.messages.iter().flat_map(|message| &message.tool_calls);
    if calls.into_iter().any(|call| call.arguments.contains(shapes::ARGUMENT))
        && !rendered.prompt.contains(shapes::ARGUMENT)
    {
        lost("calls of tools");
    }
    if shape.tools_matter && !rendered.prompt.contains(shapes::TOOL) {
        lost("offered tools");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(jinja: &str) -> Vec<Finding> {
        lint(&TemplateSource { jinja: Some(jinja), tokenizer_config: None }).unwrap()
    }

    const GOOD: &str = "{% if tools %}{{ tools|tojson }}\n{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
                        {% for c in m.tool_calls %}{{ c|tojson }}{% endfor %}\n{% endfor %}";

    #[test]
    fn a_good_template_has_no_findings() {
        assert_eq!(findings(GOOD), []);
    }

    #[test]
    fn there_are_about_fifty_shapes_with_names_of_their_own() {
        let mut names: Vec<_> = shapes::all().iter().map(|shape| shape.name).collect();
        assert!(names.len() >= 49, "{}", names.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), shapes::all().len());
    }

    #[test]
    fn an_error_names_its_line_and_shapes() {
        let found = findings(
            "{% for m in messages %}\n{% if m.role == 'tool' %}\n{{ m.nothing.at_all }}\n{% endif %}{{ m.content }}\n{% endfor %}",
        );
        let error = found.iter().find(|finding| finding.severity == Severity::Error).unwrap();
        assert_eq!(error.line, Some(3));
        assert!(error.shapes.contains(&"result_last") && !error.shapes.contains(&"user"), "{:?}", error.shapes);
        assert!(error.message.contains("m.nothing"), "{}", error.message);
    }

    #[test]
    fn special_tokens_without_a_text_are_found() {
        let found = findings(&format!("{GOOD}\n{{{{ eos_token }}}}"));
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert!(finding.message.contains("`eos_token`") && finding.line == Some(4), "{finding:?}");
        let source = format!("{{{{ bos_token }}}}{GOOD}");
        let source = TemplateSource { jinja: Some(&source), tokenizer_config: Some(r#"{"bos_token": "<s>"}"#) };
        assert_eq!(lint(&source).unwrap(), []);
    }

    #[test]
    fn lost_and_refused_conversations_are_warnings() {
        let found = findings(
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}",
        );
        let has = |message: &str, shape: &str| {
            found.iter().any(|finding| {
                finding.severity == Severity::Warning && finding.message == message && finding.shapes.contains(&shape)
            })
        };
        assert!(has("refused: no system", "system_user"));
        assert!(found.iter().any(|finding| finding.message == "refused: no system" && finding.line == Some(1)));
        assert!(has("calls of tools are not in the prompt", "parallel_calls"));
        assert!(has("offered tools are not in the prompt", "many_tools"));
    }
}
