//! Every message of the JSON wires, held still by snapshots. A worker outlives its scheduler and a scheduler its
//! launcher, so a change here is a change for processes of another version: raise the wire's `PROTOCOL` with it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "../../engine/tests/json_lines/mod.rs"]
mod json_lines;

use json_lines::lines;
use omni_engine_protocol::control::HandlerMode;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::instance::{
    FromWorker, GpuUsage, LogLine, LogStream, ResidencyCommand, ResidencyReport, Stats, ToWorker, Welcome,
};
use omni_node_protocol::launcher::{
    BuildCounts, BuildKind, BuildStage, EngineSpec, FromLauncher, GpuMode, GpuSpec, Holder, Serves, StartSpec,
    ToLauncher, WeightsCounts, WeightsPlace, WeightsRequest, WeightsStage, ZygoteSpec,
};
use omni_node_protocol::takeover::{FromSuccessor, Listener, ToSuccessor};
use omni_node_protocol::zygote::{FromZygote, FromZygoteWorker, ToZygote, ToZygoteWorker};
use std::collections::BTreeMap;

fn instance() -> InstanceId {
    InstanceId::parse("0123456789ab").unwrap()
}

fn snapshot() -> SnapshotDigest {
    SnapshotDigest::parse(&"ab".repeat(32)).unwrap()
}

fn environment() -> EnvironmentKey {
    EnvironmentKey::parse(&"cd".repeat(32)).unwrap()
}

fn exits() -> Vec<ExitCause> {
    vec![
        ExitCause::Exited { code: 78 },
        ExitCause::Signaled { signal: 6 },
        ExitCause::OomKilled,
        ExitCause::StartFailed { message: "mount /proc: EPERM".into() },
        ExitCause::WorkerLost,
    ]
}

#[test]
fn worker() {
    insta::assert_snapshot!(
        "to_worker",
        lines(&[
            ToWorker::Hello { protocol: 2, oldest: None, log_seen: 7 },
            ToWorker::Hello { protocol: 3, oldest: Some(2), log_seen: 7 },
            ToWorker::Attach,
            ToWorker::Stop { grace_ms: 30_000 },
            ToWorker::Kill,
            ToWorker::Ping,
            ToWorker::Stats,
            ToWorker::Gpu { number: 7, command: ResidencyCommand::Evict { bytes: 1 << 30 } },
            ToWorker::Gpu { number: 8, command: ResidencyCommand::Restore },
            ToWorker::Gpu { number: 9, command: ResidencyCommand::Report },
        ])
    );
    let welcome = Welcome {
        protocol: 1,
        instance: instance(),
        model: "cowsay".into(),
        snapshot: snapshot(),
        note: "{}".into(),
        engine_pid: Some(4711),
        started_unix_ms: 1_700_000_000_000,
        ready: Some(HandlerMode::Serial),
        exited: None,
        ending: false,
        gpu: None,
    };
    let with_gpu = Welcome { gpu: Some(gpu()), ending: true, ..welcome.clone() };
    let usage = GpuUsage { managed_bytes: 5, resident_bytes: 4, device_bytes: 3, host_bytes: 2 };
    let moved = ResidencyReport { number: 7, moved_bytes: 1, micros: 2, usage, error: 2, unanswered: 1 };
    let stats = Stats { memory_bytes: 1, memory_limit_bytes: 2, cpu_usec: 3, pids: 4, ..Stats::default() };
    let line = |stream| FromWorker::Log(LogLine { seq: 1, unix_ms: 1_700_000_000_000, stream, text: "moo".into() });
    let mut messages = vec![
        FromWorker::Welcome(welcome),
        FromWorker::Welcome(with_gpu),
        FromWorker::Ready { mode: HandlerMode::Concurrent },
        FromWorker::EngineFailed { phase: "setup".into(), message: "no weights".into() },
        line(LogStream::Stdout),
        line(LogStream::Stderr),
        line(LogStream::Worker),
        FromWorker::Pong,
        FromWorker::Stats(stats),
        FromWorker::Stats(Stats { gpu: Some(usage), ..stats }),
        FromWorker::Stats(Stats { pss_bytes: Some(5), ..stats }),
        FromWorker::Gpu(moved),
    ];
    messages.extend(exits().into_iter().map(FromWorker::Exited));
    insta::assert_snapshot!("from_worker", lines(&messages));
}

