//! The manifest: reading, writing back, refusals and their messages, and agreement of schema and documentation with the
//! parser.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use omni_config::manifest::{Access, Capability, Engine, Entrypoint, GpuMode, Kind, ZygoteUse};
use omni_config::{ByteSize, Manifest, Problem};
use proptest::prelude::*;
use serde_json::Value;

const FULL: &str = r#"
schema = 1
[model]
kind = "text-generation"
entrypoint = "app.main:handle"
[runtime]
engine = "python"
python = "3.12"
interpreter = "/opt/env/bin/python"
command = []
[python]
preload = []
zygote = false
require-hashes = false
[generation]
honours = ["seed", "top-k"]
[chat]
render = "model"
tool-parser = "hermes"
reasoning-parser = "none"
[batching]
max = 4096
cost = "tokens"
isolate = true
[weights]
source = "https://files.example.com/weights"
files = ["0000000000000000000000000000000000000000000000000000000000000000  a b.bin", "config.json"]
[resources]
memory = "7GiB"
cpus = 0.5
pids = 64
gpu-memory = "10GiB"
gpu-mode = "device"
[scaling]
min-instances = 1
max-instances = 4
concurrency = 16
idle-timeout = "1h"
queue = 0
priority = 5
[timeouts]
startup = "10m"
request = "500ms"
drain = "1m"
cancel-grace = "1s"
healthcheck = "2m"
[limits]
body = "1MiB"
body-handover = true
cache = "2GiB"
tmp = "64MiB"
[logs]
libraries = "warning"
[network]
access = "host"
[env]
HF_HUB_OFFLINE = "1"
EMPTY = ""
"#;

#[test]
fn every_key_is_read() {
    let manifest = Manifest::parse(FULL).unwrap();
    assert_eq!(manifest.model.entrypoint.module(), "app.main");
    assert_eq!(manifest.model.entrypoint.function(), "handle");
    assert_eq!(manifest.runtime.python.to_string(), "3.12");
    assert_eq!(manifest.runtime.interpreter.as_deref(), Some(Path::new("/opt/env/bin/python")));
    assert_eq!(manifest.resources.memory.bytes(), 7_516_192_768);
    assert_eq!(manifest.timeouts.request, Duration::from_millis(500));
    assert_eq!(manifest.network.access, Access::Host);
    assert_eq!(manifest.weights.fetched().unwrap().to_string(), "https://files.example.com/weights");
    let folder = Manifest::parse("[weights]\nsource = \"file:///srv/weights/llama\"").unwrap().weights;
    assert_eq!((folder.folder(), folder.fetched()), (Some(Path::new("/srv/weights/llama")), None));
    insta::assert_json_snapshot!("every_key", manifest);
    // Each value differs from its default, so a key that was not read would show as one: all but what this version
    // has only one value for.
    let (read, default) = (keys(&manifest), keys(&Manifest::default()));
    let same: Vec<_> = default.iter().filter(|pair| read.contains(pair)).map(|(key, _)| key.as_str()).collect();
    let only_one =
        ["python.preload", "python.require-hashes", "runtime.command", "runtime.engine", "schema", "weights.sha256"];
    assert_eq!(same, only_one);
}

#[test]
fn an_empty_manifest_means_the_defaults() {
    assert_eq!(Manifest::parse("").unwrap(), Manifest::default());
    let empty_sections =
        "[model]\n[runtime]\n[weights]\n[resources]\n[scaling]\n[timeouts]\n[limits]\n[network]\n[env]";
    assert_eq!(Manifest::parse(empty_sections).unwrap(), Manifest::default());
    insta::assert_snapshot!("defaults", Manifest::default().to_toml().unwrap());
}

#[test]
fn numbers_may_be_whole_where_fractions_are_allowed() {
    let manifest = Manifest::parse("[resources]\ncpus = 3\npids = 0x40").unwrap();
    assert_eq!((manifest.resources.cpus, manifest.resources.pids), (3.0, 64));
}

