//! Calls that a client demands: the form in which a model writes them.

use omni_tool_parser::Dialect;

/// Form of a call: a JSON object between two texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallForm {
    open: &'static str,
    /// Name of the member with the arguments.
    arguments: &'static str,
    close: &'static str,
}

/// Function that may be called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function<'a> {
    /// Name.
    pub(crate) name: &'a str,
    /// JSON Schema of its arguments.
    pub(crate) parameters: Option<&'a str>,
}

impl CallForm {
    /// Form that a chat template names; `None`: it names none, or one whose calls are no JSON objects.
    pub(crate) fn of_template(template: &str) -> Option<Self> {
        match Dialect::of_template(template)? {
            Dialect::Hermes if template.contains("<tool_call>") => {
                Some(Self { open: "<tool_call>\n", arguments: "arguments", close: "\n</tool_call>" })
            }
            Dialect::Llama3 => Some(Self { open: "", arguments: "parameters", close: "" }),
            Dialect::Json => Some(Self { open: "", arguments: "arguments", close: "" }),
            Dialect::Hermes
            | Dialect::Qwen3Coder
            | Dialect::Pythonic
            | Dialect::Mistral
            | Dialect::DeepSeekV3
            | Dialect::DeepSeekV32
            | Dialect::KimiK2
            | Dialect::Glm
            | Dialect::MiniMax
            | Dialect::Gemma
            | Dialect::Harmony
            | Dialect::None => None,
        }
    }

    /// Texts before and behind the arguments of a call.
    pub(crate) fn around(self, function: &str) -> (String, String) {
        let Self { open, arguments, close } = self;
        let name = serde_json::Value::from(function);
        (format!("{open}{{\"name\": {name}, \"{arguments}\": "), format!("}}{close}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_those_of_the_templates() {
        let around = |template: &str| CallForm::of_template(template).map(|form| form.around("f\"g"));
        let call = |begin: &str, end: &str| Some((begin.to_owned(), end.to_owned()));
        let hermes = r#"{{ tools }}<tool_call>{"name": …}</tool_call>"#;
        assert_eq!(around(hermes), call("<tool_call>\n{\"name\": \"f\\\"g\", \"arguments\": ", "}\n</tool_call>"));
        assert_eq!(around("<|start_header_id|>{{ tools }}"), call("{\"name\": \"f\\\"g\", \"parameters\": ", "}"));
        assert_eq!(around("{{ tools }}"), call("{\"name\": \"f\\\"g\", \"arguments\": ", "}"));
        assert_eq!(around("{{ tools }}<TOOLCALL>"), None, "a mark of its own");
        assert_eq!(around("{{ tools }}[TOOL_CALLS]"), None);
        assert_eq!(around("{{ messages }}"), None);
    }
}
