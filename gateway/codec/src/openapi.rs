//! Operations of APIs with the schemas of their types, and the OpenAPI document of all of them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Servers of the APIs whose routes begin with `/v1/`, at the root and below the prefix of the Workers AI API.
pub const V1: &[Server] = &[
    Server { url: "{node}/v1", description: "Data listener of a node", variables: &[NODE] },
    Server {
        url: "{node}/client/v4/accounts/{account}/ai/v1",
        description: "The same routes for clients of the Workers AI API",
        variables: &[NODE, ACCOUNT],
    },
];
/// Address of the data listener.
pub const NODE: Variable =
    Variable { name: "node", default: "http://127.0.0.1:8080", description: "Address of the data listener" };
/// Account of the Workers AI API.
pub const ACCOUNT: Variable = Variable { name: "account", default: "node", description: "Any name" };

/// An API: its operations, and what they have in common.
#[derive(Debug)]
pub struct Api {
    /// Name, which groups the operations.
    pub name: &'static str,
    /// Servers that paths are relative to.
    pub servers: &'static [Server],
    /// Body of a failure, in one of these forms.
    pub failure: &'static [Content],
    /// Operations.
    pub operations: &'static [Operation],
}

/// Server of an API.
#[derive(Debug, PartialEq, Eq)]
pub struct Server {
    /// Address, with the names of variables in braces.
    pub url: &'static str,
    /// Description.
    pub description: &'static str,
    /// Variables of the address.
    pub variables: &'static [Variable],
}

/// Variable in the address of a server.
#[derive(Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// Value without a configuration.
    pub default: &'static str,
    /// Description.
    pub description: &'static str,
}

/// An operation: a path with a method.
#[derive(Debug)]
pub struct Operation {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    query: &'static [Parameter],
    request: &'static [Content],
    answer: &'static [Content],
}

/// Parameter in the query of an address.
#[derive(Debug)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// Description.
    pub description: &'static str,
    /// Schema of the value.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// Content of a body.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    media_type: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Operation {
    /// An operation without a body.
    #[must_use]
    pub const fn get(path: &'static str, summary: &'static str, answer: &'static [Content]) -> Self {
        Self { path, method: "get", summary, query: &[], request: &[], answer }
    }

    /// An operation with a body in one of these forms, or without one if there are none.
    #[must_use]
    pub const fn post(
        path: &'static str,
        summary: &'static str,
        request: &'static [Content],
        answer: &'static [Content],
    ) -> Self {
        Self { path, method: "post", summary, query: &[], request, answer }
    }

    /// An operation that deletes something.
    #[must_use]
    pub const fn delete(path: &'static str, summary: &'static str, answer: &'static [Content]) -> Self {
        Self { path, method: "delete", summary, query: &[], request: &[], answer }
    }

    /// The operation with parameters in the query of its address.
    #[must_use]
    pub const fn with_query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    /// Method, in capitals.
    #[must_use]
    pub fn method(&self) -> String {
        self.method.to_ascii_uppercase()
    }

    /// Path, with names of parameters in braces.
    #[must_use]
    pub const fn path(&self) -> &'static str {
        self.path
    }
}

impl Content {
    /// Server-sent events.
    pub const EVENTS: Self = Self { media_type: "text/event-stream", schema: events };
    /// Text of any type.
    pub const TEXT: Self = Self { media_type: "text/*", schema: text };
    /// Bytes of the type that a model or a client names.
    pub const BYTES: Self = Self { media_type: "*/*", schema: bytes };

    /// JSON.
    #[must_use]
    pub const fn json<T: JsonSchema>() -> Self {
        Self::of::<T>("application/json")
    }

    /// Content of another media type.
    #[must_use]
    pub const fn of<T: JsonSchema>(media_type: &'static str) -> Self {
        Self { media_type, schema: schema_of::<T> }
    }

    /// A form of these fields and a file.
    #[must_use]
    pub const fn form_with_file<T: JsonSchema>() -> Self {
        Self { media_type: "multipart/form-data", schema: with_file::<T> }
    }
}

/// Schema of a type, by reference.
pub fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// No schema: some tools apply it to the text, others to each event.
fn events(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "description": "Server-sent events" })
}

fn text(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "string" })
}

fn bytes(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "string", "format": "binary" })
}

fn with_file<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut form = T::json_schema(generator);
    let object = form.ensure_object();
    if let Some(fields) = object.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
        fields.insert("file".to_owned(), json!({ "type": "string", "format": "binary" }));
    }
    if let Some(required) = object.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        required.insert(0, json!("file"));
    }
    form
}

/// Collector of operations.
#[derive(Debug)]
pub struct Operations {
    servers: &'static [Server],
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Operations {
    /// Makes a collector. `servers`: those of paths that have no others.
    #[must_use]
    pub fn new(servers: &'static [Server]) -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            servers,
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
            paths: Map::new(),
        }
    }

    /// Adds the operations of an API.
    pub fn add(&mut self, api: &Api) {
        for operation in api.operations {
            let method = self.method(api, operation);
            let path = self.paths.entry(operation.path).or_insert_with(|| {
                let parameters = path_parameters(operation.path);
                let mut path = Map::new();
                if !parameters.is_empty() {
                    path.insert("parameters".to_owned(), parameters.into());
                }
                if api.servers != self.servers {
                    path.insert("servers".to_owned(), servers(api.servers));
                }
                path.into()
            });
            if let Some(path) = path.as_object_mut() {
                path.insert(operation.method.to_owned(), method);
            }
        }
    }

