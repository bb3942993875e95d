//! Sources of a model's templates: `chat_template.jinja`, and `tokenizer_config.json` with the special tokens.

use crate::control::shape;
use crate::error::LoadError;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest configuration, in bytes; the added tokens of a large vocabulary take a few MB.
const MAX_CONFIGURATION: usize = 64 << 20;

/// Files of a model's directory, as far as they are there.
#[derive(Debug, Clone, Copy, Default)]
pub struct TemplateSource<'a> {
    /// `chat_template.jinja`; it comes before the configuration's.
    pub jinja: Option<&'a str>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a str>,
}

/// Templates and tokens of a model.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Template of a conversation.
    pub(crate) default: String,
    /// Template of a conversation with tools, if that is another one.
    pub(crate) tool_use: Option<String>,
    /// Special tokens by their names: variables of the template.
    pub(crate) variables: Vec<(String, String)>,
    /// All tokens that are control tokens by the configuration.
    pub(crate) control: Vec<String>,
    /// The configuration lists the tokenizer's added tokens.
    pub(crate) complete: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Configuration {
    chat_template: Option<Value>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedToken>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
    ByName(BTreeMap<String, String>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

impl TemplateSource<'_> {
    /// Reads templates and tokens.
    pub(crate) fn read(&self) -> Result<Model, LoadError> {
        let configuration = match self.tokenizer_config {
            None => Configuration::default(),
            Some(text) if text.len() > MAX_CONFIGURATION => {
                return Err(LoadError::Configuration(format!("longer than {MAX_CONFIGURATION} bytes")));
            }
            Some(text) => serde_json::from_str(text)
                .map_err(|error| LoadError::Configuration(format!("no configuration of a tokenizer: {error}")))?,
        };
        let mut model = Model { complete: !configuration.added_tokens_decoder.is_empty(), ..Model::default() };
        for token in configuration.added_tokens_decoder.into_values() {
            if token.special || shape::is_control(&token.content) {
                model.control.push(token.content);
            }
        }
        for (name, value) in configuration.others {
            add_tokens(&mut model, &name, &value);
        }
        match (self.jinja, configuration.chat_template.map(templates).transpose()?) {
            (Some(jinja), _) => model.default = jinja.to_owned(),
            (None, None) => return Err(LoadError::Missing),
            (None, Some(Templates::One(template))) => model.default = template,
            (None, Some(Templates::Named(list))) => {
                choose(&mut model, list.into_iter().map(|named| (named.name, named.template)).collect())?;
            }
            (None, Some(Templates::ByName(templates))) => choose(&mut model, templates)?,
        }
        if model.default.trim().is_empty() { Err(LoadError::Empty) } else { Ok(model) }
    }
}

/// Reads `chat_template`.
fn templates(value: Value) -> Result<Templates, LoadError> {
    const FORMS: &str =
        "`chat_template` is neither a text, nor an object of texts, nor a list of `name` and `template`";
    serde_json::from_value(value).map_err(|_| LoadError::Configuration(FORMS.to_owned()))
}

fn choose(model: &mut Model, mut templates: BTreeMap<String, String>) -> Result<(), LoadError> {
    model.tool_use = templates.remove("tool_use");
    let default = templates.remove("default").or_else(|| model.tool_use.take());
    model.default = default
        .ok_or_else(|| LoadError::Configuration("`chat_template` has neither `default` nor `tool_use`".to_owned()))?;
    Ok(())
}

/// Tokens of an entry such as `bos_token`, `additional_special_tokens` or `extra_special_tokens`: a text, an object with
/// `content`, or several of them.
fn add_tokens(model: &mut Model, name: &str, value: &Value) {
    if let Some(base) = name.strip_suffix("_token") {
        if let Some(token) = token_text(value)
            && !base.is_empty()
        {
            model.control.push(token.to_owned());
            model.variables.push((name.to_owned(), token.to_owned()));
        }
    } else if name.ends_with("special_tokens") {
        match value {
            Value::Array(list) => model.control.extend(list.iter().filter_map(token_text).map(str::to_owned)),
            Value::Object(named) => {
                for (name, value) in named {
                    add_tokens(model, name, value);
                }
            }
            _ => {}
        }
    }
}

fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tokenizer_config: &str) -> Result<Model, LoadError> {
        TemplateSource { jinja: None, tokenizer_config: Some(tokenizer_config) }.read()
    }

    #[test]
    fn templates_are_chosen_by_name() {
        let cases = [
            (r#"{"chat_template": "a"}"#, "a", None),
            (
                r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#,
                "a",
                Some("b"),
            ),
            (r#"{"chat_template": [{"name": "tool_use", "template": "b"}]}"#, "b", None),
            (r#"{"chat_template": {"default": "a", "rag": "c"}}"#, "a", None),
        ];
        for (configuration, default, tool_use) in cases {
            let model = read(configuration).unwrap();
            assert_eq!((model.default.as_str(), model.tool_use.as_deref()), (default, tool_use), "{configuration}");
        }
    }

    #[test]
    fn the_jinja_file_comes_first() {
        let both = TemplateSource { jinja: Some("j"), tokenizer_config: Some(r#"{"chat_template": "a"}"#) };
        assert_eq!(both.read().unwrap().default, "j");
    }

    #[test]
    fn a_missing_template_and_a_wrong_form_are_errors() {
        assert!(matches!(read("{}"), Err(LoadError::Missing)));
        for bad in ["[]", "{", r#"{"chat_template": 1}"#, r#"{"chat_template": [{"name": "x", "template": "a"}]}"#] {
            assert!(matches!(read(bad), Err(LoadError::Configuration(_))), "{bad}");
        }
    }

    #[test]
    fn an_empty_template_and_a_wrong_form_are_named() {
        for empty in [r#"{"chat_template": ""}"#, r#"{"chat_template": {"default": " \n"}}"#] {
            assert_eq!(read(empty).unwrap_err().to_string(), "the chat template is empty", "{empty}");
        }
        let file = TemplateSource { jinja: Some("\n"), tokenizer_config: None };
        assert!(matches!(file.read(), Err(LoadError::Empty)));
        let wrong = read(r#"{"chat_template": 1}"#).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "tokenizer_config.json: `chat_template` is neither a text, nor an object of texts, nor a list of `name` and \
             `template`"
        );
    }

    #[test]
    fn special_tokens_are_texts_or_objects() {
        let model = read(
            r#"{"chat_template": "t", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
                "add_bos_token": true, "additional_special_tokens": ["<|x|>", {"content": "<|y|>"}],
                "extra_special_tokens": {"image_token": "<|i|>"},
                "added_tokens_decoder": {"1": {"content": "<|z|>", "special": true}, "2": {"content": "<think>"}, "3": {"content": "  "}}}"#,
        )
        .unwrap();
        let variables: Vec<_> = model.variables.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(variables, [("bos_token", "<s>"), ("eos_token", "</s>"), ("image_token", "<|i|>")]);
        let mut control = model.control;
        control.sort();
        assert_eq!(control, ["</s>", "<s>", "<think>", "<|i|>", "<|x|>", "<|y|>", "<|z|>"]);
        assert!(model.complete);
    }
}