/// Manifests with one mistake each. The snapshot is the list of messages: read it when it changes, as an author of a
/// model would.
const BAD: &[&str] = &[
    "schema = 2",
    "schema = \"1\"",
    "[resources]\ncpus = 1.0\n\nmemmory = \"7GiB\"",
    "[resource]\nmemory = \"7GiB\"",
    "[resources]\ngpu_memory = \"0B\"",
    "[scaling]\nmemory = \"7GiB\"",
    "memory = \"7GiB\"",
    "resources = \"7GiB\"",
    "[[resources]]\nmemory = \"7GiB\"",
    "[resources]\nmemory = \"7GB\"",
    "[resources]\nmemory = \"7\"",
    "[resources]\nmemory = 7",
    "[resources]\nmemory = 0.5",
    "[resources]\nmemory = \"1.5GiB\"",
    "[resources]\nmemory = \"1MiB\"",
    "[resources]\nmemory = \"99999999999999999999GiB\"",
    "[resources]\nmemory = { max = \"7GiB\" }",
    "[resources]\ncpus = 0",
    "[resources]\ncpus = nan",
    "[resources]\ncpus = inf",
    "[resources]\ncpus = \"2\"",
    "[resources]\npids = 0",
    "[resources]\npids = 1.5",
    "[resources]\npids = 99999999999999999999",
    "[resources]\ngpu-memory = 0",
    "[resources]\ngpu-memory = \"1MiB\"",
    "[resources]\ngpu-memory = \"10GB\"",
    "[resources]\ngpu-mode = \"shared\"",
    "[resources]\ngpu-mode = \"device\"",
    "[resources]\ngpu-mode = \"sleep\"\ngpu-memory = \"1GiB\"",
    "[chat]\nrender = \"model\"",
    "[generation]\nhonours = [\"seed\"]",
    "[model]\nkind = \"text-generation\"\n[generation]\nhonours = [\"sed\"]",
    "[batching]\nisolate = true",
    "[batching]\nmax = 8\n[scaling]\nconcurrency = 8",
    "[model]\nkind = \"chat\"",
    "[model]\nentrypoint = \"model\"",
    "[model]\nentrypoint = \"model.py:handle-request\"",
    "[model]\nentrypoint = \"a:b:c\"",
    "[model]\nkind = \"embeddings\"\n[runtime]\nengine = \"openai\"\ncommand = [\"serve\"]",
    "[runtime]\nengine = \"vllm\"",
    "[runtime]\npython = 3.10",
    "[runtime]\npython = \"3.8\"",
    "[runtime]\npython = \"3.11.4\"",
    "[runtime]\ninterpreter = \"venv/bin/python\"",
    "[runtime]\ninterpreter = \"/srv/../bin/python\"",
    "[runtime]\ncommand = [\"serve\"]",
    "[runtime]\ncommand = \"serve\"",
    "[runtime]\ncommand = [\"serve\", 8000]",
    "[weights]\nsource = \"s3://Bucket/prefix\"",
    "[weights]\nsource = \"hf://llama\"",
    "[weights]\nsource = \"https://user@host/file\"",
    "[weights]\nsource = \"https://host/../file\"",
    "[weights]\nfiles = [\"a\"]",
    "[weights]\nsource = \"hf://a/b\"\nfiles = [\"../a\"]",
    "[weights]\nsource = \"hf://a/b\"\nfiles = [\"a\", \"a\"]",
    "[weights]\nsource = \"file:///srv/weights\"\nfiles = [\"a\"]",
    "[weights]\nsource = \"hf://a/b\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"",
    "[weights]\nsource = \"s3://bucket/a\"\nfiles = [\"b\"]\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"",
    "[weights]\nsource = \"ftp://host/file\"",
    "[weights]\nsource = \"file:///srv/weights/../../etc\"",
    "[weights]\nsource = \"file:///srv/we%69ghts\"",
    "[weights]\nsource = \"file:///srv/weights\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"",
    "[weights]\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"",
    "[weights]\nsha256 = \"abc\"",
    "[scaling]\nmax-instances = 0",
    "[scaling]\npriority = 10",
    "[scaling]\nmin-instances = 2",
    "[scaling]\nconcurrency = 0",
    "[scaling]\nconcurrency = 1025",
    "[scaling]\nqueue = -1",
    "[scaling]\nidle-timeout = 600",
    "[scaling]\nidle-timeout = \"0s\"",
    "[timeouts]\nrequest = \"60\"",
    "[timeouts]\nrequest = \"1h30m\"",
    "[timeouts]\nrequest = \"0s\"",
    "[timeouts]\nrequest = \"366d\"",
    "[timeouts]\nrequest = 2026-01-01",
    "[limits]\nbody = \"65GiB\"",
    "[limits]\nbody = true",
    "[limits]\nbody-handover = \"yes\"",
    "[network]\naccess = \"internet\"",
    "[env]\nHF_HUB_OFFLINE = 1",
    "[env]\nLD_PRELOAD = \"/tmp/x.so\"",
    "[env]\nOMNI_INSTANCE = \"x\"",
    "[env]\n\"a b\" = \"x\"",
    "[env]\nA = \"\\u0000\"",
    "[model]\nkind = \"custom\"\nkind = \"custom\"",
    "[model\nkind = \"custom\"",
    "[model]\nentrypoint = model:handle_request",
    "[model]\nentrypoint = \"model:handle_request",
];

