//! Zygotes of this node: at most one for each generation of a model takes callers at a time.
//!
//! Called by the main loop: [`Zygotes`] selects the one that an instance comes from and decides when a new one is worth
//! a try, [`ZygoteStart`] starts its worker in a thread. A zygote is named by the instance that it was started for. It
//! ends by itself when it is not needed; the launcher only begins it, sweeps up after it, and ends those without
//! instances when the node ends. An instance never waits for anything here.

use super::records::RecordedWorker;
use super::running::Running;
use super::runtime_dir::{RuntimeDir, socket_name};
use super::sandbox_paths::MODEL;
use super::start::{Start, StartError};
use nix::sys::socket::Backlog;
use nix::unistd::Pid;
use omni_cgroup::{GroupName, Limits, Part};
use omni_engine_protocol::control::PERMANENT_FAILURE;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{StartSpec, ZygoteSpec};
use omni_node_protocol::zygote::PROTOCOL;
use omni_process::pidfd;
use omni_weights::Digest;
use omni_worker_spec::{WorkerSpec, Zygote as ZygoteJob};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The pause after the first failure in a row, which doubles, and the longest.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(300);
/// Instances that ask before the zygote's worker listens: as many as a model may have.
const BACKLOG: i32 = 1024;
/// Beginning of the names of its control groups.
const GROUPS: &str = "zygote-";

/// Everything that all instances of one zygote have in common. A digest stands for it, so that a record is small for a
/// specification of any size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Generation {
    model: String,
    snapshot: SnapshotDigest,
    /// Digest of everything but an instance's own id.
    digest: String,
}

impl Generation {
    /// `None` for an instance that comes from no zygote. `set`: fetched weights, which its instances have from the zygote;
    /// `package`: the package `omni` that it runs; `driver`: the driver of the groups of both, for a zygote looks for those
    /// of its instances beside its own.
    pub(super) fn of(spec: &StartSpec, set: Option<&Digest>, package: &Path, driver: &str) -> Option<Self> {
        spec.zygote.as_ref()?;
        let mut common = StartSpec { note: String::new(), log_lines_per_second: 0, ..spec.clone() };
        common.instance = InstanceId::parse("000000000000").ok()?;
        // A zygote of another version is not understood by a new worker.
        let everything = serde_json::to_vec(&(PROTOCOL, package, driver, common, set)).ok()?;
        let digest = Sha256::digest(everything).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { model: spec.model.clone(), snapshot: spec.snapshot.clone(), digest })
    }
}

/// `<runtime-dir>/zygotes/<id>.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ZygoteRecord {
    #[serde(flatten)]
    pub(super) worker: RecordedWorker,
    uid: u32,
    /// `None` when another version of the launcher says it in another way: such a zygote takes no more callers, and lives
    /// as long as what it has made.
    #[serde(deserialize_with = "known")]
    generation: Option<Generation>,
    /// Set of fetched weights that it has mounted, and its instances with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<Digest>,
}

fn known<'de, D: Deserializer<'de>>(record: D) -> Result<Option<Generation>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(record)?).ok())
}

/// A zygote, from its beginning to the last of its runtime_dir.
struct Zygote {
    generation: Option<Generation>,
    /// Set of fetched weights that it has mounted.
    weights: Option<Digest>,
    uid: u32,
    phase: Phase,
    /// The end is no failure to be counted: it takes no more callers and was counted for that, or it was stopped.
    judged: bool,
}

enum Phase {
    Starting,
    Running(Running),
    Ending,
}

/// Failures in a row of one generation.
struct Failures {
    generation: Generation,
    count: u32,
    /// `None`: it would fail again.
    again: Option<Instant>,
}

/// All zygotes.
#[derive(Default)]
pub(super) struct Zygotes {
    living: BTreeMap<InstanceId, Zygote>,
    /// By model: as many as there are models.
    failures: BTreeMap<String, Failures>,
}