#[test]
fn zygote() {
    let claim = ToZygoteWorker::Claim { pid: 4711 };
    insta::assert_snapshot!("to_zygote_worker", lines(&[ToZygoteWorker::Fork { instance: instance() }, claim]));
    let line = LogLine { seq: 1, unix_ms: 1_700_000_000_000, stream: LogStream::Stderr, text: "moo".into() };
    insta::assert_snapshot!(
        "from_zygote_worker",
        lines(&[
            FromZygoteWorker::Forking,
            FromZygoteWorker::Claimed { log: vec![line] },
            FromZygoteWorker::Refused { message: "no module".into() },
            FromZygoteWorker::Ended { status: 256 },
        ])
    );
    let preload = ToZygote::Preload { model_dir: "/model".into(), modules: vec!["numpy".into()] };
    insta::assert_snapshot!("to_zygote", lines(&[preload, ToZygote::Fork { instance: instance() }]));
    insta::assert_snapshot!(
        "from_zygote",
        lines(&[
            FromZygote::Preloaded,
            FromZygote::Unusable { message: "no module".into() },
            FromZygote::ForkFailed { instance: instance(), message: "EAGAIN".into() },
        ])
    );
}

fn gpu() -> GpuSpec {
    GpuSpec {
        uuid: "GPU-00000000-0000-0000-0000-000000000000".into(),
        minor: 0,
        limit_bytes: 10 << 30,
        mode: GpuMode::Unified,
    }
}