#[test]
fn every_mistake_has_its_message() {
    let mut messages = String::new();
    for text in BAD {
        let error = Manifest::parse(text).expect_err(text);
        assert_eq!(error.0.listed().len(), 1, "one mistake, one message: {text}");
        writeln!(messages, "{}\n  {error}\n", text.replace('\n', " | ")).unwrap();
    }
    insta::assert_snapshot!("messages", messages);
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_text() {
    let text =
        "[env]\nPATH = \"/tmp\"\n[scaling]\nqueue = \"x\"\n[runtime]\nengine = \"openai\"\n[model]\nkin = 1\n[gpu]\n";
    insta::assert_snapshot!("all_at_once", Manifest::parse(text).unwrap_err());
}

#[test]
fn a_report_is_bounded_whatever_the_text() {
    // Going through the text once for each of them would take minutes.
    let many: String = (0..20_000).fold(String::new(), |text, index| text + &format!("key{index} = 1\n"));
    let report = Manifest::parse(&many).unwrap_err().to_string();
    assert_eq!(report.lines().count(), 21);
    assert!(report.ends_with("and 19980 more"), "{report}");

    let long = format!("[model]\nkind = \"{}\"", "x".repeat(10_000));
    assert!(Manifest::parse(&long).unwrap_err().to_string().len() < 300);

    let key = "x".repeat(10_000);
    for text in [format!("{key} = 1"), format!("[env]\n{key} = \"\""), format!("[model]\nentrypoint = \"a:{key}-\"")] {
        assert!(Manifest::parse(&text).unwrap_err().to_string().len() < 300);
    }

    let deep = format!("[runtime]\ncommand = {}", "[".repeat(100_000));
    assert!(Manifest::parse(&deep).unwrap_err().to_string().len() < 300);

    let huge = "#".repeat(256 * 1024 + 1);
    let error = Manifest::parse(&huge).unwrap_err();
    assert!(matches!(error.0.listed(), [Problem::TooLong { .. }]));
    assert_eq!(Manifest::parse(&huge[1..]), Ok(Manifest::default()));
}

fn manifests() -> impl Strategy<Value = Manifest> {
    let program =
        ("[a-z_]{1,8}(\\.[a-z_]{1,8}){0,2}:[a-z_]{1,8}", 9_u32..=14, proptest::option::of("/[a-z/ é\"]{1,20}"));
    let used = (16_u64 << 20..1 << 46, 1_u32..=102_400, 1_u32..=32_768, 1_u64..=64 << 30);
    let gpu = (prop_oneof![Just(0), 16_u64 << 20..1 << 46], any::<bool>());
    let busy =
        ((0_u32..=512, 1_u32..=512, 0_u8..=9), 1_u32..=1024, 0_u32..=100_000, 1_u64..=31_536_000_000, any::<bool>());
    let env = proptest::collection::btree_map("X[A-Z_0-9]{0,8}", "[^\0]{0,20}", 0..4);
    (program, used, gpu, busy, env).prop_map(|((entrypoint, minor, interpreter), used, gpu, busy, env)| {
        let mut manifest = Manifest::default();
        manifest.model.entrypoint = entrypoint.parse::<Entrypoint>().unwrap();
        manifest.runtime.python = format!("3.{minor}").parse().unwrap();
        manifest.runtime.interpreter = interpreter.map(Into::into);
        manifest.resources.memory = ByteSize::from_bytes(used.0);
        manifest.resources.cpus = f64::from(used.1) / 100.0;
        manifest.resources.pids = used.2;
        manifest.resources.gpu_memory = ByteSize::from_bytes(gpu.0);
        if gpu.0 == 0 {
            manifest.python.preload = vec![manifest.model.entrypoint.module().to_owned()];
            manifest.python.zygote = if gpu.1 { ZygoteUse::On } else { ZygoteUse::Off };
        }
        manifest.resources.gpu_mode = if gpu.0 > 0 && gpu.1 { GpuMode::Device } else { GpuMode::Unified };
        manifest.limits.body = ByteSize::from_bytes(used.3);
        let (min, more, priority) = busy.0;
        manifest.scaling.min_instances = min;
        manifest.scaling.max_instances = min + more;
        manifest.scaling.priority = priority;
        manifest.scaling.concurrency = busy.1;
        manifest.scaling.queue = busy.2;
        manifest.timeouts.request = Duration::from_millis(busy.3);
        manifest.network.access = if busy.4 { Access::Host } else { Access::None };
        manifest.env = env.into_iter().map(|(name, value)| (name.parse().unwrap(), value)).collect();
        manifest
    })
}

proptest! {
    #[test]
    fn an_effective_manifest_reads_as_itself(manifest in manifests()) {
        prop_assert_eq!(Manifest::parse(&manifest.to_toml().unwrap()), Ok(manifest));
    }

    #[test]
    fn no_text_panics(
        text in concat!(
            "(\\[(model|runtime|python|weights|resources|scaling|timeouts|limits|network|env)\\]\n",
            "|[a-z-]{1,9} = |[\"0-9.GiBsm{}\\[\\],]{0,6}|.{0,4}|\n){0,12}",
        ),
    ) {
        if let Err(error) = Manifest::parse(&text) {
            prop_assert!(!error.0.listed().is_empty());
        }
    }
}

#[test]
fn a_server_needs_a_kind_and_a_command_with_a_place_to_listen() {
    let server = |kind: &str, command: &str, more: &str| {
        Manifest::parse(&format!(
            "[model]\nkind = \"{kind}\"\n[runtime]\nengine = \"openai\"\ncommand = {command}\n{more}"
        ))
    };
    let listening = "[\"serve\", \"--uds={socket}\", \"{model_dir}/w\"]";
    for kind in ["text-generation", "embeddings", "rerank"] {
        let manifest = server(kind, listening, "[scaling]\nmax-instances = 4").unwrap();
        assert_eq!((manifest.runtime.engine, manifest.zygote_memory()), (Engine::OpenAi, None), "{kind}");
    }
    server("embeddings", "[\"serve\", \"{port}\", \"{weights_dir}\"]", "[weights]\nsource = \"file:///w\"").unwrap();
    for (kind, command, more, key) in [
        ("custom", listening, "", "kind"),
        ("speech-to-text", listening, "", "kind"),
        ("embeddings", "[]", "", "command"),
        ("embeddings", "[\"serve\"]", "", "command"),
        ("embeddings", "[\"serve\", \"{sokcet}\"]", "", "command"),
        ("embeddings", "[\"serve\", \"{socket}\", \"{port}\"]", "", "command"),
        ("embeddings", "[\"serve\", \"{port}\"]", "[network]\naccess = \"host\"", "command"),
        ("embeddings", "[\"serve\", \"{socket}\", \"{weights_dir}\"]", "", "command"),
        ("embeddings", listening, "[python]\npreload = [\"numpy\"]", "preload"),
        ("embeddings", listening, "[python]\nzygote = true", "zygote"),
        ("text-generation", listening, "[generation]\nhonours = [\"literal-ranges\"]", "honours"),
        ("embeddings", listening, "[batching]\nmax = 4", "max"),
        ("embeddings", listening, "[resources]\ngpu-mode = \"sleep\"", "gpu-mode"),
    ] {
        let error = server(kind, command, more).unwrap_err();
        let [Problem::Refused { key: path, .. }] = error.0.listed() else { panic!("{kind} {command} {more}: {error}") };
        assert!(path.ends_with(key), "{path} for {kind} {command} {more}");
    }
    let never = Manifest::parse("[runtime]\nengine = \"node\"").unwrap_err();
    assert!(matches!(never.0.listed(), [Problem::Value { line: 2, .. }]));
}

#[test]
fn all_kinds_are_served() {
    for kind in Kind::ALL {
        let manifest = Manifest::parse(&format!("[model]\nkind = {:?}", kind.name())).unwrap();
        assert_eq!(manifest.model.kind, kind);
    }
    assert_eq!(Manifest::default().model.kind, Kind::Custom);
}

/// Every key of the parser with its value: what is written back is what is read, as the round trip above shows.
fn keys(manifest: &Manifest) -> Vec<(String, Value)> {
    let mut keys = Vec::new();
    for (name, value) in serde_json::to_value(manifest).unwrap().as_object().unwrap() {
        match value.as_object() {
            Some(section) if name != "env" => {
                keys.extend(section.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())));
            }
            _ => keys.push((name.clone(), value.clone())),
        }
    }
    keys.sort_by(|one, other| one.0.cmp(&other.0));
    keys
}

