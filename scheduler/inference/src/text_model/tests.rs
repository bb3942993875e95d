//! Templates by the files that a directory and its weights have.

use super::*;
use omni_generation::{TemplateOptions, ToolChoice};
use std::collections::BTreeMap;
use std::io::Write;

/// A template that prints its name, and the token of the beginning.
const TEMPLATE: &str = "NAME{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";

fn template(name: &str) -> String {
    TEMPLATE.replace("NAME", name)
}

fn configured(name: &str) -> String {
    format!("{{\"chat_template\": \"{}\", \"bos_token\": \"<{name}>\"}}", template(name))
}

fn tokens(name: &str) -> String {
    format!("{{\"bos_token\": \"<{name}>\"}}")
}

/// GGUF file with a vocabulary of one token, and a template.
fn gguf_file(template: Option<&str>) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let value =
        |key: &str, kind: u32, bytes: &[u8]| [string(key), kind.to_le_bytes().to_vec(), bytes.to_vec()].concat();
    let vocabulary = [&8_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &string("<inside>")].concat();
    let mut values = vec![
        value("tokenizer.ggml.tokens", 9, &vocabulary),
        value("tokenizer.ggml.bos_token_id", 4, &0_u32.to_le_bytes()),
    ];
    values.extend(template.map(|text| value("tokenizer.chat_template", 8, &string(text))));
    let count = (values.len() as u64).to_le_bytes();
    [b"GGUF", &3_u32.to_le_bytes()[..], &0_u64.to_le_bytes(), &count, &values.concat()].concat()
}

fn files<T: AsRef<[u8]>>(files: &[(&str, T)]) -> NodeFiles {
    let open = |(name, text): &(&str, T)| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_ref()).unwrap();
        ((*name).to_owned(), file)
    };
    Arc::new(files.iter().map(open).collect::<BTreeMap<_, _>>())
}

fn manifest(chat: &str) -> Manifest {
    Manifest::parse(&format!("[model]\nkind = \"text-generation\"\n[chat]\n{chat}\n")).unwrap()
}

fn native(weights: &str) -> Manifest {
    let engine = "[model]\nkind = \"text-generation\"\n[runtime]\nengine = \"native\"";
    Manifest::parse(&format!("{engine}\n{weights}\n")).unwrap()
}

const FOLDER: &str = "[weights]\nsource = \"file:///srv/weights/m\"";

/// Conversation in which nothing is said.
fn silence() -> Chat {
    let (tool_choice, template) = (ToolChoice::None, TemplateOptions::default());
    Chat { messages: Vec::new(), tools: Vec::new(), tool_choice, parallel_tool_calls: false, template }
}

/// Prompt by the files of a directory and of its weights; `None`: there is no template.
fn prompt(own: &NodeFiles, weights: &NodeFiles, manifest: &Manifest) -> Result<Option<String>, String> {
    let texts = match OwnFiles::read(own, manifest) {
        Ok(OwnFiles::Complete(texts)) => Ok(texts),
        Ok(OwnFiles::Incomplete(texts)) => texts.with_weights(weights),
        Err(error) => Err(error),
    };
    let model = texts.and_then(|texts| TextModel::new(texts, manifest));
    let model = model.map_err(|error| omni_log::chain(&error).to_string())?;
    Ok(model.template.map(|template| template.render(&silence(), 0).unwrap().prompt))
}

#[test]
fn files_are_read_whole_each_time() {
    let files = files(&[(JINJA, template("own"))]);
    for _ in 0..2 {
        assert_eq!(prompt(&files, &Arc::default(), &manifest("")), Ok(Some("own".to_owned())));
    }
}

