//! Output of the commands for the answers of a daemon, and their exit codes: one snapshot each.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
#[path = "common/values.rs"]
mod values;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Canned, Daemon, omnictl, report};
use omni_control_api::{Generation, History, Model, Models, Preparation, Prepared, Role, State, Top};
use serde_json::json;

const GONE: &str = "no-such-model";

fn canned() -> Daemon {
    let daemon = Daemon::start();
    daemon
        .on("GET /v1/node", Canned::json(&values::node()))
        .on("GET /v1/models", Canned::json(&values::models()))
        .on("GET /v1/top", Canned::json(&values::top()))
        .on("GET /v1/gpus", Canned::json(&values::gpus()));
    for model in values::models().models {
        let route = format!("GET /v1/models/{}", model.name.replace('/', "%2F"));
        daemon.on(&route, Canned::json(&model));
    }
    daemon
        .on("GET /v1/models/cowsay/history", Canned::json(&values::history("cowsay")))
        .on("GET /v1/models/cowsay/explain", Canned::json(&values::explain("cowsay")))
        .on(
            "GET /v1/models/thumbnail/history",
            Canned::json(&History { name: "thumbnail".to_owned(), versions: Vec::new() }),
        );
    for name in ["cowsey", "zebra"] {
        let detail = format!("there is no model `{name}` on this node");
        daemon.on(&format!("GET /v1/models/{name}"), Canned::problem(404, GONE, &detail));
    }
    daemon
}

#[test]
fn tables_and_values() {
    let daemon = canned();
    for (name, arguments) in [
        ("list", &["list"][..]),
        ("list_json", &["list", "-o", "json"]),
        ("status_node", &["status"]),
        ("status_node_json", &["-o", "json", "status"]),
        ("status_ready", &["status", "cowsay"]),
        ("status_ready_json", &["status", "cowsay", "-o", "json"]),
        ("status_idle", &["status", "thumbnail"]),
        ("status_held", &["status", "memory"]),
        ("status_building", &["status", "embeddings"]),
        ("status_backoff", &["status", "forecast"]),
        ("status_no_copy", &["status", "@acme/broken"]),
        ("status_rollout", &["status", "rollout"]),
        ("status_rolled_back", &["status", "rolled-back"]),
        ("history", &["history", "cowsay"]),
        ("history_json", &["history", "cowsay", "-o", "json"]),
        ("history_empty", &["history", "thumbnail"]),
        ("explain", &["explain", "cowsay"]),
        ("explain_json", &["explain", "cowsay", "-o", "json"]),
        ("wait", &["wait", "cowsay"]),
        ("wait_stopped", &["wait", "thumbnail", "--for=stopped"]),
        ("wait_too_long", &["wait", "thumbnail", "--timeout", "150ms"]),
        ("wait_failed", &["wait", "@acme/broken"]),
        ("top", &["top", "--once"]),
        ("top_json", &["top", "--once", "-o", "json"]),
        ("gpu", &["gpu"]),
        ("gpu_json", &["gpu", "-o", "json"]),
        ("version", &["version"]),
        ("version_json", &["version", "-o", "json"]),
    ] {
        insta::assert_snapshot!(name, daemon.run(arguments));
    }
}

#[test]
fn a_single_model_is_shown() {
    let daemon = Daemon::start();
    let (single_model, models_dir) = (Some("cowsay".to_owned()), "/srv/cowsay".to_owned());
    daemon
        .on("GET /v1/node", Canned::json(&omni_control_api::Node { single_model, models_dir, ..values::node() }))
        .on(
            "GET /v1/models",
            Canned::json(&Models { models: vec![values::ready("cowsay", "0123456789ab")], ..Models::default() }),
        )
        .on("GET /v1/gpus", Canned::json(&values::no_gpus()));
    insta::assert_snapshot!("status_node_single", daemon.run(&["status"]));
}

