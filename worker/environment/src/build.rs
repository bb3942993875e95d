//! Builds an environment, in up to three sandboxed steps.
//!
//! | step | runs | as | can write |
//! | --- | --- | --- | --- |
//! | wheels | `uv pip install --no-build`: no foreign code | [`BUILDER_UID`] | package cache, this environment |
//! | source | `uv pip install`, with the packages' own build steps | a user of its own | this environment, a fresh cache |
//! | compile | `compileall` of the standard library | as the step before | this environment |
//!
//! The second step is taken only when the first cannot do, has a [`Place`] of its own, and begins anew. One that timed out
//! leaves its package cache to the next attempt at the same environment, and nothing else. The cache that all environments share, whose
//! files they have as hard links, is therefore never within the reach of foreign code: not of a build step, not of a
//! model. After the last step the environment becomes root's. Where hashes are required nothing is built from source: a build
//! step fetches packages of its own, which no hash names.

use super::plan::{Attempt, Ended, Plan};
use super::queue::{Kind, Place};
use super::record::{self, Record};
use super::removal::{discard, remove_tree};
use super::room;
use super::sandboxed_command::{SandboxedCommand, SandboxedCommandError, Sandboxes, shown};
use super::scratch::Scratch;
use super::verdict::{Verdict, complaint, judge};
use super::{Failure, hashes, tree};
use crate::command::{CommandError, Finished};
use nix::unistd::syncfs;
use omni_config::node::{BUILDER_UID, Python};
use omni_node_protocol::id::EnvironmentKey;
use omni_sandbox::Bind;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Size of `/tmp` and of `/dev/shm` of a build: packages are unpacked and compiled there.
const TMP_BYTES: u64 = 2 << 30;
/// Where a build finds uv and the model's directory.
const UV: &str = "/omni/uv";
const MODEL: &str = "/model";

/// From so many bytes of sources on, several processes compile: below, starting them takes longer than it saves.
const POOL_FROM: u64 = 256 << 10;

/// How a node builds.
pub struct Builder {
    pub(super) cache_dir: PathBuf,
    pub(super) environments: PathBuf,
    pub(super) uv: Option<PathBuf>,
    /// Version line of uv, for records.
    pub(super) uv_version: Option<String>,
    pub(super) python: Python,
    /// Settings for uv and its HTTP client, from the launcher's own environment and the node's configuration.
    pub(super) settings: Vec<(String, String)>,
    /// The user of foreign code in the first place; the next ones are below.
    pub(super) source_uid: u32,
    pub(super) sandboxes: Sandboxes,
}