#[test]
fn the_schema_has_the_keys_and_defaults_of_the_parser() {
    let schema: Value = serde_json::from_str(include_str!("../schema/omni.schema.json")).unwrap();
    let mut described = Vec::new();
    for (name, property) in schema["properties"].as_object().unwrap() {
        match property["properties"].as_object() {
            Some(section) => {
                assert_eq!(property["additionalProperties"], Value::Bool(false), "[{name}] refuses unknown keys");
                described.extend(section.iter().map(|(key, property)| (format!("{name}.{key}"), property)));
            }
            None => described.push((name.clone(), property)),
        }
    }
    described.sort_by(|one, other| one.0.cmp(&other.0));
    let defaults: Vec<_> = described.iter().map(|(key, property)| (key.clone(), property["default"].clone())).collect();
    assert_eq!(defaults, keys(&Manifest::default()));
    for (key, property) in described {
        assert!(property["description"].is_string(), "{key} is described");
    }
}

#[test]
fn schema_and_parser_have_the_same_keywords() {
    let schema: Value = serde_json::from_str(include_str!("../schema/omni.schema.json")).unwrap();
    let words = |section: &str, key: &str| {
        let property = &schema["properties"][section]["properties"][key];
        property["enum"].as_array().map(|words| words.iter().map(|word| word.as_str().unwrap().to_owned()).collect())
    };
    for (key, _) in keys(&Manifest::default()) {
        let Some((section, key)) = key.split_once('.') else { continue };
        let wrong = Manifest::parse(&format!("[{section}]\n{key} = \"?\"")).err();
        let expected = wrong.and_then(|error| match error.0.listed() {
            [Problem::Value { expected, .. }] => Some(expected.clone()),
            _ => None,
        });
        // A key that takes keywords lists them all: `"none" or "host"`.
        let taken = expected.filter(|expected| expected.contains(" or ") && expected.starts_with('"'));
        let taken = taken.map(|expected| expected.split(" or ").map(|word| word.replace('"', "")).collect());
        let described: Option<Vec<String>> = words(section, key).filter(|_| key != "python");
        assert_eq!(described, taken, "{section}.{key}");
    }
    let releases: Vec<String> = words("runtime", "python").unwrap();
    for minor in 0..30 {
        let release = format!("3.{minor}");
        let read = Manifest::parse(&format!("[runtime]\npython = \"{release}\"")).is_ok();
        assert_eq!(releases.contains(&release), read, "{release}");
    }
}