    fn method(&mut self, api: &Api, operation: &Operation) -> Value {
        let answer = content(operation.answer, &mut self.answers);
        let failure = content(api.failure, &mut self.answers);
        let mut method = json!({
            "tags": [api.name],
            "summary": operation.summary,
            "responses": {
                "200": { "description": "Answer", "content": answer },
                "default": { "description": "Failure", "content": failure },
            },
        });
        if let Some(method) = method.as_object_mut() {
            if !operation.request.is_empty() {
                let content = content(operation.request, &mut self.requests);
                method.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
            }
            if !operation.query.is_empty() {
                let parameter = |parameter: &Parameter| {
                    let Parameter { name, description, schema } = parameter;
                    let schema = schema(&mut self.requests);
                    json!({ "name": name, "in": "query", "description": description, "schema": schema })
                };
                method.insert("parameters".to_owned(), operation.query.iter().map(parameter).collect());
            }
        }
        method
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
            "servers": servers(self.servers),
            "paths": self.paths,
            "components": { "schemas": schemas },
        })
    }

    /// Names that stand for several types, of which the document would have one alone: in requests and answers, or with a number behind
    /// them.
    #[must_use]
    pub fn conflicts(&self) -> Vec<String> {
        let (requests, answers) = (self.requests.definitions(), self.answers.definitions());
        let differ = |name: &&String| requests.get(*name).is_some_and(|schema| answers.get(*name) != Some(schema));
        let numbered = |name: &&String| {
            let base = name.trim_end_matches(|character: char| character.is_ascii_digit());
            base != name.as_str() && (requests.contains_key(base) || answers.contains_key(base))
        };
        let of_requests = requests.keys().filter(numbered);
        answers.keys().filter(|name| differ(name) || numbered(name)).chain(of_requests).cloned().collect()
    }
}

fn content(contents: &[Content], generator: &mut SchemaGenerator) -> Value {
    let content = |content: &Content| (content.media_type.to_owned(), json!({ "schema": (content.schema)(generator) }));
    contents.iter().map(content).collect::<Map<_, _>>().into()
}

/// Parameters of a path, whose names are in braces. All of them are texts.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })).collect()
}

fn servers(servers: &[Server]) -> Value {
    let server = |server: &Server| {
        let variable = |variable: &Variable| {
            let Variable { name, default, description } = variable;
            ((*name).to_owned(), json!({ "default": default, "description": description }))
        };
        let variables: Map<_, _> = server.variables.iter().map(variable).collect();
        let mut value = json!({ "url": server.url, "description": server.description });
        if let Some(value) = value.as_object_mut().filter(|_| !variables.is_empty()) {
            value.insert("variables".to_owned(), variables.into());
        }
        value
    };
    servers.iter().map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only the schema is looked at")]
    struct Question {
        text: String,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only the schema is looked at")]
    struct Answer {
        text: String,
    }

    mod other {
        #[derive(schemars::JsonSchema)]
        #[expect(dead_code, reason = "only the schema is looked at")]
        pub(super) struct Answer {
            number: u32,
        }
    }

    const SHARED: &[Server] = &[Server { url: "{node}", description: "A node", variables: &[NODE] }];
    const LISTENER: &[Server] = &[Server { url: "http://localhost", description: "A socket", variables: &[] }];

    const ANSWERS: &[Operation] = &[
        Operation::get("/answers/{name}/{part}", "An answer", &[Content::json::<Answer>()]),
        Operation::post(
            "/answers/{name}/{part}",
            "A question",
            &[Content::json::<Question>()],
            &[Content::json::<Answer>(), Content::EVENTS],
        ),
    ];
    const OTHERS: &[Operation] = &[
        Operation::post("/files", "A file", &[Content::form_with_file::<Question>()], &[Content::TEXT, Content::BYTES]),
        Operation::post("/order", "An order", &[], &[Content::of::<Answer>("application/x-ndjson")])
            .with_query(&[Parameter { name: "n", description: "Number", schema: schema_of::<u32> }]),
    ];
    const TWO_ANSWERS: &[Operation] =
        &[Operation::get("/", "", &[Content::json::<Answer>(), Content::of::<other::Answer>("a/b")])];
    const ASKED_AND_ANSWERED: &[Operation] =
        &[Operation::post("/", "", &[Content::json::<other::Answer>()], &[Content::json::<Answer>()])];

    fn api(servers: &'static [Server], operations: &'static [Operation]) -> Api {
        Api { name: "test", servers, failure: &[Content::TEXT], operations }
    }

    #[test]
    fn a_document_of_all_forms() {
        let mut operations = Operations::new(SHARED);
        operations.add(&api(SHARED, ANSWERS));
        operations.add(&api(LISTENER, OTHERS));
        assert_eq!(operations.conflicts(), Vec::<String>::new());
        insta::assert_json_snapshot!(operations.document("Test", "1"));
    }

    #[test]
    fn one_name_of_several_types_is_a_conflict() {
        for (operations, name) in [(TWO_ANSWERS, "Answer2"), (ASKED_AND_ANSWERED, "Answer")] {
            let mut collector = Operations::new(SHARED);
            collector.add(&api(SHARED, operations));
            assert_eq!(collector.conflicts(), [name]);
        }
    }
}