#[test]
fn parts_of_an_earlier_release_are_shown() {
    let daemon = Daemon::start();
    let node = omni_control_api::Node { launcher_old_protocol: Some(3), ..values::node() };
    let mut model = values::ready("cowsay", "0123456789ab");
    model.instances[0].old_protocol = Some(1);
    daemon
        .on("GET /v1/node", Canned::json(&node))
        .on("GET /v1/models", Canned::json(&Models { models: vec![model.clone()], ..Models::default() }))
        .on("GET /v1/models/cowsay", Canned::json(&model))
        .on("GET /v1/gpus", Canned::json(&values::no_gpus()));
    insta::assert_snapshot!("status_node_earlier_release", daemon.run(&["status"]));
    insta::assert_snapshot!("status_earlier_release", daemon.run(&["status", "cowsay"]));
}

#[test]
fn an_empty_node_differs_from_a_broken_one() {
    let daemon = Daemon::start();
    let node = omni_control_api::Node { launcher_connected: false, ..values::node() };
    daemon
        .on("GET /v1/node", Canned::json(&node))
        .on("GET /v1/models", Canned::json(&Models::default()))
        .on("GET /v1/top", Canned::json(&Top { models: Vec::new() }))
        .on("GET /v1/gpus", Canned::json(&values::no_gpus()));
    insta::assert_snapshot!("empty_list", daemon.run(&["list"]));
    insta::assert_snapshot!("empty_status", daemon.run(&["status"]));
    insta::assert_snapshot!("empty_top", daemon.run(&["top", "--once"]));
    insta::assert_snapshot!("empty_gpu", daemon.run(&["gpu"]));
}

#[test]
fn a_newer_daemon_is_understood() {
    let daemon = Daemon::start();
    let mut models = serde_json::to_value(values::models()).unwrap();
    models["next_page"] = json!("x");
    models["models"][0]["gpu"] = json!({"resident": true});
    daemon.on("GET /v1/models", Canned::json(&models));
    let table = daemon.run(&["list"]);
    assert!(table.starts_with("exit 0\n") && table.contains("cowsay"), "{table}");
    let json = daemon.run(&["list", "-o", "json"]);
    assert!(json.contains("\"resident\": true"), "{json}");
}

#[test]
fn an_unknown_model_is_met_with_the_nearest_names() {
    let daemon = canned();
    daemon.on("POST /v1/models/cowsey/restart", Canned::problem(404, GONE, "no such model"));
    daemon.on(
        "POST /v1/models/cowsey/run",
        Canned::of(404, "application/json", r#"{"success":false,"errors":[{"code":5007,"message":"no such model"}]}"#),
    );
    insta::assert_snapshot!("unknown_near", daemon.run(&["status", "cowsey"]));
    insta::assert_snapshot!("unknown_far", daemon.run(&["status", "zebra"]));
    for arguments in [&["restart", "cowsey"][..], &["restart", "cowsey", "--wait"], &["run", "cowsey"]] {
        let said = daemon.run(arguments);
        assert!(said.starts_with("exit 4\n") && said.contains("did you mean `cowsay`"), "{said}");
    }
}

#[test]
fn an_unreachable_daemon_has_its_own_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let run = |socket: &std::path::Path| {
        let output = omnictl(&["list", "--socket", socket.to_str().unwrap()]).output().unwrap();
        report(&output, directory.path(), "[DIR]")
    };
    insta::assert_snapshot!("socket_not_there", run(&socket));
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    insta::assert_snapshot!("socket_nobody_listens", run(&socket));
    insta::assert_snapshot!("socket_is_no_folder", run(&socket.join("x")));

    let said = report(
        &omnictl(&["version", "--socket", "/nonexistent/omni.sock"]).output().unwrap(),
        directory.path(),
        "[DIR]",
    );
    insta::assert_snapshot!("version_alone", said);
}