#[test]
fn the_documentation_has_every_key_with_its_default() {
    let page = include_str!("../../docs/manifest.md");
    for (path, default) in keys(&Manifest::default()) {
        let Some((section, key)) = path.split_once('.') else {
            assert!(page.contains(&format!("`{path}`")) || page.contains(&format!("## `[{path}]`")), "{path}");
            continue;
        };
        let (_, rest) = page.split_once(&format!("## `[{section}]`")).unwrap_or_else(|| panic!("[{section}]"));
        let chapter = rest.split("\n## ").next().unwrap();
        let row = chapter.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let cells: Vec<_> = row.unwrap_or_else(|| panic!("{path}")).split(" | ").collect();
        assert_eq!(cells.len(), 5, "{path}");
        assert_eq!(cells[2], format!("`{default}`"), "{path}");
        // The example is one the parser reads, or refuses only because of what this version lacks.
        let example = cells[4].trim_end_matches(" |").trim_matches('`').replace("9f86d0…0a08", &"0".repeat(64));
        assert!(example.starts_with(&format!("{key} = ")), "{path}: {example}");
        if let Err(error) = Manifest::parse(&format!("[{section}]\n{example}")) {
            assert!(matches!(error.0.listed(), [Problem::Refused { .. }]), "{path}: {error}");
        }
    }
}

