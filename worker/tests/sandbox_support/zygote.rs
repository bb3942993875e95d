//! A zygote under test, with its own worker and control groups.

use super::python::{argv, package, python};
use super::{Host, MIB, MODEL, Setup, model, wait_until};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_cgroup::{Cgroupfs, Driver, GroupName, Limits, Part};
use omni_node_protocol::exit::ExitCause;
use omni_sandbox::{Bind, SandboxSpec};
use omni_worker_spec::WorkerSpec;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

impl Host {
    /// Starts the zygote of a generation whose model is this, which preloads these modules. Callers may come at once.
    pub fn zygote(&self, code: &str, preload: &[&str], memory_bytes: u64) -> Zygote {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let name = format!("zygote-{number}");
        let limits = Limits { memory_bytes: Some(memory_bytes), pids: Some(64), cpu_millis: None };
        let group = |part, limits| self.driver.create(&GroupName::new(&name, part).unwrap(), limits).unwrap();
        let (worker_cgroup, cgroup) = (group(Part::Worker, &Limits::default()), group(Part::Model, &limits));
        let model = self.dir.path().join(format!("model{number}"));
        fs::create_dir(&model).unwrap();
        fs::write(model.join("model.py"), format!("{MODEL}{code}")).unwrap();
        let uid = 3_000_000 + std::process::id() % 100_000 * 10 + number % 10;
        let mut binds = vec![Bind { source: model, target: "/model".into(), writable: false }, package()];
        binds.extend(python().bind());
        let spec = omni_worker_spec::Zygote {
            socket: self.dir.path().join(format!("{number}.sock")),
            exit_file: self.dir.path().join(format!("{number}.exit")),
            cgroup,
            worker_cgroup,
            memory_bytes,
            cpu_millis: 1000,
            model_dir: "/model".into(),
            preload: preload.iter().map(|name| (*name).to_owned()).collect(),
            import_within_ms: 60_000,
            sandbox: SandboxSpec {
                hostname: "test".into(),
                uid,
                gid: uid,
                binds,
                devices: vec![],
                cache: None,
                weights: None,
                tmp_bytes: 16 * MIB,
                host_network: false,
                env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("OMP_NUM_THREADS".into(), "2".into())],
                argv: argv(true),
                cwd: "/model".into(),
            },
        };
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&spec.socket).unwrap()).unwrap();
        listen(&listener, Backlog::new(64).unwrap()).unwrap();
        let mut worker =
            Command::new(env!("CARGO_BIN_EXE_omni-worker")).stdin(Stdio::piped()).stdout(listener).spawn().unwrap();
        let job = WorkerSpec::Zygote(Box::new(spec.clone()));
        worker.stdin.take().unwrap().write_all(&serde_json::to_vec(&job).unwrap()).unwrap();
        Zygote { worker, spec, name, driver: self.driver.clone() }
    }
}

/// A zygote's worker.
pub struct Zygote {
    pub worker: Child,
    pub spec: omni_worker_spec::Zygote,
    name: String,
    driver: Cgroupfs,
}

impl Zygote {
    /// As [`model`], from this zygote; what an instance of its own would run is the same.
    pub fn model(&self, code: &str) -> Setup {
        let memory_bytes = self.spec.memory_bytes;
        Setup { zygote: Some(self.spec.socket.clone()), uid: Some(self.spec.sandbox.uid), memory_bytes, ..model(code) }
    }

    /// The processes in its own group: the zygote, and nothing else between two forks.
    pub fn pids(&self) -> Vec<i32> {
        let procs = fs::read_to_string(self.spec.cgroup.memory().join("cgroup.procs")).unwrap();
        procs.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits for the end of its worker, at which everything that came from it is gone.
    pub fn wait(&mut self) -> Option<ExitCause> {
        wait_until("the zygote's worker ends", || self.worker.try_wait().unwrap().is_some());
        wait_until("everything of the zygote ends", || self.pids().is_empty());
        serde_json::from_slice(&fs::read(&self.spec.exit_file).ok()?).ok()
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = self.worker.kill();
        let _ = self.worker.wait();
        if let Err(error) = self.driver.destroy(&self.name) {
            eprintln!("control group is left: {error}");
        }
    }
}