#[test]
fn a_foreign_socket_is_not_called_missing() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    // The folder that cargo builds in may be closed to others.
    let program = directory.path().join("omnictl");
    fs::copy(env!("CARGO_BIN_EXE_omnictl"), &program).unwrap();
    let nobody = 65_534;
    let output =
        Command::new(program).args(["list", "--socket"]).arg(&socket).uid(nobody).gid(nobody).output().unwrap();
    insta::assert_snapshot!("socket_no_permission", report(&output, directory.path(), "[DIR]"));
    drop(listener);
}

#[test]
fn answers_that_are_not_the_api_are_failures() {
    let daemon = Daemon::start();
    daemon
        .on("GET /v1/models", Canned::json(&json!({"models": [{"name": 3}]})))
        .on("GET /v1/node", Canned::of(500, "text/plain", "the house is on fire"));
    insta::assert_snapshot!("answer_not_understood", daemon.run(&["list"]));
    insta::assert_snapshot!("answer_broken", daemon.run(&["status"]));
}

#[test]
fn manifests_are_shown_as_changes_and_whole() {
    let daemon = Daemon::start();
    let plain = serde_json::to_value(omni_config::Manifest::default()).unwrap();
    let mut changed = plain.clone();
    changed["resources"]["memory"] = json!("7GiB");
    changed["env"]["HF_HUB_OFFLINE"] = json!("1");
    daemon
        .on("GET /v1/models/memory/manifest", Canned::json(&changed))
        .on("GET /v1/models/cowsay/manifest", Canned::json(&plain));
    insta::assert_snapshot!("show_changes", daemon.run(&["show", "memory"]));
    insta::assert_snapshot!("show_no_changes", daemon.run(&["show", "cowsay"]));
    insta::assert_snapshot!("show_changes_json", daemon.run(&["show", "memory", "-o", "json"]));
    let whole = daemon.run(&["show", "--effective", "memory"]);
    for line in ["memory = \"7GiB\"", "[scaling]", "queue = 128", "entrypoint = \"model:handle_request\""] {
        assert!(whole.contains(line), "{line}: {whole}");
    }
}