#[test]
fn the_native_engine_runs_no_code_of_the_authors() {
    let native = |kind: &str, more: &str| {
        Manifest::parse(&format!("[model]\nkind = \"{kind}\"\n[runtime]\nengine = \"native\"\n{more}"))
    };
    for kind in ["text-generation", "embeddings"] {
        let manifest = native(kind, "[scaling]\nmax-instances = 4").unwrap();
        assert_eq!((manifest.runtime.engine, manifest.zygote_memory()), (Engine::Native, None), "{kind}");
        assert!(manifest.honours().contains(&Capability::JsonSchema) && manifest.generation.honours.is_empty());
    }
    for (kind, more, key) in [
        ("custom", "", "kind"),
        ("rerank", "", "kind"),
        ("text-generation", "command = [\"serve\", \"{socket}\"]", "command"),
        ("text-generation", "interpreter = \"/opt/python\"", "interpreter"),
        ("text-generation", "[python]\npreload = [\"numpy\"]", "preload"),
        ("text-generation", "[python]\nzygote = true", "zygote"),
        ("text-generation", "[generation]\nhonours = [\"seed\"]", "honours"),
        ("text-generation", "[chat]\nrender = \"model\"", "render"),
        ("text-generation", "[batching]\nmax = 4", "max"),
        ("text-generation", "[resources]\ngpu-memory = \"1GiB\"", "gpu-memory"),
    ] {
        let error = native(kind, more).unwrap_err().to_string();
        assert!(error.contains(key), "{kind} {more}: {error}");
    }
}
