//! Grammars of JSON: answers of random logits are valid, and hostile schemas are refused in time.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use fastrand::Rng;
use omni_sampler::{
    Choice, Format, Frame, Grammar, GrammarCompiler, GrammarError, Parameters, Progress, SampleError, Sampler,
    Vocabulary, Workspace,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

const ENDS: [u32; 2] = [0, 1];
const MARKER: u32 = 2;
const SECOND_MARKER: u32 = 3;

/// Special tokens, all single bytes, and longer tokens as merges make them.
fn tokens() -> Vec<Option<Vec<u8>>> {
    let longer = [
        "{\"", "\"}", "\":", "\": ", ",\"", ", ", "[[", "]]", "}}", "true", "false", "null", "ab", "the", " of", "\\n",
        "é", "日本", "\": \"", "\", \"", "},", "0.", "00", "-1", "12", "\n  ", "name", "value",
    ];
    let special = [None, None, None, None];
    let bytes = (0..=255u8).map(|byte| Some(vec![byte]));
    special.into_iter().chain(bytes).chain(longer.iter().map(|token| Some(token.as_bytes().to_vec()))).collect()
}

fn compiler() -> GrammarCompiler {
    let tokens = tokens();
    GrammarCompiler::new(tokens.iter().map(Option::as_deref), &ENDS).unwrap()
}

/// Answer of random logits; after a while those that close brackets and texts are more probable.
fn answer(grammar: Grammar, seed: u64, parameters: Parameters) -> Result<String, String> {
    let tokens = tokens();
    let vocabulary = Vocabulary::new(tokens.len(), &ENDS).unwrap();
    let choice = Choice { grammar: Some(grammar), ..Choice::default() };
    let mut sampler = Sampler::new(&Parameters { seed: Some(seed), ..parameters }, &vocabulary, choice).unwrap();
    let (mut random, mut workspace, mut bytes) = (Rng::with_seed(seed), Workspace::new(&vocabulary), Vec::new());
    for position in 0..4000 {
        let mut row: Vec<f32> = (0..tokens.len() + 4).map(|_| random.f32() * 8.0).collect();
        let pressure = (position as f32 / 50.0).min(12.0);
        for (token, logit) in tokens.iter().zip(&mut row) {
            if token.as_ref().is_some_and(|token| matches!(token[..], [b'"' | b'}' | b']'])) {
                *logit += pressure;
            }
        }
        let sampled = sampler.sample(&mut row, &mut workspace).map_err(|error| error.to_string())?;
        bytes.extend(tokens[sampled.token as usize].iter().flatten());
        if sampler.accept(sampled.token).map_err(|error| error.to_string())? == Progress::Ended {
            return String::from_utf8(bytes).map_err(|error| error.to_string());
        }
    }
    Err(format!("no end: {}", String::from_utf8_lossy(&bytes)))
}

/// Schema of at most `depth` levels.
fn schema(random: &mut Rng, depth: usize) -> Value {
    let text =
        |random: &mut Rng| ["name", "value", "ab", "x y", "é", "q\"uote", "日本", "1"][random.usize(..8)].to_owned();
    match random.usize(..if depth == 0 { 8 } else { 15 }) {
        0 => json!({"type": "string", "minLength": random.usize(..4), "maxLength": random.usize(4..20)}),
        1 => json!({"type": "string"}),
        2 => json!({"enum": [text(random), random.u8(..), true, null]}),
        3 => json!({"type": "integer", "minimum": random.i32(-50..10), "maximum": random.i32(10..5000)}),
        4 => json!({"type": "number", "exclusiveMinimum": -3, "maximum": random.i32(0..100)}),
        5 => json!({"type": ["boolean", "null"]}),
        6 => {
            let patterns = ["^[a-z]{2,5}$", "^(a|b)+c$", r"^\d{3}-\d{2}$", "^x", "^[A-Z][a-z]*( [A-Z][a-z]*)?$"];
            json!({"type": "string", "pattern": patterns[random.usize(..patterns.len())]})
        }
        7 => json!({"const": text(random)}),
        8 => {
            let (least, most) = (random.usize(..3), random.usize(3..6));
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": least, "maxItems": most})
        }
        9 => {
            let items = [schema(random, depth - 1), schema(random, depth - 1)];
            json!({"type": "array", "prefixItems": items, "items": false, "minItems": 2})
        }
        10 => json!({"anyOf": [schema(random, depth - 1), schema(random, depth - 1)]}),
        11 => json!({"type": "object", "additionalProperties": schema(random, depth - 1)}),
        12 => json!({"$ref": "#/$defs/tree"}),
        _ => object(random, depth, text),
    }
}

fn object(random: &mut Rng, depth: usize, text: impl Fn(&mut Rng) -> String) -> Value {
    let mut properties = Map::new();
    for _ in 0..random.usize(1..5) {
        properties.insert(text(random), schema(random, depth - 1));
    }
    let required: Vec<String> = properties.keys().filter(|_| random.bool()).cloned().collect();
    json!({"type": "object", "description": "an object", "properties": properties, "required": required,
        "additionalProperties": false})
}

#[test]
fn two_hundred_schemas_of_two_hundred_have_valid_answers() {
    let compiler = compiler();
    let mut valid = 0;
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let mut schema = object(&mut random, 3, |random| format!("p{}", random.u8(..9)));
        let next = json!({"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]});
        schema["$defs"] = json!({"tree": {"type": "object", "required": ["v"], "additionalProperties": false,
            "properties": {"v": {"type": "integer"}, "next": next}}});
        let text = schema.to_string();
        let grammar = compiler.compile(Format::JsonSchema(&text)).unwrap_or_else(|error| panic!("{error}: {text}"));
        let greedy = Parameters { temperature: 0.0, ..Parameters::default() };
        let parameters = if seed % 4 == 0 { greedy } else { Parameters::default() };
        let answer = answer(grammar, seed, parameters).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        let instance: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{seed}: {error}: {answer}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        valid += u32::from(validator.is_valid(&instance));
        assert!(validator.is_valid(&instance), "{seed}: {answer}: {text}");
    }
    assert_eq!(valid, 200);
}

#[test]
fn json_objects_are_objects() {
    let grammar = compiler().compile(Format::JsonObject).unwrap();
    for seed in 0..50 {
        let answer = answer(grammar.clone(), seed, Parameters::default()).unwrap();
        // Numbers as they are written: they may be larger than a float.
        assert!(serde_json::from_str::<HashMap<String, Box<RawValue>>>(&answer).is_ok(), "{answer}");
    }
}

#[test]
fn white_space_does_not_go_on() {
    let tokens = tokens();
    let vocabulary = Vocabulary::new(tokens.len(), &ENDS).unwrap();
    let schema =
        r#"{"type":"object","properties":{"name":{"const":"ab"}},"required":["name"],"additionalProperties":false}"#;
    let grammar = compiler().compile(Format::JsonSchema(schema)).unwrap();
    let greedy = Parameters { temperature: 0.0, ..Parameters::default() };
    let mut workspace = Workspace::new(&vocabulary);
    for liked in [&b" "[..], b"\n", b"\t", b"\r", b"\n  "] {
        let choice = Choice { grammar: Some(grammar.clone()), ..Choice::default() };
        let mut sampler = Sampler::new(&greedy, &vocabulary, choice).unwrap();
        let (mut bytes, mut ended) = (Vec::new(), false);
        while !ended && bytes.len() < 400 {
            let white = |token: &Vec<u8>| token.iter().all(u8::is_ascii_whitespace);
            let logit = |token: &Option<Vec<u8>>| match token {
                Some(token) if token == liked => 9.0,
                Some(token) if white(token) => 5.0,
                _ => 0.0,
            };
            let mut row: Vec<f32> = tokens.iter().map(logit).collect();
            let token = sampler.sample(&mut row, &mut workspace).unwrap().token;
            bytes.extend(tokens[token as usize].iter().flatten());
            ended = sampler.accept(token).unwrap() == Progress::Ended;
        }
        let text = String::from_utf8(bytes).unwrap();
        assert!(ended, "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"name": "ab"}));
    }
}

#[test]
fn json_stands_in_one_of_several_texts() {
    let compiler = compiler();
    let object = json!({"type": "object", "properties": {"name": {"enum": ["ab", "the"]}}, "required": ["name"],
        "additionalProperties": false});
    let named = json!({"$ref": "#/$defs/named", "$defs": {"named": object}}).to_string();
    let (begin, end) = ("<call>\n{\"f\": ", "}\n</call>");
    let frames = [Frame { begin, schema: &named, end }, Frame { begin: "", schema: r#"{"type":"boolean"}"#, end: "" }];
    let grammar = compiler.compile(Format::Framed(&frames)).unwrap();
    let mut kinds = [0, 0];
    for seed in 0..60 {
        let answer = answer(grammar.clone(), seed, Parameters::default()).unwrap();
        if let Some(value) = answer.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)) {
            let value: Value = serde_json::from_str(value).unwrap();
            assert!(["ab", "the"].contains(&value["name"].as_str().unwrap()), "{answer}");
            kinds[0] += 1;
        } else {
            assert!(["true", "false"].contains(&answer.as_str()), "{answer}");
            kinds[1] += 1;
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    let many = [Frame { begin: "a", schema: "true", end: "" }; 129];
    assert!(matches!(compiler.compile(Format::Framed(&many)), Err(GrammarError::TooLarge(_))));
    let wide = json!({"anyOf": (0..100).map(|number| json!({"const": number})).collect::<Vec<_>>()});
    let wide = json!({"allOf": [wide, wide]}).to_string();
    let wide = [Frame { begin: "a", schema: &wide, end: "" }; 3];
    assert!(matches!(compiler.compile(Format::Framed(&wide)), Err(GrammarError::TooLarge(_))), "together");
    let wrong = [Frame { begin: "a", schema: r#"{"type": 5}"#, end: "" }];
    assert!(matches!(compiler.compile(Format::Framed(&wrong)), Err(GrammarError::Unsupported(_))));
}

/// Behaviour 30, and the end of an answer: only where the grammar allows it, by any of the end tokens.
#[test]
fn an_answer_ends_where_the_grammar_allows_it_and_by_any_end_token() {
    let tokens = tokens();
    let vocabulary = Vocabulary::new(tokens.len(), &ENDS).unwrap();
    let id = |text: &str| tokens.iter().position(|token| token.as_deref() == Some(text.as_bytes())).unwrap() as u32;
    let mut workspace = Workspace::new(&vocabulary);
    let mut next = |sampler: &mut Sampler, wanted: u32| {
        let mut row = vec![0.0; tokens.len()];
        row[wanted as usize] = 50.0;
        sampler.sample(&mut row, &mut workspace).unwrap().token
    };
    let compiler = compiler();
    let parameters = Parameters { temperature: 0.0, ..Parameters::default() };
    let sampler = |schema: &str| {
        let choice =
            Choice { grammar: Some(compiler.compile(Format::JsonSchema(schema)).unwrap()), ..Choice::default() };
        Sampler::new(&parameters, &vocabulary, choice).unwrap()
    };
    for end in ENDS {
        let mut number = sampler(r#"{"type":"integer"}"#);
        assert_ne!(next(&mut number, end), end, "nothing is there yet");
        assert_eq!(number.accept(id("1")), Ok(Progress::Continues));
        assert_eq!(next(&mut number, end), end);
        assert_eq!(number.accept(end), Ok(Progress::Ended));
    }
    // Nothing may follow: the answer is complete without an end token.
    let mut constant = sampler(r#"{"const":"ab"}"#);
    for (token, progress) in [("\"", Progress::Continues), ("ab", Progress::Continues), ("\"", Progress::Ended)] {
        assert_eq!(next(&mut constant, id(token)), id(token));
        assert_eq!(constant.accept(id(token)), Ok(progress));
    }
    let mut constant = sampler(r#"{"const":"ab"}"#);
    assert!(matches!(constant.accept(id("the")), Err(SampleError::Grammar(_))));
}

/// Behaviour 18, for markers of one and of several tokens that overlap themselves.
#[test]
fn behaviour_18_the_grammar_begins_at_the_exact_token_after_the_marker() {
    let tokens = tokens();
    let vocabulary = Vocabulary::new(tokens.len(), &ENDS).unwrap();
    let brace = tokens.iter().position(|token| token.as_deref() == Some(b"{")).unwrap() as u32;
    let grammar = compiler().compile(Format::JsonObject).unwrap();
    let (a, b) = (MARKER, SECOND_MARKER);
    for (marker, before) in [
        (vec![a], vec![brace, 90, b]),
        (vec![a, a, b], vec![a, a, a]),
        (vec![a, b, a, b, 90], vec![a, b, a, b, a, b]),
        (vec![a, b], vec![b, b, a, 90, a]),
    ] {
        let choice = Choice { grammar: Some(grammar.clone().after(&marker).unwrap()), ..Choice::default() };
        let parameters = Parameters { temperature: 0.0, ..Parameters::default() };
        let mut sampler = Sampler::new(&parameters, &vocabulary, choice).unwrap();
        let mut workspace = Workspace::new(&vocabulary);
        let mut best = |sampler: &mut Sampler, wanted: &[u32]| {
            let mut row = vec![0.0; tokens.len()];
            wanted.iter().zip([50.0, 40.0, 30.0]).for_each(|(&token, logit)| row[token as usize] = logit);
            sampler.sample(&mut row, &mut workspace).unwrap().token
        };
        let last = marker[marker.len() - 1];
        for token in before {
            assert_eq!(best(&mut sampler, &[0, 1, token]), token, "reasoning is free, and does not end the answer");
            sampler.accept(token).unwrap();
        }
        let draft = [last, brace, brace];
        assert_eq!(sampler.plausible(&draft), 2, "{marker:?}: a draft is judged across the marker");
        sampler.accept(last).unwrap();
        assert_eq!(best(&mut sampler, &[90, 0, brace]), brace);
        sampler.accept(brace).unwrap();
        assert_ne!(best(&mut sampler, &[brace]), brace, "no second brace");
    }
    assert_eq!(grammar.clone().after(&[]).unwrap_err(), GrammarError::Marker(0));
    assert_eq!(grammar.after(&[5; 65]).unwrap_err(), GrammarError::Marker(65));
}

/// Behaviour 19: bounded in size, depth and time.
#[test]
fn behaviour_19_hostile_schemas_are_refused_or_compiled_in_time() {
    let compiler = compiler();
    let chain = |length: usize, target: &str| {
        let mut definitions = Map::new();
        for level in 0..length {
            definitions.insert(format!("d{level}"), json!({"items": {"$ref": format!("#/$defs/d{}", level + 1)}}));
        }
        definitions.insert(format!("d{length}"), json!({"type": "null"}));
        json!({"$ref": target, "$defs": definitions}).to_string()
    };
    let wide: Map<String, Value> = (0..3000).map(|index| (format!("property number {index}"), json!({}))).collect();
    let as_wide_as_allowed: Map<String, Value> = wide.clone().into_iter().take(512).collect();
    let names: Vec<String> = (0..8000).map(|index| format!("constant {index}")).collect();
    let patterns: Map<String, Value> = (0..60).map(|index| (format!("^{index}(a|b)*c{{1,9}}"), json!({}))).collect();
    let schemas = [
        "[".repeat(100_000),
        r#"{"items":"#.repeat(60) + "{}" + &"}".repeat(60),
        r#"{"items":"#.repeat(10_000) + "{}" + &"}".repeat(10_000),
        chain(250, "#/$defs/d0"),
        chain(2000, "#/$defs/d0"),
        json!({"type": "object", "properties": wide}).to_string(),
        json!({"type": "object", "properties": as_wide_as_allowed}).to_string(),
        many_objects(),
        json!({"enum": names}).to_string(),
        json!({"type": "object", "patternProperties": patterns}).to_string(),
        json!({"type": "string", "pattern": "^(((a{1,900}){1,900}){1,900}b|c)*$"}).to_string(),
        json!({"type": "string", "pattern": "(a|b|ab)*c.{0,500}(x|y).{3,400}z"}).to_string(),
        json!({"type": "string", "pattern": "(?=a)b\\1"}).to_string(),
        json!({"type": "string", "minLength": 3000, "maxLength": 4096}).to_string(),
        json!({"type": "array", "minItems": 99_000, "items": {"type": "array", "minItems": 99_000}}).to_string(),
        json!({"type": "integer", "multipleOf": 1e-300}).to_string(),
        json!({"type": "number", "minimum": 1e308, "maximum": -1e308}).to_string(),
        json!({"$ref": "#"}).to_string(),
        json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"}).to_string(),
        json!({"$ref": "http://example.invalid/schema"}).to_string(),
        json!({"not": {"type": "object"}}).to_string(),
        json!({"enum": ["é".repeat(90)], "type": "é".repeat(90)}).to_string(),
        json!({"x-guidance": {"lenient": true}, "not": {}}).to_string(),
        "false".to_owned(),
        "7".to_owned(),
        String::new(),
        format!("{{\"description\": \"{}\"}}", "x".repeat(200_000)),
    ];
    for text in schemas {
        let start = Instant::now();
        let result = compiler.compile(Format::JsonSchema(&text));
        let (took, shown) = (start.elapsed(), &text[..text.floor_char_boundary(60)]);
        println!("{took:?} {:?} {shown}", result.as_ref().err());
        assert!(took < Duration::from_millis(2500), "{shown}: {took:?}");
        if let Ok(grammar) = result {
            // Masks are bounded too, or end the choice with an error.
            let start = Instant::now();
            let mut ended = Err(String::new());
            for seed in 0..2 {
                ended = answer(grammar.clone(), seed, Parameters::default());
            }
            println!(
                "  {:?} {:?}",
                start.elapsed(),
                ended.map(|text| text.len()).map_err(|error| error.chars().take(90).collect::<String>())
            );
        }
    }
    for refused in [r#"{"not":{}}"#, r#"{"x-guidance":{"lenient":true},"not":{"type":"null"}}"#, r#"{"type":"lemon"}"#]
    {
        assert!(
            matches!(compiler.compile(Format::JsonSchema(refused)), Err(GrammarError::Unsupported(_))),
            "{refused}"
        );
    }
    assert!(compiler.compile(Format::JsonSchema("true")).is_ok());
}

/// Objects of many properties, of as many bytes as are allowed.
fn many_objects() -> String {
    let properties: Map<String, Value> = (0..500).map(|index| (format!("p{index}"), json!({}))).collect();
    let objects: Vec<Value> = (0..18).map(|index| json!({"properties": properties, "title": index})).collect();
    json!({"type": "array", "prefixItems": objects}).to_string()
}

#[test]
fn many_threads_compile_at_once() {
    let compiler = compiler();
    thread::scope(|scope| {
        let compile = |index: usize| {
            let schema = json!({"type": "object", "properties": {format!("p{index}"): {"type": "string"}}}).to_string();
            compiler.compile(Format::JsonSchema(&schema)).map(|_| ())
        };
        let threads: Vec<_> = (0..16).map(|index| scope.spawn(move || compile(index))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == Ok(())));
    });
}

#[test]
fn vocabularies_that_do_not_fit_are_refused() {
    let token: Option<&[u8]> = Some(b"a");
    assert!(GrammarCompiler::new([], &[0]).is_err());
    assert!(GrammarCompiler::new([token], &[]).is_err());
    assert!(GrammarCompiler::new([token], &[1]).is_err());
    let long = vec![b'a'; 5000];
    assert!(GrammarCompiler::new([token, Some(&long), Some(b"\xff\xff"), None, Some(b"")], &[3]).is_ok());
}