#[test]
fn logs_are_lines_that_cannot_harm_a_terminal() {
    let daemon = Daemon::start();
    let lines = [
        json!({"unix_ms": 1_795_252_664_123_u64, "instance": "9c1e5a77b0d2", "stream": "stdout", "text": "started"}),
        json!({"unix_ms": 1_795_252_664_900_u64, "instance": "9c1e5a77b0d2", "stream": "stderr", "text": "\u{1b}[2J\tred"}),
        json!({"unix_ms": 1_795_252_665_000_u64, "instance": "9c1e5a77b0d2", "stream": "worker", "text": "dropped 3 lines", "new": 1}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let log = |text: &str| Canned::of(200, "application/x-ndjson", text.to_owned());
    daemon
        .on("GET /v1/models/cowsay/logs?lines=100&follow=false", log(&text))
        .on("GET /v1/models/cowsay/logs?lines=2&follow=true", log(&text))
        .on("GET /v1/models/bad/logs?lines=100&follow=false", log("not a log line\n"));
    insta::assert_snapshot!("logs", daemon.run(&["logs", "cowsay"]));
    insta::assert_snapshot!("logs_json", daemon.run(&["logs", "cowsay", "-o", "json"]));
    insta::assert_snapshot!("logs_followed_to_the_end", daemon.run(&["logs", "cowsay", "-f", "-n", "2"]));
    insta::assert_snapshot!("logs_not_understood", daemon.run(&["logs", "bad"]));
}

#[test]
fn lifecycle_requests_are_taken_or_waited_for() {
    let daemon = Daemon::start();
    let starting = values::model("cowsay", State::Starting);
    daemon
        .on("POST /v1/models/cowsay/start", Canned::json(&starting))
        .on("GET /v1/models/cowsay", Canned::json(&values::model("cowsay", State::Stopped)))
        .on("GET /v1/models/cowsay", Canned::json(&starting))
        .on("GET /v1/models/cowsay", Canned::json(&values::ready("cowsay", "9c1e5a77b0d2")));
    insta::assert_snapshot!("start", daemon.run(&["start", "cowsay"]));
    insta::assert_snapshot!("start_waited", daemon.run(&["start", "cowsay", "--wait"]));
    assert_eq!(daemon.requests().last().unwrap().line, "GET /v1/models/cowsay");

    let (old, new) = (values::ready("r", "000000000001"), values::ready("r", "000000000002"));
    daemon
        .on("POST /v1/models/r/restart", Canned::json(&old))
        .on("GET /v1/models/r", Canned::json(&old))
        .on("GET /v1/models/r", Canned::json(&Model { state: State::Draining, ..old.clone() }))
        .on("GET /v1/models/r", Canned::json(&new));
    let said = daemon.run(&["restart", "r", "--wait", "-o", "json"]);
    assert!(said.starts_with("exit 0\n") && said.contains("000000000002"), "{said}");

    // A candidate that failed is what a restart is about: what serves stays as it is until that is ready.
    let failed = values::rollout("c");
    let at = |state| {
        let mut model = failed.clone();
        model.generations[1] = values::generation(&failed.generations[1].version, Role::Candidate, state);
        model
    };
    daemon
        .on("POST /v1/models/c/restart", Canned::json(&at(State::Preparing)))
        .on("GET /v1/models/c", Canned::json(&failed))
        .on("GET /v1/models/c", Canned::json(&at(State::Starting)))
        .on("GET /v1/models/c", Canned::json(&failed));
    insta::assert_snapshot!("restart_candidate_failed", daemon.run(&["restart", "c", "--wait"]));

    let mut serves = values::ready("d", "000000000002");
    serves.version = Some(failed.generations[1].version.clone());
    serves.generations = vec![values::generation(&failed.generations[1].version, Role::Serving, State::Ready)];
    daemon
        .on("POST /v1/models/d/restart", Canned::json(&at(State::Preparing)))
        .on("GET /v1/models/d", Canned::json(&failed))
        .on("GET /v1/models/d", Canned::json(&at(State::Starting)))
        .on("GET /v1/models/d", Canned::json(&serves));
    insta::assert_snapshot!("restart_candidate_served", daemon.run(&["restart", "d", "--wait"]));

    daemon
        .on("GET /v1/models/forecast", Canned::json(&values::failed("forecast")))
        .on("POST /v1/models/forecast/start", Canned::json(&values::model("forecast", State::Starting)))
        .on("POST /v1/models/forecast/stop", Canned::json(&values::model("forecast", State::Draining)));
    insta::assert_snapshot!("start_failed", daemon.run(&["start", "forecast", "--wait"]));

    daemon
        .on("GET /v1/models/slow", Canned::json(&values::model("slow", State::Starting)))
        .on("POST /v1/models/slow/start", Canned::json(&values::model("slow", State::Starting)));
    insta::assert_snapshot!("start_timed_out", daemon.run(&["start", "slow", "--wait", "--timeout", "250ms"]));

    daemon.on("POST /v1/models/cowsay/stop", Canned::problem(503, "not-ready", "the launcher does not answer"));
    insta::assert_snapshot!("stop_refused", daemon.run(&["stop", "cowsay"]));
}

#[test]
fn a_pull_is_waited_for_whatever_instances_do() {
    let daemon = Daemon::start();
    let at = |model: Model, preparation, message: &str| {
        let message = Some(message.to_owned()).filter(|message| !message.is_empty());
        let generation = values::generation(values::VERSION, Role::Serving, model.state);
        let prepared = Some(Prepared { seconds: 61.04, fetched_bytes: 4 << 30, built: false });
        let prepared = prepared.filter(|_| preparation == Preparation::Done);
        let generation = Generation { preparation: Some(preparation), prepared, message, ..generation };
        Model { generations: vec![generation], ..model }
    };
    let (underway, done, failed) = (Preparation::Underway, Preparation::Done, Preparation::Failed);
    let held = || Model { held: true, ..values::model("held", State::Stopped) };
    let serving = || values::ready("serving", "9c1e5a77b0d2");
    daemon
        .on("POST /v1/models/held/pull", Canned::json(&at(held(), underway, "")))
        .on("GET /v1/models/held", Canned::json(&at(held(), underway, "fetching weights: 0.1 of 4.0 GiB")))
        .on("GET /v1/models/held", Canned::json(&at(held(), done, "")))
        .on("POST /v1/models/serving/pull", Canned::json(&at(serving(), underway, "")))
        .on(
            "GET /v1/models/serving",
            Canned::json(&at(
                serving(),
                failed,
                &format!("fetching weights from s3://b/m{}: it answers 403", "x".repeat(300)),
            )),
        );
    insta::assert_snapshot!("pull_waited", daemon.run(&["pull", "held", "--wait"]));
    assert_eq!(daemon.requests().len(), 3);
    daemon.on("POST /v1/models/here/pull", Canned::json(&at(values::model("here", State::Stopped), done, "")));
    insta::assert_snapshot!("pull_of_what_is_there", daemon.run(&["pull", "here", "--wait"]));
    insta::assert_snapshot!("pull_failed", daemon.run(&["pull", "serving", "--wait"]));
    assert!(daemon.run(&["pull", "serving"]).starts_with("exit 0\n"), "it is taken");

    daemon
        .on("POST /v1/models/slow/pull", Canned::json(&at(serving(), underway, "")))
        .on("GET /v1/models/slow", Canned::json(&at(serving(), underway, "")));
    insta::assert_snapshot!("pull_timed_out", daemon.run(&["pull", "slow", "--wait", "--timeout", "250ms"]));
    daemon.on("POST /v1/models/unread/pull", Canned::json(&values::model("unread", State::Stopped)));
    insta::assert_snapshot!("pull_unread", daemon.run(&["pull", "unread", "--wait"]));
}

#[test]
fn a_rollback_is_taken_or_waited_for() {
    let daemon = Daemon::start();
    let at = |state| {
        let candidate = values::generation(values::OLD_VERSION, Role::Candidate, state);
        let serving = values::ready("cowsay", "9c1e5a77b0d2");
        Model { generations: vec![serving.generations[0].clone(), candidate], ..serving }
    };
    let done = Model {
        version: Some(values::OLD_VERSION.to_owned()),
        generations: vec![values::generation(values::OLD_VERSION, Role::Serving, State::Ready)],
        ..at(State::Ready)
    };
    daemon
        .on("POST /v1/models/cowsay/rollback", Canned::json(&at(State::Starting)))
        .on("POST /v1/models/cowsay/rollback?to=00aa", Canned::json(&at(State::Preparing)))
        .on("GET /v1/models/cowsay", Canned::json(&at(State::Starting)))
        .on("GET /v1/models/cowsay", Canned::json(&done));
    insta::assert_snapshot!("rollback", daemon.run(&["rollback", "cowsay"]));
    insta::assert_snapshot!("rollback_waited", daemon.run(&["rollback", "cowsay", "--to", "00aa", "--wait"]));

    daemon
        .on("POST /v1/models/m/rollback", Canned::json(&values::rollout("m")))
        .on("GET /v1/models/m", Canned::json(&values::rollout("m")))
        .on(
            "POST /v1/models/new/rollback",
            Canned::problem(409, "not-ready", "no earlier version of this model served"),
        );
    insta::assert_snapshot!("rollback_failed", daemon.run(&["rollback", "m", "--wait"]));
    insta::assert_snapshot!("rollback_refused", daemon.run(&["rollback", "new"]));
}