impl Zygotes {
    /// The zygote of this generation that takes callers, and its user id.
    pub(super) fn of(
        &mut self,
        generation: &Generation,
        runtime_dir: &RuntimeDir,
        now: Instant,
    ) -> Option<(InstanceId, u32)> {
        let mut found = None;
        let mut failed = false;
        for (id, zygote) in self.living.iter_mut().filter(|(_, zygote)| zygote.generation.as_ref() == Some(generation))
        {
            match zygote.phase {
                Phase::Starting | Phase::Running(_) if !zygote.judged && runtime_dir.has_socket(id) => {
                    found = Some((id.clone(), zygote.uid));
                }
                Phase::Starting | Phase::Running(_) if !zygote.judged => {
                    zygote.judged = true;
                    failed = true;
                }
                Phase::Starting | Phase::Running(_) | Phase::Ending => {}
            }
        }
        if failed {
            self.fail(generation.clone(), false, now);
        }
        found
    }

    /// Tests that a new zygote of this generation is worth a try: not while one lives that takes no more callers.
    pub(super) fn may_begin(&self, generation: &Generation, now: Instant) -> bool {
        if self.living.values().any(|zygote| zygote.generation.as_ref() == Some(generation)) {
            return false;
        }
        let failures = self.failures.get(&generation.model).filter(|failed| failed.generation == *generation);
        failures.is_none_or(|failed| failed.again.is_some_and(|again| again <= now))
    }

    /// A new one is being started.
    pub(super) fn begin(&mut self, id: InstanceId, generation: Generation, weights: Option<Digest>, uid: u32) {
        let generation = Some(generation);
        self.living.insert(id, Zygote { generation, weights, uid, phase: Phase::Starting, judged: false });
    }

    /// Takes over a zygote of an earlier launcher.
    pub(super) fn adopt(&mut self, id: InstanceId, record: ZygoteRecord, running: Running) -> u32 {
        let ZygoteRecord { worker: _, uid, generation, weights } = record;
        self.living.insert(id, Zygote { generation, weights, uid, phase: Phase::Running(running), judged: false });
        uid
    }

    pub(super) fn started(&mut self, id: &InstanceId, running: Running) {
        if let Some(zygote) = self.living.get_mut(id) {
            zygote.phase = Phase::Running(running);
        }
    }

    /// Marks a zygote whose worker has ended.
    pub(super) fn ending(&mut self, id: &InstanceId) -> Option<Running> {
        match std::mem::replace(&mut self.living.get_mut(id)?.phase, Phase::Ending) {
            Phase::Running(running) => Some(running),
            Phase::Starting | Phase::Ending => None,
        }
    }

    /// Records that nothing of a zygote is left, and returns its user id.
    pub(super) fn end(&mut self, id: &InstanceId, cause: &ExitCause, now: Instant) -> Option<u32> {
        let zygote = self.living.remove(id)?;
        let Some(generation) = zygote.generation else { return Some(zygote.uid) };
        match cause {
            ExitCause::Exited { code: 0 } => {
                self.failures.remove(&generation.model);
            }
            ExitCause::Exited { code: PERMANENT_FAILURE } => self.fail(generation, true, now),
            _ if zygote.judged => {}
            ExitCause::Exited { .. }
            | ExitCause::Signaled { .. }
            | ExitCause::OomKilled
            | ExitCause::StartFailed { .. }
            | ExitCause::WorkerLost => self.fail(generation, false, now),
        }
        Some(zygote.uid)
    }

