//! Form of a delivery: `ExportTraceServiceRequest` of OTLP 1.x in JSON, by the mapping of the OTLP specification: ids
//! in hexadecimal digits, 64-bit numbers as texts, enumerations as numbers.

use crate::resource::Resource;
use crate::span::{Span, SpanKind, Value};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

/// Scope of all spans.
const SCOPE: &str = "omni";
/// Status code of a span that failed.
const ERROR: u8 = 2;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: ResourceValue<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct ResourceValue<'a> {
    #[serde(serialize_with = "attributes")]
    attributes: &'a [(&'static str, Value)],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope<'a>,
    #[serde(serialize_with = "spans")]
    spans: &'a [Span],
}

#[derive(Serialize)]
struct Scope<'a> {
    name: &'a str,
    version: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanValue<'a> {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: &'a str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    #[serde(serialize_with = "attributes")]
    attributes: &'a [(&'static str, Value)],
    status: Status,
}

#[derive(Serialize)]
struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: AnyValue<'a>,
}

/// Answer of a server that has taken a part of the spans, or all of them.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    partial_success: PartialSuccess,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    rejected_spans: Number,
}

/// A number, or its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

impl Default for Number {
    fn default() -> Self {
        Self::Number(0)
    }
}

struct AnyValue<'a>(&'a Value);

impl Serialize for AnyValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Text<'a> {
            #[serde(rename = "stringValue")]
            text: &'a str,
        }
        #[derive(Serialize)]
        struct Values<'a> {
            values: [Text<'a>; 1],
        }
        let mut map = serializer.serialize_map(Some(1))?;
        match self.0 {
            Value::Text(text) => map.serialize_entry("stringValue", text)?,
            Value::List(text) => map.serialize_entry("arrayValue", &Values { values: [Text { text }] })?,
            Value::Number(number) => {
                let number = i64::try_from(*number).unwrap_or(i64::MAX); // the form has no larger one
                map.serialize_entry("intValue", &number.to_string())?;
            }
        }
        map.end()
    }
}

fn attributes<S: Serializer>(attributes: &&[(&'static str, Value)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(attributes.len()))?;
    for (key, value) in *attributes {
        list.serialize_element(&Attribute { key, value: AnyValue(value) })?;
    }
    list.end()
}

fn spans<S: Serializer>(spans: &&[Span], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(spans.len()))?;
    for span in *spans {
        let Span { trace, id, parent, name, kind, times: (begin, end), attributes, is_error } = span;
        list.serialize_element(&SpanValue {
            trace_id: trace.to_string(),
            span_id: id.to_string(),
            parent_span_id: parent.map(|parent| parent.to_string()),
            name,
            kind: match kind {
                SpanKind::Internal => 1,
                SpanKind::Server => 2,
                SpanKind::Client => 3,
            },
            start_time_unix_nano: begin.to_string(),
            end_time_unix_nano: end.to_string(),
            attributes,
            status: Status { code: is_error.then_some(ERROR) },
        })?;
    }
    list.end()
}

/// The body of a delivery.
pub(crate) fn request(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let scope = Scope { name: SCOPE, version: resource.version };
    let resource = ResourceValue { attributes: &resource.attributes() };
    let request = Request { resource_spans: [ResourceSpans { resource, scope_spans: [ScopeSpans { scope, spans }] }] };
    serde_json::to_vec(&request).unwrap_or_default() // names and numbers are always JSON
}

/// Number of spans that a server has refused, by its answer to a delivery that it has taken.
pub(crate) fn rejected(answer: &[u8]) -> u64 {
    match serde_json::from_slice(answer).unwrap_or_default() {
        Answer { partial_success: PartialSuccess { rejected_spans: Number::Number(number) } } => number,
        Answer { partial_success: PartialSuccess { rejected_spans: Number::Text(text) } } => {
            text.parse().unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{SpanId, TraceId};
    use serde_json::json;

    #[test]
    fn a_delivery_has_the_published_form() {
        let mut span = Span {
            trace: TraceId::new(0xabc).unwrap(),
            id: SpanId::new(7).unwrap(),
            parent: None,
            name: "queue".into(),
            kind: SpanKind::Server,
            times: (1_700_000_000_000_000_001, 1_700_000_000_000_000_002),
            attributes: vec![("n", Value::Number(u64::MAX)), ("l", Value::List("stop"))],
            is_error: false,
        };
        let ended = span.clone();
        span.parent = SpanId::new(8);
        span.fail("timeout");
        let resource = Resource { version: "1.2", host: Some("h".to_owned()), instance: "i".to_owned() };
        let found: serde_json::Value = serde_json::from_slice(&request(&resource, &[ended, span])).unwrap();
        let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let number = json!({"key": "n", "value": {"intValue": "9223372036854775807"}});
        let list = json!({"key": "l", "value": {"arrayValue": {"values": [{"stringValue": "stop"}]}}});
        let of = |more: serde_json::Value, attributes: serde_json::Value, status: serde_json::Value| {
            let mut span = json!({
                "traceId": "00000000000000000000000000000abc", "spanId": "0000000000000007", "name": "queue", "kind": 2,
                "startTimeUnixNano": "1700000000000000001", "endTimeUnixNano": "1700000000000000002",
                "attributes": attributes, "status": status,
            });
            span.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            span
        };
        let spans = json!([
            of(json!({}), json!([number, list]), json!({})),
            of(
                json!({"parentSpanId": "0000000000000008"}),
                json!([number, list, text("error.type", "timeout")]),
                json!({"code": 2})
            ),
        ]);
        let attributes = json!([
            text("service.name", "omni"),
            text("service.version", "1.2"),
            text("service.instance.id", "i"),
            text("host.name", "h")
        ]);
        let scope = json!({"scope": {"name": "omni", "version": "1.2"}, "spans": spans});
        let expected = json!({"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [scope]}]});
        assert_eq!(found, expected);
    }

    #[test]
    fn a_server_can_refuse_a_part() {
        for (answer, count) in [
            ("{}", 0),
            ("", 0),
            ("no json", 0),
            (r#"{"partialSuccess": {}}"#, 0),
            (r#"{"partialSuccess": {"rejectedSpans": "5", "errorMessage": "no"}}"#, 5),
            (r#"{"partialSuccess": {"rejectedSpans": 6}}"#, 6),
            (r#"{"partialSuccess": {"rejectedSpans": -6}}"#, 0),
        ] {
            assert_eq!(rejected(answer.as_bytes()), count, "{answer}");
        }
    }
}