#[expect(clippy::too_many_lines, reason = "all messages of one side")]
#[test]
fn launcher() {
    let start = StartSpec {
        instance: instance(),
        model: "cowsay".into(),
        snapshot: snapshot(),
        engine: EngineSpec::Python {
            environment: environment(),
            module: "model".into(),
            function: "handle_request".into(),
        },
        memory_bytes: 7 << 30,
        cpu_millis: 2000,
        pids: 512,
        tmp_bytes: 1 << 30,
        cache_bytes: 1 << 30,
        concurrency: 1,
        batches: false,
        host_network: false,
        env: BTreeMap::from([("HF_HUB_OFFLINE".into(), "1".into())]),
        log_lines_per_second: 1000,
        gpu: None,
        zygote: None,
        weights: None,
        note: "{}".into(),
    };
    let zygote = ZygoteSpec { preload: vec!["numpy".into()], memory_bytes: 2 << 30, startup_ms: 120_000 };
    let with_zygote = StartSpec { zygote: Some(zygote), ..start.clone() };
    let with_gpu = StartSpec {
        gpu: Some(gpu()),
        weights: Some(WeightsPlace::Folder { path: "/srv/weights/llama".into() }),
        ..start.clone()
    };
    let prepare = |interpreter, require_hashes| ToLauncher::Prepare {
        model: "cowsay".into(),
        snapshot: snapshot(),
        python: "3.11".into(),
        interpreter,
        require_hashes,
        weights: None,
    };
    let fetching = ToLauncher::Prepare {
        model: "cowsay".into(),
        snapshot: snapshot(),
        python: "3.11".into(),
        interpreter: None,
        require_hashes: false,
        weights: Some(WeightsRequest {
            source: "s3://bucket/llama".into(),
            sha256: Some("ef".repeat(32)),
            files: BTreeMap::from([
                ("model.safetensors".into(), "ef".repeat(32)),
                ("config.json".into(), String::new()),
            ]),
        }),
    };
    let fetched = StartSpec { weights: Some(WeightsPlace::Fetched), ..start.clone() };
    insta::assert_snapshot!(
        "to_launcher",
        lines(&[
            ToLauncher::Hello { protocol: 3, oldest: None },
            ToLauncher::Hello { protocol: 4, oldest: Some(3) },
            ToLauncher::Keep { model: "@cf/meta/llama".into(), snapshots: [snapshot()].into() },
            ToLauncher::KeptAll,
            prepare(None, false),
            prepare(Some("/opt/venv/bin/python".into()), false),
            prepare(None, true),
            fetching,
            ToLauncher::Unprepare { model: "cowsay".into(), snapshot: snapshot() },
            ToLauncher::Start(Box::new(start)),
            ToLauncher::Start(Box::new(with_gpu)),
            ToLauncher::Start(Box::new(with_zygote)),
            ToLauncher::Start(Box::new(fetched)),
            ToLauncher::Kill { instance: instance() },
            ToLauncher::EndZygotes { model: "cowsay".into() },
            ToLauncher::OpenFiles { snapshot: snapshot() },
            ToLauncher::OpenWeights { snapshot: snapshot(), weights: WeightsPlace::Fetched },
            ToLauncher::Renew,
            ToLauncher::Quit,
        ])
    );
    let failed = |message: &str, permanent, after_ms| FromLauncher::PrepareFailed {
        snapshot: snapshot(),
        message: message.into(),
        permanent,
        after_ms,
    };
    let holders = vec![Holder { model: "slow".into(), since_unix: 1_700_000_000 }];
    let waits = BuildStage::Waits { kind: BuildKind::Source, since_unix: 1_700_000_060, holders };
    let mut messages = vec![
        FromLauncher::Welcome { protocol: 4 },
        FromLauncher::Serves(Serves { models: "/srv/models".into(), config: serde_json::json!({"network": {}}) }),
        FromLauncher::Runs { instance: instance() },
        FromLauncher::Model { name: "cowsay".into(), snapshot: snapshot(), manifest: Some("schema = 1".into()) },
        FromLauncher::Model { name: "cowsay".into(), snapshot: snapshot(), manifest: None },
        FromLauncher::ModelRefused { name: "bad".into(), message: "a FIFO".into(), no_model: false },
        FromLauncher::ModelGone { name: "cowsay".into() },
        FromLauncher::Scanned,
        FromLauncher::Progress { snapshot: snapshot(), line: "Resolved 1 package".into() },
        FromLauncher::Prepared { snapshot: snapshot(), environment: environment() },
        failed("no such package", true, None),
        failed("the build did not end", false, Some(900_000)),
        FromLauncher::Build { snapshot: snapshot(), stage: waits },
        FromLauncher::Build { snapshot: snapshot(), stage: BuildStage::Runs { kind: BuildKind::Wheels } },
        FromLauncher::Weights { snapshot: snapshot(), stage: WeightsStage::Waits },
        FromLauncher::Weights { snapshot: snapshot(), stage: WeightsStage::Fetches { done: 1, total: 4 } },
        FromLauncher::Builds {
            wheels: BuildCounts { running: 1, waiting: 0 },
            source: BuildCounts { running: 2, waiting: 3 },
        },
        FromLauncher::WeightsCounts(WeightsCounts {
            fetched_bytes: 1,
            fetched: 2,
            failed: 3,
            refused: 4,
            cancelled: 5,
            cache_bytes: 6,
            cache_limit_bytes: 7,
        }),
        FromLauncher::Files { snapshot: snapshot(), names: vec!["chat_template.jinja".into()] },
        FromLauncher::WeightsFiles { snapshot: snapshot(), names: None },
        FromLauncher::WeightsFiles { snapshot: snapshot(), names: Some(vec!["model.gguf".into()]) },
        FromLauncher::Started { instance: instance(), worker_pid: 4711 },
        FromLauncher::StartFailed { instance: instance(), message: "EPERM".into() },
    ];
    messages.extend(exits().into_iter().map(|cause| FromLauncher::WorkerGone { instance: instance(), cause }));
    insta::assert_snapshot!("from_launcher", lines(&messages));
}

#[test]
fn takeover() {
    insta::assert_snapshot!(
        "to_successor",
        lines(&[
            ToSuccessor::Take { protocol: 1, config: serde_json::json!({"server": {"connections": 7}}) },
            ToSuccessor::Yours { busy: [(instance(), 3)].into(), logged: [(instance(), 17)].into() },
            ToSuccessor::Has { model: "@cf/meta/llama".into(), instance: instance(), requests: 2 },
            ToSuccessor::Asks { admitted: true },
            ToSuccessor::Connection { listener: Listener::Data },
            ToSuccessor::Connection { listener: Listener::Admin },
        ])
    );
    insta::assert_snapshot!(
        "from_successor",
        lines(&[
            FromSuccessor::Prepared { changes: vec!["server.connections = 7, was 8".into()] },
            FromSuccessor::Failed { message: "the configuration is wrong".into() },
            FromSuccessor::Serving { listen: "127.0.0.1:8080".parse().unwrap(), tls: true },
        ])
    );
}
