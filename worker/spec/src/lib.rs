//! Specification of a worker's job: the launcher writes it as JSON to the standard input of a new `omni-worker`.
//!
//! The launcher has decided and checked everything in here; the worker carries it out and decides nothing.
#![forbid(unsafe_code)]

use omni_cgroup::CgroupPaths;
use omni_engine_protocol::control::Boot;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::GpuSpec;
use omni_sandbox::SandboxSpec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Job of one worker process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum WorkerSpec {
    /// Serve a model until it ends.
    Instance(Box<InstanceSpec>),
    /// Keep a zygote, and make processes from it.
    Zygote(Box<Zygote>),
    /// Run one command in a sandbox with its output passed through, then exit with its code. Builds environments.
    Build(Box<BuildSpec>),
}

/// An instance of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// The instance.
    pub instance: InstanceId,
    /// The model's name.
    pub model: String,
    /// Content that it runs.
    pub snapshot: SnapshotDigest,
    /// For the scheduler, given back in `Welcome`.
    pub note: String,
    /// Where to listen; made by the worker, mode 0600, owned by `peer_uid`.
    pub socket: PathBuf,
    /// Where to write the exit cause (JSON of `ExitCause`, written and renamed) before the worker ends.
    pub exit_file: PathBuf,
    /// Only this user (and root) may connect.
    pub peer_uid: u32,
    /// The model's control group: limits are set and read back already.
    pub cgroup: CgroupPaths,
    /// The memory limit, also the MemTotal that the model sees, in bytes.
    pub memory_bytes: u64,
    /// The limit of processor time, in thousandths of a processor; the model sees as many processors as that, rounded up.
    pub cpu_millis: u32,
    /// Log lines per second that are kept.
    pub log_lines_per_second: u32,
    /// The zygote that its process comes from; `None` for one with a sandbox of its own. What is below says how to make
    /// that sandbox all the same: when the zygote cannot help, the instance starts without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zygote: Option<ZygoteSocket>,
    /// The GPU, with the control socket of its shims; `None` for a model without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Where and how the engine runs.
    pub sandbox: SandboxSpec,
    /// First message to the engine.
    pub boot: Boot,
}

/// GPU memory of an instance, as the worker manages it. The devices, libraries and variables that the model gets are
/// part of its [`SandboxSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// As the scheduler asked for it; goes back in `Welcome`.
    pub spec: GpuSpec,
    /// Where the worker listens for the shims of the instance, on the host; only the instance's user may connect. It must
    /// be there when the sandbox is made, which binds it. The accounting file has no place on the host: see
    /// [`GpuDir`](omni_sandbox::GpuDir).
    pub control: PathBuf,
}

/// Where an instance asks for its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteSocket {
    /// [`Zygote::socket`].
    pub path: PathBuf,
    /// How long the zygote may import before the instance starts without it, in milliseconds from the start of its worker.
    pub patience_ms: u64,
}

/// Zygote of one generation of a model. Its worker listens on a socket that it finds as its standard output:
/// connections made before it runs wait there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Zygote {
    /// Where that socket is; the worker removes it when it makes no more processes.
    pub socket: PathBuf,
    /// Where to write the exit cause, as for an instance.
    pub exit_file: PathBuf,
    /// The zygote's control group, with the limits of an instance. Processes are moved from here to their instance's.
    pub cgroup: CgroupPaths,
    /// Control group of the zygote's worker.
    pub worker_cgroup: CgroupPaths,
    /// The memory limit of an instance, also the MemTotal that it sees, in bytes.
    pub memory_bytes: u64,
    /// Processor time that an instance of the model may use, in thousandths of a processor.
    pub cpu_millis: u32,
    /// The model's directory inside.
    pub model_dir: String,
    /// The modules to import.
    pub preload: Vec<String>,
    /// How long that may take, in milliseconds; a zygote that takes longer is ended.
    pub import_within_ms: u64,
    /// Where and how it runs: as an instance does.
    pub sandbox: SandboxSpec,
}

/// Command of an environment's build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuildSpec {
    /// Control group of the command.
    pub cgroup: CgroupPaths,
    /// Where and how it runs.
    pub sandbox: SandboxSpec,
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_engine_protocol::control::EngineBoot;
    use omni_sandbox::{Bind, Cache};

    fn sandbox() -> SandboxSpec {
        SandboxSpec {
            hostname: "cowsay".into(),
            uid: 200_001,
            gid: 200_001,
            binds: vec![Bind { source: "/s/snapshots/1".into(), target: "/model".into(), writable: false }],
            devices: vec![],
            cache: Some(Cache { image: "/c/cowsay.img".into(), bytes: 1 << 30 }),
            weights: None,
            tmp_bytes: 1 << 26,
            host_network: false,
            env: vec![("HOME".into(), "/tmp/home".into())],
            argv: vec!["/e/bin/python".into(), "/omni/main.py".into()],
            cwd: "/model".into(),
        }
    }

    /// A launcher and a worker of different versions meet during an upgrade.
    #[test]
    fn the_json_form_does_not_drift() {
        let cgroup = CgroupPaths::V2 { dir: "/sys/fs/cgroup/omni/0123456789ab/model".into() };
        let boot = Boot {
            model: "cowsay".into(),
            instance: "0123456789ab".into(),
            engine: EngineBoot::Python { module: "model".into(), function: "handle_request".into() },
            model_dir: "/model".into(),
            cache_dir: "/cache".into(),
            weights_dir: None,
            device: "cpu".into(),
            concurrency: 1,
            batches: false,
        };
        let instance = InstanceSpec {
            instance: InstanceId::parse("0123456789ab").unwrap(),
            model: "cowsay".into(),
            snapshot: SnapshotDigest::parse(&"a".repeat(64)).unwrap(),
            note: "kept".into(),
            socket: "/run/omni/instances/0123456789ab.sock".into(),
            exit_file: "/run/omni/instances/0123456789ab.exit".into(),
            peer_uid: 999,
            cgroup: cgroup.clone(),
            memory_bytes: 1 << 31,
            cpu_millis: 1500,
            log_lines_per_second: 200,
            zygote: None,
            gpu: None,
            sandbox: sandbox(),
            boot,
        };
        let zygote = Zygote {
            socket: "/run/omni/zygotes/0123456789ab.sock".into(),
            exit_file: "/run/omni/zygotes/0123456789ab.exit".into(),
            cgroup: cgroup.clone(),
            worker_cgroup: CgroupPaths::V2 { dir: "/sys/fs/cgroup/omni/zygote-0123456789ab/worker".into() },
            memory_bytes: 1 << 31,
            cpu_millis: 1500,
            model_dir: "/model".into(),
            preload: vec!["numpy".into()],
            import_within_ms: 120_000,
            sandbox: sandbox(),
        };
        let build = BuildSpec { cgroup, sandbox: sandbox() };
        let all = [
            ("instance", WorkerSpec::Instance(Box::new(instance))),
            ("zygote", WorkerSpec::Zygote(Box::new(zygote))),
            ("build", WorkerSpec::Build(Box::new(build))),
        ];
        for (name, spec) in all {
            insta::assert_json_snapshot!(name, spec);
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<WorkerSpec>(&text).unwrap(), spec);
        }
    }
}
