//! The node's configuration: the shipped default file, reading, refusals and their messages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use omni_config::node::{BUILDER_UID, FALLBACK_UID, NodeUser};
use omni_config::{NodeConfig, PythonVersion};
use serde_json::Value;

/// The default file with the examples in it made real: each commented line that looks like a key.
fn with_examples() -> String {
    let is_key = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let lines = NodeConfig::default_toml().lines();
    let uncommented = lines.map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line));
    uncommented.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_default_file_changes_nothing() {
    assert_eq!(NodeConfig::parse(NodeConfig::default_toml()), Ok(NodeConfig::default()));
    assert_eq!(NodeConfig::parse(""), Ok(NodeConfig::default()));
}

#[test]
fn the_default_file_has_every_key_under_a_comment() {
    let config = NodeConfig::parse(&with_examples()).unwrap();
    // Keys without a fixed default have an example: with the examples, only lists are empty.
    assert_eq!(config.node.user, Some(NodeUser::Name("omni".to_owned())));
    let python: PythonVersion = "3.11".parse().unwrap();
    let interpreters = BTreeMap::from([(python, PathBuf::from("/usr/bin/python3.11"))]);
    assert_eq!(config.python.interpreters, interpreters);

    for (section, keys) in serde_json::to_value(&config).unwrap().as_object().unwrap() {
        let (_, rest) = NodeConfig::default_toml().split_once(&format!("\n[{section}]\n")).unwrap();
        let chapter = rest.split("\n[").next().unwrap();
        for (key, value) in keys.as_object().unwrap() {
            assert_ne!(value, &Value::Null, "{section}.{key} has an example");
            let lines: Vec<_> = chapter.lines().collect();
            let at = lines.iter().position(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")));
            let nested = format!("\n[{section}.{key}]\n");
            let before = match at {
                Some(at) => lines[..at].iter().rev().find(|line| !line.contains(" = ")).copied(),
                None => rest.split_once(&nested).and_then(|(before, _)| before.lines().last()),
            };
            assert!(before.is_some_and(|line| line.starts_with("# ")), "{section}.{key} is explained");
        }
    }
}

/// Every key with another value than its default.
const EVERY_KEY: &str = r#"
[node]
user = 4000
admin-group = "wheel"
uid-base = 2_000_000
uid-count = 10
models = "/srv/models"
state-dir = "/var/lib/x"
cache-dir = "/var/cache/x"
runtime-dir = "/run/x"
cgroup-parent = "gpu/omni"
cgroup-driver = "systemd"
[server]
listen = "[::1]:80"
admin-listen = "0.0.0.0:0"
buffered-bytes = "1GiB"
hosts = ["Models.Example.com.", "[::1]"]
connections = 10
connections-per-address = 3
header-timeout = "5s"
tokens = "tokens.toml"
body-handover = ["@cf/openai/whisper"]
[tls]
certificate = "/etc/omni/tls/fullchain.pem"
key = "key.pem"
[python]
uv = "/usr/bin/uv"
index-url = "https://index/simple"
extra-index-url = ["http://one/simple"]
find-links = ["/srv/wheels", "https://pages/"]
require-hashes = true
interpreters = { "3.9" = "/usr/bin/python3.9" }
build-timeout = "1m"
build-memory = "1GiB"
build-pids = 64
build-cpus = 1.5
builds = 3
[capacity]
memory = "60GiB"
cpus = 7.5
processes = 4000
processes-per-instance = 1024
[gpu]
devices = [1, "GPU-0123abcd-4567-89ef-0123-456789abcdef"]
memory-budget = "72GiB"
overcommit = 2
host-budget = "0B"
evict-timeout = "1s"
quantum = "500ms"
driver-dir = "/opt/driver"
device-dir = "/srv/dev"
[snapshots]
bytes = "1GiB"
files = 10
[cache]
per-model = "20GiB"
[weights]
folders = ["/srv/weights"]
cache = "1GiB"
private-hosts = ["store.internal", "10.0.0.5"]
[weights.sources."s3://models/llama/"]
endpoint = "https://store.internal:9000/"
region = "eu-1"
credential = "models-store"
redirects = ["cdn.example.com", "*.store.internal"]
authorities = "/etc/ca.pem"
[weights.sources."hf://"]
[network]
host-access = ["@cf/meta/llama"]
[logs]
lines-per-second = 1
kept = "4KiB"

[usage]
keep = "64MiB"
when-full = "refuse"
sink = "http://127.0.0.1:9/usage"
token = "usage-token"
authorities = "/etc/ca.pem"
[jobs]
enabled = false
idle = "1s"
disk = "1GiB"
keep = "24h"
[tracing]
endpoint = "https://collector.example.com:4318/"
sample = 1
headers = "otlp-headers"
authorities = "/etc/otlp-ca.pem"
timeout = "5s"
"#;

#[test]
fn every_key_is_read() {
    let config = NodeConfig::parse(EVERY_KEY).unwrap();
    assert!(config.allows_host_access(&"@cf/meta/llama".parse().unwrap()));
    assert!(!config.allows_host_access(&"cowsay".parse().unwrap()));
    assert!(config.allows_body_handover(&"@cf/openai/whisper".parse().unwrap()));
    assert!(!config.allows_body_handover(&"@cf/meta/llama".parse().unwrap()));
    insta::assert_json_snapshot!("every_key", config);

    let (read, default) =
        (serde_json::to_value(&config).unwrap(), serde_json::to_value(NodeConfig::default()).unwrap());
    for (section, keys) in default.as_object().unwrap() {
        for (key, value) in keys.as_object().unwrap() {
            assert_ne!(&read[section][key], value, "{section}.{key} is read");
        }
    }
}

/// Configurations with one mistake each.
const BAD: &[&str] = &[
    "[nodes]\nuser = \"omni\"",
    "[node]\nusr = \"omni\"",
    "[node]\nuser = \"root\"",
    "[node]\nuser = 0",
    "[node]\nuser = \"1000\"",
    "[node]\nuser = 1899999999",
    "[node]\nuser = 1_900_000_001",
    "[node]\nuid-base = 1000",
    "[node]\nuid-base = 4294967295",
    "[node]\nuid-base = 1_899_999_990",
    "[node]\nuid-count = 0",
    "[node]\nmodels = \"models\"",
    "[node]\ncgroup-parent = \"/omni\"",
    "[node]\ncgroup-parent = \"../omni\"",
    "[server]\nlisten = 8080",
    "[server]\nlisten = \"localhost:8080\"",
    "[server]\nlisten = \"127.0.0.1\"",
    "[server]\nbuffered-bytes = \"512MB\"",
    "[server]\nheader-timeout = 30",
    "[server]\nhosts = [\"http://example.com\"]",
    "[server]\nconnections-per-address = 0",
    "[server]\nbody-handover = true",
    "[tls]\ncertificate = \"/etc/omni/certificate.pem\"",
    "[tls]\nkey = \"key.pem\"",
    "[tls]\ncertificate = \"tls/certificate.pem\"\nkey = \"key.pem\"",
    "[python]\nindex-url = \"pypi.org\"",
    "[python]\nextra-index-url = \"https://index/simple\"",
    "[python]\nfind-links = [\"wheels\"]",
    "[python]\nrequire-hashes = \"yes\"",
    "[python.interpreters]\n\"3.8\" = \"/usr/bin/python3.8\"",
    "[python.interpreters]\n\"3.11\" = \"python3.11\"",
    "[python]\ninterpreters = \"/usr/bin/python3.11\"",
    "[capacity]\nmemory = 60",
    "[capacity]\nmemory = \"1MiB\"",
    "[capacity]\ncpus = 0",
    "[capacity]\nprocesses = 0",
    "[capacity]\npids = 10",
    "[capacity]\nprocesses-per-instance = 511",
    "[gpu]\ndevices = 0",
    "[gpu]\ndevices = [64]",
    "[gpu]\ndevices = [\"0\"]",
    "[gpu]\ndevices = [\"GPU-0123\"]",
    "[gpu]\nmemory-budget = \"8MiB\"",
    "[gpu]\novercommit = 0.5",
    "[gpu]\novercommit = inf",
    "[gpu]\novercommit = \"4\"",
    "[gpu]\nhost-budget = \"half\"",
    "[gpu]\nevict-timeout = 10",
    "[gpu]\nquantum = \"0s\"",
    "[gpu]\ndriver-dir = \"lib\"",
    "[weights]\nfolders = [\"weights\"]",
    "[weights]\nfolders = [\"/srv/../etc\"]",
    "[weights]\ncache = \"1MiB\"",
    "[weights]\nprivate-hosts = [\"*\"]",
    "[weights.sources.\"ftp://host\"]",
    "[weights.sources.\"s3://Bucket\"]",
    "[weights.sources.\"https://host\"]\nendpoint = \"https://other\"",
    "[weights.sources.\"hf://\"]\nregion = \"eu-1\"",
    "[weights.sources.\"hf://\"]\nendpoint = \"https://host/path\"",
    "[weights.sources.\"hf://\"]\nredirects = [\"*.com\"]",
    "[weights.sources.\"hf://\"]\ntoken = \"x\"",
    "[weights]\nsources = [\"hf://\"]",
    "[network]\nhost-access = [\"cowsay\", \"../x\"]",
    "[logs]\nkept = \"1GiB\"",
    "[logs]\nlines-per-second = \"200\"",
    "[usage]\nkeep = \"1MiB\"",
    "[usage]\nwhen-full = \"stop\"",
    "[usage]\nsink = \"records\"",
    "[usage]\nsink = \"/var/log/\"",
    "[usage]\nsink = \"https://user:secret@host/\"",
    "[usage]\nsink = \"https:///records\"",
    "[usage]\nsink = \"ftp://host/records\"",
    "[usage]\ntoken = \"x\"",
    "[usage]\nsink = \"/var/log/usage\"\nauthorities = \"/etc/ca.pem\"",
    "[jobs]\nenabled = \"no\"",
    "[jobs]\nidle = 10",
    "[jobs]\ndisk = \"1KiB\"",
    "[tracing]\nendpoint = \"127.0.0.1:4318\"",
    "[tracing]\nendpoint = \"http://127.0.0.1:4318/v1/traces\"",
    "[tracing]\nendpoint = \"http://127.0.0.1:4318/?key=secret\"",
    "[tracing]\nendpoint = \"http://user:secret@host:4318\"",
    "[tracing]\nsample = 1.5",
    "[tracing]\nsample = \"1%\"",
    "[tracing]\nheaders = \"x\"",
    "[tracing]\nauthorities = \"/etc/ca.pem\"",
    "[tracing]\ntimeout = \"2m\"",
];

#[test]
fn every_mistake_has_its_message() {
    let mut messages = String::new();
    for text in BAD {
        let error = NodeConfig::parse(text).expect_err(text);
        assert_eq!(error.0.listed().len(), 1, "one mistake, one message: {text}");
        writeln!(messages, "{}\n  {error}\n", text.replace('\n', " | ")).unwrap();
    }
    insta::assert_snapshot!("messages", messages);
}

#[test]
fn the_nodes_own_uids_are_not_the_instances() {
    let default = NodeConfig::default().node;
    let instances = default.uid_base..default.uid_base + default.uid_count;
    assert!(!instances.contains(&FALLBACK_UID) && !instances.contains(&BUILDER_UID));
}
