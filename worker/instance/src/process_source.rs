//! Where the process of an instance comes from: a sandbox of its own, made here, or a zygote, asked for here.
//!
//! Called by [`super::running`], which has the difference from here on.

use super::WorkerError;
use super::forked::Forked;
use super::gpu::Memory;
use super::sockets::{ProgramSockets, Sockets};
use omni_cgroup::Group;
use omni_engine_protocol::control::ToEngine;
use omni_meminfo_fs::{Groups, Server, Shown};
use omni_sandbox::{GpuDir, ProcFiles, Sandbox, SandboxIo, cgroup_view};
use omni_worker_spec::{InstanceSpec, ZygoteSocket};
use std::io;
use std::os::fd::AsFd;

/// Where the instance's process comes from.
pub(super) enum ProcessSource {
    /// A sandbox of its own, which ends with it.
    Sandbox { meminfo: Server, sandbox: Sandbox, reporting: bool },
    /// The sandbox of a zygote, which it shares.
    Zygote(Forked),
}

/// A process of the zygote, asked for.
pub(super) fn ask(spec: &InstanceSpec, zygote: &ZygoteSocket) -> Result<(Forked, Sockets), WorkerError> {
    let (sockets, ends) = new_sockets()?;
    Ok((Forked::ask(zygote, &spec.instance, &ends)?, sockets))
}

/// A sandbox of the instance's own, its first message sent.
pub(super) fn alone(
    spec: &InstanceSpec,
    group: &Group,
    notes: &mut Vec<String>,
) -> Result<(ProcessSource, Sockets, Option<Memory>), WorkerError> {
    let shown = shown_by(spec.cpu_millis)?;
    let (mount, connection) = omni_meminfo_fs::prepare()?;
    let (sockets, ends) = new_sockets()?;
    sockets.send(&ToEngine::Boot(spec.boot.clone()), &[])?;
    let gpu_dir = spec.gpu.as_ref().map(|gpu| GpuDir::new(spec.sandbox.gid, super::gpu::settings(gpu))).transpose()?;
    let memory = |(gpu, dir)| Memory::prepare(gpu, dir, spec.sandbox.uid, &spec.cgroup);
    let gpu = spec.gpu.as_ref().zip(gpu_dir.as_ref()).map(memory).transpose()?;
    let io = SandboxIo {
        stdout: ends.stdout.as_fd(),
        stderr: ends.stderr.as_fd(),
        engine: Some(ends.engine.as_fd()),
        proc_files: Some(ProcFiles { mount: mount.as_fd(), processors: shown.numbers() }),
        gpu: gpu_dir.as_ref(),
        zygote: false,
        group,
    };
    let mut sandbox = omni_sandbox::spawn(&spec.sandbox, &io)?;
    notes.append(&mut sandbox.notes);
    // Held here, the mount would keep its server from seeing the end of the sandbox.
    drop(mount);
    let meminfo = connection.serve(Groups::new(cgroup_view(&spec.cgroup, spec.memory_bytes, shown)?))?;
    Ok((ProcessSource::Sandbox { sandbox, meminfo, reporting: true }, sockets, gpu))
}

fn new_sockets() -> Result<(Sockets, ProgramSockets), WorkerError> {
    Sockets::new()
        .map_err(|errno| WorkerError::Setup { step: "make the engine's sockets", source: io::Error::from(errno) })
}

/// The processors that a limit shows.
pub(super) fn shown_by(cpu_millis: u32) -> Result<Shown, WorkerError> {
    Shown::by_limit(cpu_millis).map_err(|source| WorkerError::Setup { step: "find the processors", source })
}
