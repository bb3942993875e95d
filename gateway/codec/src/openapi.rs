//! Operations of an API with the schemas of their types, and the OpenAPI document of all of them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Collector of operations.
#[derive(Debug)]
pub struct Operations {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    paths: Map<String, Value>,
}

/// Media types of an operation's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerMedia {
    /// JSON.
    Json,
    /// JSON, or server-sent events.
    JsonOrEvents,
    /// JSON, or text in another form.
    JsonOrText,
    /// Bytes of the type that the model names.
    Bytes,
}

impl Default for Operations {
    fn default() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
            paths: Map::new(),
        }
    }
}

impl Operations {
    /// Adds an operation without a body.
    pub fn get<A: JsonSchema>(&mut self, path: &str, summary: &str) {
        let answer = self.answers.subschema_for::<A>();
        let operation = json!({ "summary": summary, "responses": responses(Some(&answer), AnswerMedia::Json) });
        self.add(path, "get", operation);
    }

    /// Adds an operation with a body of JSON.
    pub fn post<R: JsonSchema, A: JsonSchema>(&mut self, path: &str, summary: &str, media: AnswerMedia) {
        let (request, answer) = (self.requests.subschema_for::<R>(), self.answers.subschema_for::<A>());
        self.add(path, "post", operation(summary, "application/json", &request, Some(&answer), media));
    }

    /// Adds an operation with a body of JSON whose answer is bytes.
    pub fn post_for_bytes<R: JsonSchema>(&mut self, path: &str, summary: &str) {
        let request = self.requests.subschema_for::<R>();
        self.add(path, "post", operation(summary, "application/json", &request, None, AnswerMedia::Bytes));
    }

    /// Adds an operation with a form that has a file.
    pub fn post_form<R: JsonSchema, A: JsonSchema>(&mut self, path: &str, summary: &str) {
        let (fields, answer) = (self.requests.subschema_for::<R>(), self.answers.subschema_for::<A>());
        let file = json!({ "type": "object", "required": ["file"], "properties": { "file": { "type": "string", "format": "binary" } } });
        let request = schemars::json_schema!({ "allOf": [fields, file] });
        let media = AnswerMedia::JsonOrText;
        self.add(path, "post", operation(summary, "multipart/form-data", &request, Some(&answer), media));
    }

    fn add(&mut self, path: &str, method: &str, operation: Value) {
        let mut operation = operation;
        if path.contains("{model}") {
            let parameter = json!({ "name": "model", "in": "path", "required": true, "schema": { "type": "string" } });
            if let Some(operation) = operation.as_object_mut() {
                operation.insert("parameters".to_owned(), json!([parameter]));
            }
        }
        if let Some(path) = self.paths.entry(path.to_owned()).or_insert_with(|| json!({})).as_object_mut() {
            path.insert(method.to_owned(), operation);
        }
    }

    /// The document: paths, and the schemas of all types.
    #[must_use]
    pub fn document(mut self, title: &str, version: &str) -> Value {
        let mut schemas = self.requests.take_definitions(true);
        for (name, schema) in self.answers.take_definitions(true) {
            schemas.entry(name).or_insert(schema);
        }
        json!({
            "openapi": "3.1.0",
            "info": { "title": title, "version": version },
            "paths": self.paths,
            "components": { "schemas": schemas },
        })
    }

    /// Names of types that requests and answers have in different forms: the document would have one of them alone.
    #[must_use]
    pub fn conflicts(&self) -> Vec<String> {
        let (requests, answers) = (self.requests.definitions(), self.answers.definitions());
        let differ = |name: &&String| requests.get(*name).is_some_and(|schema| answers.get(*name) != Some(schema));
        answers.keys().filter(differ).cloned().collect()
    }
}

fn operation(summary: &str, media_type: &str, request: &Schema, answer: Option<&Schema>, media: AnswerMedia) -> Value {
    json!({
        "summary": summary,
        "requestBody": { "required": true, "content": { media_type: { "schema": request } } },
        "responses": responses(answer, media),
    })
}

fn responses(answer: Option<&Schema>, media: AnswerMedia) -> Value {
    let mut content = Map::new();
    if let Some(answer) = answer {
        content.insert("application/json".to_owned(), json!({ "schema": answer }));
    }
    let text = json!({ "schema": { "type": "string" } });
    match media {
        AnswerMedia::Json => {}
        AnswerMedia::JsonOrEvents => {
            content.insert("text/event-stream".to_owned(), text);
        }
        AnswerMedia::JsonOrText => {
            content.insert("text/*".to_owned(), text);
        }
        AnswerMedia::Bytes => {
            content.insert("*/*".to_owned(), json!({ "schema": { "type": "string", "format": "binary" } }));
        }
    }
    json!({
        "200": { "description": "Answer", "content": content },
        "default": { "description": "Failure, in the form of the API", "content": { "application/json": {} } },
    })
}