/// Why a step did not work.
#[derive(Debug, thiserror::Error)]
#[error("{}", match .0 {
    SandboxedCommandError::Run(CommandError::TimedOut { .. }) => {
        "the build did not end (`build-timeout` in [python] of the node's configuration)"
    }
    SandboxedCommandError::Run(CommandError::Stopped(_)) => "the build was stopped",
    SandboxedCommandError::Run(CommandError::Io(_)) | SandboxedCommandError::Cgroup(_) | SandboxedCommandError::Spec(_) => "the build could not be run",
})]
struct StepError(#[source] SandboxedCommandError);

impl Builder {
    /// Builds an environment in its place, unless it is there. Lines of uv go to `line`.
    pub fn build(
        &self,
        plan: &Plan,
        place: Option<Place>,
        cancelled: &AtomicBool,
        line: &mut dyn FnMut(&str),
    ) -> Ended {
        if record::read(&self.environments, &plan.key).is_some() {
            return Ended::Built;
        }
        let attempt = Attempt { place, cancelled, deadline: Instant::now() + self.python.build_timeout };
        let ended = match self.attempt(plan, attempt, line) {
            Ok(()) => return Ended::Built,
            Err(_) if cancelled.load(Ordering::Relaxed) => Ended::Cancelled,
            Err(ended) => ended,
        };
        self.clear(&plan.key);
        ended
    }

    /// Removes what an attempt that timed out has kept.
    pub fn discard(&self, key: &EnvironmentKey) {
        discard(&[Scratch::at(&self.cache_dir, key).0]);
    }

    fn attempt(&self, plan: &Plan, attempt: Attempt<'_>, line: &mut dyn FnMut(&str)) -> Result<(), Ended> {
        let dir = self.environments.join(plan.key.as_str());
        if plan.requirements.is_some() {
            self.has_room()
                .map_err(|why| Failure { message: format!("the build was not begun: {why}"), permanent: false })?;
            let uid = self.install(plan, &dir, attempt, line)?;
            self.compile(plan, &dir, uid, attempt, line)?;
        } else {
            self.fresh(plan, &dir, None)?;
        }
        tree::seal(&dir, BUILDER_UID).map_err(|errno| node_failed("seal the environment", &errno.into()))?;
        // The record says "complete": it must not outlive a power failure that the files do not.
        // A bare one does not wait for what others write.
        let synced = if plan.is_bare() {
            tree::sync(&dir).map_err(io::Error::from)
        } else {
            File::open(&dir).and_then(|dir| Ok(syncfs(dir)?))
        };
        synced.map_err(|error| node_failed("write the environment to the disk", &error))?;
        let mut mounts = plan.interpreter.mounts();
        mounts.push(dir.clone());
        let record = Record {
            python: tree::python(&dir),
            mounts,
            interpreter: plan.interpreter.clone(),
            requirements: plan.requirements.clone(),
            overrides: plan.overrides.clone(),
            packages: tree::installed(&tree::packages(&dir, &plan.interpreter)),
            builder: self.uv_version.clone().filter(|_| plan.requirements.is_some()),
            built_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        };
        record::write(&self.environments, &plan.key, &record)
            .map_err(|error| node_failed("record the environment", &error).into())
    }

    /// Installs the packages and returns the user that owns them afterwards.
    fn install(&self, plan: &Plan, dir: &Path, attempt: Attempt<'_>, line: &mut dyn FnMut(&str)) -> Result<u32, Ended> {
        let Some(uv) = &self.uv else {
            return Err(Ended::Failed(Failure::permanent(
                "uv is not on this node, and requirements.txt needs it: put it beside omni-launcher, or name it as `uv` \
                 in [python] of the node's configuration",
            )));
        };
        let number = match attempt.place {
            Some(Place { kind: Kind::Source, number }) => number,
            Some(Place { kind: Kind::Wheels, .. }) | None => return self.wheels(plan, uv, dir, attempt, line),
        };
        let uid = self.source_uid - number;
        let scratch = Scratch::make(&self.cache_dir, plan, uid)
            .map_err(|error| node_failed("make a folder to build in", &error))?;
        self.fresh(plan, dir, Some(uid))?;
        let step = Step { uid, writable: dir, cache: &scratch.cache(), wheels_only: false };
        let finished = self.uv(plan, uv, dir, &step, attempt, line);
        // The packages that were built are the next attempt's.
        if !matches!(finished, Err(Ended::TimedOut(_))) || attempt.cancelled.load(Ordering::Relaxed) {
            scratch.remove().map_err(|error| node_failed("remove the folder of a build", &error))?;
        }
        let finished = finished?;
        if finished.code == Some(0) { Ok(uid) } else { Err(failed(plan, &finished, false).into()) }
    }

    fn wheels(
        &self,
        plan: &Plan,
        uv: &Path,
        dir: &Path,
        attempt: Attempt<'_>,
        line: &mut dyn FnMut(&str),
    ) -> Result<u32, Ended> {
        self.fresh(plan, dir, Some(BUILDER_UID))?;
        let shared = self.cache_dir.join("uv");
        let step = Step { uid: BUILDER_UID, writable: &self.cache_dir, cache: &shared, wheels_only: true };
        let finished = self.uv(plan, uv, dir, &step, attempt, line)?;
        let verdict = judge(finished.code, &finished.tail, true);
        match finished.code {
            Some(0) => Ok(BUILDER_UID),
            Some(_) if !plan.require_hashes && verdict == Verdict::NeedsSource => {
                line("a package has no wheel and is built from source, apart from everything else");
                Err(Ended::NeedsSource)
            }
            Some(_) | None => Err(failed(plan, &finished, true).into()),
        }
    }

    fn uv(
        &self,
        plan: &Plan,
        uv: &Path,
        dir: &Path,
        step: &Step<'_>,
        attempt: Attempt<'_>,
        line: &mut dyn FnMut(&str),
    ) -> Result<Finished, Ended> {
        let python = tree::python(dir).display().to_string();
        let mut argv: Vec<String> =
            ["pip", "install", "--no-config", "--no-progress", "--color", "never", "--python", &python]
                .map(str::to_owned)
                .into();
        argv.insert(0, UV.to_owned());
        argv.extend(["-r", "requirements.txt"].map(str::to_owned));
        if plan.overrides.is_some() {
            argv.extend(["--override", "overrides.txt"].map(str::to_owned));
        }
        // Links need one mount for both ends; a build from source has its cache in another one.
        argv.extend(["--link-mode", if step.wheels_only { "hardlink" } else { "copy" }].map(str::to_owned));
        if step.wheels_only || plan.require_hashes {
            argv.push("--no-build".to_owned());
        }
        if plan.require_hashes {
            argv.push("--require-hashes".to_owned());
        }
        let mut binds = vec![read_only(uv, UV), shown(step.writable, true)];
        if step.wheels_only {
            binds.push(read_only(&plan.snapshot, MODEL));
        } else {
            // Build backends write beside the sources.
            let source = Scratch::at(&self.cache_dir, &plan.key).model();
            binds.extend([shown(step.cache, true), Bind { source, target: MODEL.into(), writable: true }]);
        }
        binds.extend(
            self.python.find_links.iter().filter(|link| link.starts_with('/')).map(|dir| shown(dir.as_ref(), false)),
        );
        let mut env = self.settings.clone();
        env.push(("UV_CACHE_DIR".into(), step.cache.display().to_string()));
        self.run(plan, argv, binds, env, MODEL, Access { uid: step.uid, network: true }, attempt, line)
    }

    /// Bytecode for all packages. A file that does not compile (a template, say) is no reason to fail.
    fn compile(
        &self,
        plan: &Plan,
        dir: &Path,
        uid: u32,
        attempt: Attempt<'_>,
        line: &mut dyn FnMut(&str),
    ) -> Result<(), Ended> {
        // Without `site` and apart from the packages' directory: nothing of a package runs here.
        let mut argv = vec![plan.interpreter.base.display().to_string()];
        let packages = tree::packages(dir, &plan.interpreter);
        let jobs = if tree::sources(&packages).is_ok_and(|bytes| bytes < POOL_FROM) { "1" } else { "0" };
        argv.extend(
            ["-I", "-S", "-m", "compileall", "-qq", "-j", jobs, "--invalidation-mode", "unchecked-hash"]
                .map(str::to_owned),
        );
        argv.push(packages.display().to_string());
        line("compiling bytecode");
        let access = Access { uid, network: false };
        let finished = self.run(plan, argv, vec![shown(dir, true)], Vec::new(), "/tmp", access, attempt, line)?;
        if finished.code.is_none_or(|code| code > 1) {
            return Err(failed(plan, &finished, false).into());
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one sandbox; a struct of them would be used once")]
    fn run(
        &self,
        plan: &Plan,
        argv: Vec<String>,
        mut binds: Vec<Bind>,
        env: Vec<(String, String)>,
        cwd: &'static str,
        access: Access,
        attempt: Attempt<'_>,
        line: &mut dyn FnMut(&str),
    ) -> Result<Finished, Ended> {
        binds.extend(plan.interpreter.mounts().iter().map(|dir| shown(dir, false)));
        let Access { uid, network } = access;
        let command = SandboxedCommand { argv, binds, env, cwd, uid, network, tmp_bytes: TMP_BYTES };
        let name: String = plan.key.as_str().chars().take(12).collect();
        let limit = attempt.deadline.saturating_duration_since(Instant::now());
        let may_go_on = || match attempt.cancelled.load(Ordering::Relaxed) {
            true => Err("no model waits for it any more".to_owned()),
            false => self.has_room(),
        };
        self.sandboxes.run(&name, command, limit, line, may_go_on).map_err(|error| {
            let is_late = matches!(error, SandboxedCommandError::Run(CommandError::TimedOut { .. }));
            let message = omni_log::chain(&StepError(error));
            if is_late { Ended::TimedOut(message) } else { Ended::Failed(Failure::passing(message)) }
        })
    }

    fn has_room(&self) -> Result<(), String> {
        room::check(&self.cache_dir)
    }

    /// Makes an empty environment in the place of any earlier one.
    fn fresh(&self, plan: &Plan, dir: &Path, owner: Option<u32>) -> Result<(), Failure> {
        self.clear(&plan.key);
        let made = tree::create(dir, &plan.interpreter);
        let made = made.and_then(|()| owner.map_or(Ok(()), |uid| Ok(tree::hand_over(dir, uid)?)));
        made.map_err(|error| node_failed("make the environment's directory", &error))
    }

    fn clear(&self, key: &EnvironmentKey) {
        let dir = self.environments.join(key.as_str());
        if let Err(error) = remove_tree(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "an unfinished environment is left");
        }
    }
}

/// Run of uv.
struct Step<'a> {
    uid: u32,
    writable: &'a Path,
    cache: &'a Path,
    wheels_only: bool,
}

#[derive(Clone, Copy)]
struct Access {
    uid: u32,
    network: bool,
}

fn read_only(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Bind {
    Bind { source: source.into(), target: target.into(), writable: false }
}

fn failed(plan: &Plan, finished: &Finished, wheels_only: bool) -> Failure {
    // With hashes there is no other step that could do better.
    let permanent = judge(finished.code, &finished.tail, wheels_only && !plan.require_hashes) == Verdict::Permanent;
    let advice = if plan.require_hashes && permanent { hashes::advice(&finished.tail) } else { None };
    let message = match (complaint(&finished.tail), advice) {
        ("", _) => format!("the build ended without a word ({})", finished.end),
        (complaint, Some(advice)) => format!("{complaint}\n{advice}"),
        (complaint, None) => complaint.to_owned(),
    };
    Failure { message, permanent }
}

fn node_failed(step: &str, error: &io::Error) -> Failure {
    Failure { message: format!("the node cannot {step}: {error}"), permanent: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_timeout_is_reported_as_one() {
        let broken = StepError(CommandError::Io(io::ErrorKind::BrokenPipe.into()).into());
        assert_eq!(omni_log::chain(&broken), "the build could not be run: cannot run it: broken pipe");
        let late = CommandError::TimedOut { limit: Duration::from_secs(1), tail: "begun".to_owned() };
        assert!(omni_log::chain(&StepError(late.into())).contains("`build-timeout`"));
        let stopped = CommandError::Stopped("/x has 1 byte left".to_owned());
        assert_eq!(omni_log::chain(&StepError(stopped.into())), "the build was stopped: /x has 1 byte left");
    }
}
