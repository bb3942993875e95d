//! Tests of an instance's states and of its checks.

use super::*;
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_engine_client::EngineEnds;
use omni_gpu::testing::{listener, request};
use omni_node_protocol::id::SnapshotDigest;
use std::time::Duration;

fn instance() -> Instance {
    let name = ModelName::try_from("m".to_owned()).unwrap();
    let snapshot = SnapshotDigest::parse(&"1".repeat(64)).unwrap();
    let content = Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap();
    let id = InstanceId::parse("0123456789ab").unwrap();
    Instance::new(InstanceNumber(1), id, (Generation(1), Arc::new(content)), Moment::ZERO)
}

/// An instance whose engine is connected and takes requests, without a worker behind it.
fn ready() -> (Instance, EngineEnds) {
    let mut instance = instance();
    let (connection, ends) = DataConnection::pair().unwrap();
    let mut engine = Engine::new(Some(connection));
    engine.accepts = true;
    let process = Box::new(Process { worker: Worker::disconnected(Moment::ZERO), engine });
    instance.state = InstanceState::Ready(process, HandlerMode::Serial);
    (instance, ends)
}

/// Sends a check, and returns whether the model's own one runs.
fn runs_own_check(instance: &mut Instance) -> bool {
    instance.send_check();
    let engine = instance.engine().unwrap();
    assert!(engine.connection.as_ref().unwrap().wants_write());
    engine.runs_own_check()
}

#[test]
fn an_instance_without_processes_is_ready_for_nothing() {
    let mut instance = instance();
    assert!(!instance.is_launched() && !instance.may_send() && !instance.accepts_requests());
    assert!(!instance.on_ready(HandlerMode::Serial), "no engine can be ready");
    assert!(matches!(instance.state, InstanceState::Reserving));
    for (state, progress) in
        [(InstanceState::Placing, StartProgress::Placing), (InstanceState::Launching, StartProgress::Launched)]
    {
        instance.state = state;
        assert_eq!(instance.start_progress(), progress);
    }
}

#[tokio::test]
async fn an_engine_becomes_ready_once_its_worker_is_connected() {
    let mut instance = instance();
    instance.state = InstanceState::Launching;
    let (connection, _ends) = DataConnection::pair().unwrap();
    instance.on_connected(Worker::disconnected(Moment::ZERO), Some(connection));
    assert!(matches!(instance.state, InstanceState::Starting(_)) && !instance.may_send());
    assert!(instance.on_ready(HandlerMode::Serial) && instance.may_send());
    assert!(!instance.on_ready(HandlerMode::Serial), "once");
}

#[tokio::test]
async fn a_stop_keeps_the_processes_and_a_second_kill_is_noticed() {
    let (mut instance, _ends) = ready();
    assert!(!instance.on_stopping(false) && instance.is_stopping() && !instance.is_killed());
    assert!(!instance.on_stopping(true) && instance.is_killed(), "told to kill for the first time");
    assert!(instance.on_stopping(true), "told again");
    assert!(instance.worker().is_some() && !instance.may_send());
    assert!(!instance.on_ready(HandlerMode::Serial), "too late");
}

#[test]
fn a_worker_that_connects_to_a_stopping_instance_does_not_start_it() {
    let mut instance = instance();
    instance.state = InstanceState::Launching;
    assert!(!instance.on_stopping(true));
    instance.on_connected(Worker::disconnected(Moment::ZERO), None);
    assert!(instance.is_stopping() && instance.worker().is_some());
    assert_eq!(instance.wakes_at(Moment::ZERO), None, "no checks: a stop has deadlines of its own");
}

#[tokio::test]
async fn a_serial_engine_gets_no_request_while_it_serves_the_previous_scheduler() {
    let (mut instance, _ends) = ready();
    assert!(instance.may_send());
    instance.load.external = 1;
    assert!(!instance.may_send());
}

#[tokio::test]
async fn a_model_without_a_gpu_always_runs_its_own_check() {
    let (mut instance, _ends) = ready();
    assert!(runs_own_check(&mut instance) && runs_own_check(&mut instance));
}

#[tokio::test]
async fn no_check_touches_gpu_memory_that_may_be_away() {
    let (handle, _listener) = listener();
    // Adopted: this scheduler has given no grant.
    let away = GpuLease::adopted(handle.adopt(request(), "GPU-0", false), false);
    let (mut instance, _ends) = ready();
    instance.lease = Some(away);
    instance.note_work(true, Moment::ZERO);
    assert!(!runs_own_check(&mut instance), "it was used, and its memory is not known to be there");
    instance.lease.as_mut().unwrap().on_ready();
    assert!(runs_own_check(&mut instance), "its memory is there");
    assert!(!runs_own_check(&mut instance), "it was not used since");
    instance.note_work(true, Moment::ZERO);
    assert!(runs_own_check(&mut instance));
}

#[tokio::test]
async fn requests_wait_while_the_engine_is_checked() {
    let (mut instance, _ends) = ready();
    let every = instance.content.manifest.timeouts.healthcheck;
    instance.note_work(false, Moment::ZERO);
    let due = instance.wakes_at(Moment::ZERO).unwrap();
    assert_eq!(due, every);
    let engine = instance.engine_mut().unwrap();
    assert_eq!(engine.check(due), omni_policy::liveness::Check::Probe);
    instance.send_check();
    assert!(!instance.may_send());
    let engine = instance.engine_mut().unwrap();
    assert_eq!(engine.on_check_answer(7, due), CheckAnswer::Unknown);
    assert_eq!(engine.on_check_answer(1, due + Duration::from_millis(1)), CheckAnswer::Timely);
    assert_eq!(engine.on_check_answer(1, due + Duration::from_millis(2)), CheckAnswer::Late);
    assert!(instance.may_send());
}