    fn fail(&mut self, generation: Generation, permanent: bool, now: Instant) {
        let model = generation.model.clone();
        let before = self.failures.get(&model).filter(|failed| failed.generation == generation);
        let count = before.map_or(0, |failed| failed.count).saturating_add(1);
        let again = (!permanent).then(|| now + pause(count));
        self.failures.insert(model, Failures { generation, count, again });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// Marks all as stopped: their end is no failure.
    pub(super) fn dismiss(&mut self) {
        self.living.values_mut().for_each(|zygote| zygote.judged = true);
    }

    /// Marks those of a model as stopped whose user ids are selected: they take no more callers.
    pub(super) fn dismiss_those(
        &mut self,
        model: &str,
        is_so: impl Fn(u32) -> bool,
    ) -> Vec<(&InstanceId, BorrowedFd<'_>)> {
        let is_one = |zygote: &Zygote| zygote.generation.as_ref().is_some_and(|generation| generation.model == model);
        let mut dismissed = Vec::new();
        for (id, zygote) in self.living.iter_mut().filter(|(_, zygote)| is_one(zygote) && is_so(zygote.uid)) {
            zygote.judged = true;
            match &zygote.phase {
                Phase::Running(running) => dismissed.push((id, running.pidfd.as_fd())),
                Phase::Starting | Phase::Ending => {}
            }
        }
        dismissed
    }

    /// For poll: workers whose end is to be seen; with the user id that each has.
    pub(super) fn running(&self) -> impl Iterator<Item = (&InstanceId, BorrowedFd<'_>, u32)> {
        self.living.iter().filter_map(|(id, zygote)| match &zygote.phase {
            Phase::Running(running) => Some((id, running.pidfd.as_fd(), zygote.uid)),
            Phase::Starting | Phase::Ending => None,
        })
    }

    /// Contents that they have imported from.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &SnapshotDigest> {
        self.living.values().filter_map(|zygote| zygote.generation.as_ref()).map(|generation| &generation.snapshot)
    }

    /// Sets of fetched weights that they have mounted.
    pub(super) fn weights(&self) -> impl Iterator<Item = &Digest> {
        self.living.values().filter_map(|zygote| zygote.weights.as_ref())
    }
}

fn pause(count: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << count.saturating_sub(1).min(16)).min(PAUSE_MOST)
}

/// The name that the control groups of a zygote have.
pub(super) fn groups(id: &InstanceId) -> String {
    format!("{GROUPS}{id}")
}

/// The socket of a zygote to be started, for callers from now on. Its folder is root's alone.
pub(super) fn bound(nests: &RuntimeDir, id: &InstanceId) -> io::Result<OwnedFd> {
    nests.dir().listen(&socket_name(id), 0, None, Backlog::new(BACKLOG)?)
}

/// A zygote to be started, with all that it takes.
pub(super) struct ZygoteStart {
    /// Start of the instance that the zygote is for, but for the folder of its runtime_dir.
    pub(super) start: Start,
    pub(super) generation: Generation,
    pub(super) listener: OwnedFd,
}

