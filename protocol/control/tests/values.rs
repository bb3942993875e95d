//! The values as they go over the control socket, held by snapshots: other people's scripts read them.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use omni_control_api::{
    Because, Budget, Budgets, Directory, Explain, Generation, Gpu, GpuInstance, Gpus, History, Instance, LogEntry,
    Model, Models, Node, Preparation, Prepared, Problem, Residency, Role, State, Stop, StopReason, Top, TopRow,
    Version,
};
use serde::Serialize;

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

fn stop() -> Stop {
    Stop { reason: StopReason::Idle, message: "no request for 10m".into(), unix_ms: 1_700_000_000_000 }
}

fn model() -> Model {
    Model {
        name: "@cf/meta/x".into(),
        state: State::Ready,
        held: false,
        version: Some("0".repeat(64)),
        pinned: None,
        directory: Directory { version: Some("1".repeat(64)), refused: Some("unknown key `a`".into()) },
        message: None,
        generations: vec![Generation {
            version: "0".repeat(64),
            role: Role::Serving,
            state: State::Ready,
            message: None,
            retry_in_seconds: Some(0.5),
            preparation: Some(Preparation::Underway),
            prepared: Some(Prepared { seconds: 2.5, fetched_bytes: 41_943_040, built: true }),
        }],
        instances: vec![Instance {
            id: "0123456789ab".into(),
            version: "0".repeat(64),
            state: State::Ready,
            pid: Some(4711),
            age_seconds: 1.5,
            in_flight: 1,
            old_protocol: None,
        }],
        in_flight: 1,
        queued: 2,
        queue_limit: 128,
        restarts: 3,
        last_exit: Some("killed by SIGKILL".into()),
        last_stop: Some(stop()),
        retry_in_seconds: None,
        build_log: vec!["Resolved 1 package".into()],
    }
}

fn node() -> Node {
    Node {
        version: "0.1.0".into(),
        pid: 1,
        uptime_seconds: 2.0,
        listen: "127.0.0.1:8080".into(),
        admin_listen: "127.0.0.1:9090".into(),
        warnings: Vec::new(),
        models_dir: "/srv/models".into(),
        single_model: None,
        snapshot_files_limit: 20_000,
        snapshot_bytes_limit: 4 << 30,
        require_hashes: false,
        weights_folders: vec!["/srv/weights".into()],
        weights_sources: vec!["hf://meta-llama".into()],
        launcher_connected: true,
        launcher_old_protocol: None,
        buffered_bytes: 0,
        buffered_bytes_limit: 536_870_912,
    }
}

fn top() -> Top {
    Top {
        models: vec![TopRow {
            name: "cowsay".into(),
            state: State::Draining,
            memory_bytes: 1,
            memory_limit_bytes: 2,
            gpu_bytes: Some(7),
            cpu_usec: 3,
            pids: 4,
            in_flight: 5,
            requests: 6,
        }],
    }
}

fn gpus() -> Gpus {
    Gpus {
        gpus: vec![Gpu {
            index: 0,
            uuid: "GPU-00000000-0000-0000-0000-000000000000".into(),
            name: "NVIDIA H100 80GB HBM3".into(),
            total_bytes: 1,
            used_bytes: 2,
            budget_bytes: 3,
            resident_bytes: 4,
            committed_bytes: 5,
            commit_limit_bytes: 6,
            instances: vec![GpuInstance {
                model: "cowsay".into(),
                instance: "0123456789ab".into(),
                limit_bytes: 7,
                allocated_bytes: 8,
                resident_bytes: 9,
                residency: Residency::Restoring,
                idle_seconds: Some(1.5),
                evictions: 12,
                restores: 13,
            }],
        }],
        host_committed_bytes: 10,
        host_budget_bytes: 11,
        message: None,
    }
}

fn explain() -> Explain {
    let budget = Budget { instance: 1, committed: 2, limit: Some(3) };
    Explain {
        name: "cowsay".into(),
        state: State::Ready,
        ready: 1,
        instances: 2,
        wanted: 3,
        because: Because::RecentLoad,
        min: 0,
        max: 4,
        concurrency: 5,
        load: 6,
        average: 7.5,
        average_seconds: 2.0,
        greatest: 8.5,
        greatest_seconds: 30.0,
        message: None,
        last_stop: Some(stop()),
        budgets: Budgets { memory_bytes: budget, cpu_millis: budget, processes: Budget::default() },
    }
}

#[test]
fn values_keep_their_names() {
    insta::assert_snapshot!("models", json(&Models { models: vec![model()], ..Models::default() }));
    insta::assert_snapshot!("node", json(&node()));
    insta::assert_snapshot!("top", json(&top()));
    insta::assert_snapshot!("gpus", json(&gpus()));
    insta::assert_snapshot!(
        "history",
        json(&History {
            name: "cowsay".into(),
            versions: vec![Version { version: "0".repeat(64), first_ready_unix_ms: 1, role: Some(Role::Previous) }],
        })
    );
    insta::assert_snapshot!("explain", json(&explain()));
    insta::assert_snapshot!(
        "log_entry",
        json(&LogEntry {
            unix_ms: 1,
            instance: "0123456789ab".into(),
            stream: "stderr".into(),
            request_id: Some("r1".into()),
            text: "hi".into()
        })
    );
    insta::assert_snapshot!(
        "problem",
        json(&Problem {
            kind: "no-such-model".into(),
            title: "Not Found".into(),
            status: 404,
            detail: "there is no model `x` on this node".into(),
        })
    );
}

#[test]
fn values_of_a_newer_daemon_are_read() {
    let mut value = serde_json::to_value(model()).unwrap();
    value["something_new"] = serde_json::json!({ "a": 1 });
    assert_eq!(serde_json::from_value::<Model>(value).unwrap(), model());
}

#[test]
fn states_have_their_names_on_the_wire() {
    for state in State::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for role in Role::ALL {
        assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
    }
    for because in Because::ALL {
        assert_eq!(serde_json::to_value(because).unwrap(), because.as_str());
    }
    for reason in StopReason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
    for residency in Residency::ALL {
        assert_eq!(serde_json::to_value(residency).unwrap(), residency.as_str());
    }
}