#[test]
fn the_first_template_is_the_models() {
    let (jinja, config, inside) = (template("jinja"), configured("config"), gguf_file(Some(&template("gguf"))));
    let all = [(JINJA, jinja.as_bytes()), (TOKENIZER, config.as_bytes()), ("m.gguf", &inside)];
    let (bare, named) = (gguf_file(None), tokens("named"));
    for (own, weights, expected) in [
        (&all[..1], &all[..], "jinja"),
        (&all[..2], &all[..], "jinja<config>"),
        (&all[1..2], &all[..], "config<config>"),
        (&[], &all[..], "jinja<config>"),
        (&[], &all[1..], "config<config>"),
        (&[], &all[2..], "gguf<inside>"),
        (&[], &[all[0], all[2]], "jinja<inside>"),
        (&[], &[all[0], ("m.gguf", &bare)], "jinja<inside>"),
        // A configuration without a template has the tokens of another file's.
        (&[(TOKENIZER, named.as_bytes())], &all[..], "jinja<named>"),
        (&[(TOKENIZER, named.as_bytes())], &all[1..], "config<config>"),
        (&[(TOKENIZER, named.as_bytes())], &all[2..], "gguf<named>"),
        (&[], &[(TOKENIZER, named.as_bytes()), all[2]], "gguf<named>"),
    ] {
        let found = prompt(&files(own), &files(weights), &native(FOLDER));
        assert_eq!(found, Ok(Some(expected.to_owned())), "{:?} {:?}", names(own), names(weights));
    }
    let none = prompt(&files::<&str>(&[]), &files(&[("m.gguf", &bare)]), &native(FOLDER));
    assert_eq!(none, Ok(None));
}

fn names<'a>(files: &[(&'a str, &[u8])]) -> Vec<&'a str> {
    files.iter().map(|(name, _)| *name).collect()
}

#[test]
fn weights_in_the_directory_are_those_of_the_native_engine() {
    let own = files(&[("m.gguf", gguf_file(Some(&template("gguf"))))]);
    assert_eq!(prompt(&own, &Arc::default(), &native("")), Ok(Some("gguf<inside>".to_owned())));
    assert_eq!(prompt(&own, &Arc::default(), &manifest("")), Ok(None), "a handler does what it likes with them");
}

#[test]
fn files_of_the_weights_that_cannot_be_used_are_named() {
    let place = "in the folder of the weights";
    for (name, text, reason) in [
        (
            JINJA,
            "{% for".to_owned(),
            format!("the chat template of `chat_template.jinja` {place} cannot be used: line 1"),
        ),
        (TOKENIZER, "{".to_owned(), format!("the chat template of `tokenizer_config.json` {place} cannot be used: ")),
        ("m.gguf", "PK".to_owned(), format!("`m.gguf` {place} is not a GGUF file")),
    ] {
        let found = prompt(&files::<&str>(&[]), &files(&[(name, text)]), &native(FOLDER)).unwrap_err();
        assert!(found.starts_with(&reason), "{found}");
    }
    let broken = files(&[("m.gguf", gguf_file(Some("{% for")))]);
    let found = prompt(&files::<&str>(&[]), &broken, &native(FOLDER)).unwrap_err();
    assert!(found.starts_with(&format!("the chat template of `m.gguf` {place} cannot be used: line 1")), "{found}");
}

#[test]
fn contents_that_cannot_be_used_are_refused_with_a_reason() {
    let good = files(&[(JINJA, "{{ messages }}")]);
    assert_eq!(check_content(&good, &manifest("")), Ok(()));
    assert_eq!(check_content(&Arc::default(), &manifest("")), Ok(()));
    assert_eq!(check_content(&Arc::default(), &native(FOLDER)), Ok(()), "its weights may have a template");
    let message = check_content(&good, &manifest("tool-parser = \"hermes2\"")).unwrap_err();
    assert!(message.starts_with("`tool-parser` in [chat] of omni.toml is \"hermes2\": write one of "), "{message}");
    let broken = files(&[(JINJA, "{% for m in messages %}\n{{ m.content }")]);
    let message = check_content(&broken, &manifest("")).unwrap_err();
    assert!(message.starts_with("line 2 of the chat template: "), "{message}");
}