impl ZygoteStart {
    /// Runs the worker. Callers wait at its socket meanwhile.
    pub(super) fn run(self) -> Result<Running, StartError> {
        let Self { start, generation, listener } = self;
        let ZygoteSpec { preload, memory_bytes, startup_ms } = start.spec.zygote.clone().unwrap_or_default();
        let id = &start.spec.instance;
        let name = groups(id);
        let group = |part, limits: &Limits| {
            Ok::<_, StartError>(start.context.driver.create(&GroupName::new(&name, part)?, limits)?)
        };
        let worker_cgroup = group(Part::Worker, &Limits::default())?;
        let cgroup = group(Part::Model, &Limits { memory_bytes: Some(memory_bytes), ..start.limits() })?;
        let own = worker_cgroup.clone();
        let job = ZygoteJob {
            socket: start.context.runtime_dir.socket(id),
            exit_file: start.context.runtime_dir.exit_file(id),
            cgroup,
            worker_cgroup,
            memory_bytes: start.spec.memory_bytes,
            cpu_millis: start.spec.cpu_millis,
            model_dir: MODEL.to_owned(),
            preload,
            import_within_ms: startup_ms,
            sandbox: start.sandbox(None),
        };
        let spec = serde_json::to_vec(&WorkerSpec::Zygote(Box::new(job)))?;
        let mut command = start.context.worker.command();
        let mut child = command.stdin(Stdio::piped()).stdout(listener).spawn().map_err(StartError::Spawn)?;
        drop(command); // with it our copy of the socket
        let pid = Pid::from_raw(child.id().cast_signed());
        let begin = || -> Result<Running, StartError> {
            let pidfd = pidfd::open(pid).map_err(|errno| StartError::Spawn(errno.into()))?;
            let worker = RecordedWorker::of(pid).map_err(StartError::Record)?;
            let (uid, weights) = (start.uid, start.set.clone());
            let record = ZygoteRecord { worker, uid, generation: Some(generation), weights };
            // Only a worker with a record gets its specification.
            start.context.runtime_dir.record(id, &record).map_err(StartError::Record)?;
            start.context.driver.enter(&own, pid.as_raw())?;
            child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&spec)).map_err(StartError::Spawn)?;
            Ok(Running { pid, pidfd })
        };
        let begun = begin();
        if begun.is_err() {
            // Neither fails but for a process that has ended, and then nothing is left to do.
            let _ = child.kill().and_then(|()| child.wait());
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_node_protocol::launcher::ZygoteSpec;

    #[test]
    fn pauses_double_to_a_bound() {
        let seconds: Vec<u64> = [1, 2, 3, 9, 10, 1000].map(|count| pause(count).as_secs()).into();
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
    }

    fn spec(env: usize) -> StartSpec {
        let text = serde_json::json!({
            "instance": "0123456789ab", "model": "a", "snapshot": "ab".repeat(32), "engine": {"kind": "python", "environment": "cd".repeat(32), "module": "model", "function": "handle_request"},
            "memory_bytes": 1, "cpu_millis": 1, "pids": 1,
            "tmp_bytes": 1, "cache_bytes": 1, "concurrency": 1, "host_network": false,
            "env": {"LONG": "x".repeat(env)}, "log_lines_per_second": 1, "note": "unread",
        });
        StartSpec { zygote: Some(ZygoteSpec::default()), ..serde_json::from_value(text).unwrap() }
    }

    fn set() -> Digest {
        Digest::parse(&"5".repeat(64)).unwrap()
    }

    #[test]
    fn a_generation_is_all_that_its_instances_have_in_common() {
        let generation =
            |spec: &StartSpec, package: &str| Generation::of(spec, None, Path::new(package), "cgroupfs").unwrap();
        let one = spec(1);
        let other_id = StartSpec { instance: InstanceId::parse("ba9876543210").unwrap(), ..one.clone() };
        assert_eq!(generation(&one, "/omni"), generation(&other_id, "/omni"));
        assert_ne!(generation(&one, "/omni"), generation(&one, "/newer"));
        let other = |set, driver| Generation::of(&one, set, Path::new("/omni"), driver).unwrap();
        assert_ne!(generation(&one, "/omni"), other(None, "systemd"));
        assert_ne!(generation(&one, "/omni"), other(Some(&set()), "cgroupfs"), "its weights come with the zygote");
        assert_ne!(generation(&one, "/omni"), generation(&spec(2), "/omni"));
        assert_ne!(generation(&one, "/omni"), generation(&StartSpec { memory_bytes: 2, ..one.clone() }, "/omni"));
        assert_eq!(Generation::of(&StartSpec { zygote: None, ..one }, None, Path::new("/omni"), "cgroupfs"), None);
    }

    /// A launcher that cannot read a record ends the zygote, and with it every instance that came from it.
    #[test]
    fn a_record_is_small_and_is_read_by_other_versions() {
        let worker = RecordedWorker::of(Pid::this()).unwrap();
        let generation = Generation::of(&spec(100 * 1024), Some(&set()), Path::new("/omni"), "cgroupfs");
        let record = ZygoteRecord { worker: worker.clone(), uid: 7, generation, weights: Some(set()) };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.len() < 1024, "{}", text.len());
        assert_eq!(serde_json::from_str::<ZygoteRecord>(&text).unwrap(), record);
        let mut other: serde_json::Value = serde_json::from_str(&text).unwrap();
        other["generation"] = serde_json::json!({"protocol": 1, "package": "/omni", "spec": spec(1)});
        let read: ZygoteRecord = serde_json::from_value(other).unwrap();
        assert_eq!(read, ZygoteRecord { worker, uid: 7, generation: None, weights: Some(set()) });
        // A launcher that recorded no weights wrote this one.
        let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
        older.as_object_mut().unwrap().remove("weights");
        assert_eq!(serde_json::from_value::<ZygoteRecord>(older).unwrap().weights, None);
    }
}
