//! Builds an environment, in up to three sandboxed steps.
//!
//! | step | runs | as | can write |
//! | --- | --- | --- | --- |
//! | wheels | `uv pip install --no-build`: no foreign code | [`BUILDER_UID`] | package cache, this environment |
//! | source | `uv pip install`, with the packages' own build steps | a user of its own | this environment, a fresh cache |
//! | compile | `compileall` of the standard library | as the step before | this environment |
//!
//! The second step is taken only when the first cannot do, and begins anew. The cache that all environments share, whose
//! files they have as hard links, is therefore never within the reach of foreign code: not of a build step, not of a
//! model. After the last step the environment becomes root's. Where hashes are required nothing is built from source: a build
//! step fetches packages of its own, which no hash names.

use super::interpreter::Interpreter;
use super::record::{self, Record};
use super::removal::remove_tree;
use super::room;
use super::sandboxed::{Errand, ErrandError, Sandboxes, shown};
use super::verdict::{Verdict, complaint, judge};
use super::{Failure, hashes, tree};
use crate::launcher::command::{CommandError, Finished};
use crate::spec::Bind;
use nix::unistd::syncfs;
use omni_config::node::{BUILDER_UID, Python};
use omni_ipc::id::EnvironmentKey;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Beginning of the names of folders, below the cache directory, in which builds from source write.
pub(super) const SCRATCH: &str = "build-";

/// Size of `/tmp` and of `/dev/shm` of a build: packages are unpacked and compiled there.
const TMP_BYTES: u64 = 2 << 30;
/// Where a build finds uv and the model's directory.
const UV: &str = "/omni/uv";
const MODEL: &str = "/model";

/// From so many bytes of sources on, several processes compile: below, starting them takes longer than it saves.
const POOL_FROM: u64 = 256 << 10;

/// An environment to be built.
#[derive(Debug, Clone)]
pub(in crate::launcher) struct Plan {
    pub(in crate::launcher) key: EnvironmentKey,
    /// The model that asked first, for messages.
    pub(in crate::launcher) model: String,
    /// Its snapshot, with `requirements.txt`.
    pub(super) snapshot: PathBuf,
    pub(super) interpreter: Interpreter,
    /// Texts of the files; `None` when nothing is required.
    pub(super) requirements: Option<String>,
    pub(super) overrides: Option<String>,
    /// The requirements refer to files of the model.
    pub(super) own_files: bool,
    /// Only files are installed that the requirements have a hash of.
    pub(super) require_hashes: bool,
}

/// How a node builds.
pub(super) struct Builder {
    pub(super) cache_dir: PathBuf,
    pub(super) environments: PathBuf,
    pub(super) uv: Option<PathBuf>,
    /// What uv calls itself, for records.
    pub(super) uv_version: Option<String>,
    pub(super) python: Python,
    /// Settings for uv and its HTTP client, from the launcher's own environment and the node's configuration.
    pub(super) settings: Vec<(String, String)>,
    /// The user of foreign code.
    pub(super) source_uid: u32,
    pub(super) sandboxes: Sandboxes,
}

/// Why a step did not work.
#[derive(Debug, thiserror::Error)]
#[error("{}", match .0 {
    ErrandError::Run(CommandError::TimedOut { .. }) => {
        "the build did not end (`build-timeout` in [python] of the node's configuration)"
    }
    ErrandError::Run(CommandError::Stopped(_)) => "the build was stopped",
    ErrandError::Run(CommandError::Io(_)) | ErrandError::Cgroup(_) | ErrandError::Spec(_) => "the build could not be run",
})]
struct StepError(#[source] ErrandError);

impl Builder {
    /// Builds an environment, unless it is there. Lines of uv go to `line`.
    pub(super) fn build(&self, plan: &Plan, line: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        if record::read(&self.environments, &plan.key).is_some() {
            return Ok(());
        }
        let built = self.attempt(plan, line);
        if built.is_err() {
            self.clear(&plan.key);
        }
        built
    }

    fn attempt(&self, plan: &Plan, line: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        let dir = self.environments.join(plan.key.as_str());
        if plan.requirements.is_some() {
            self.has_room()
                .map_err(|why| Failure { message: format!("the build was not begun: {why}"), permanent: false })?;
            let deadline = Instant::now() + self.python.build_timeout;
            let uid = self.install(plan, &dir, deadline, line)?;
            self.compile(plan, &dir, uid, deadline, line)?;
        } else {
            self.fresh(plan, &dir, None)?;
        }
        tree::seal(&dir, BUILDER_UID).map_err(|errno| node_failed("seal the environment", &errno.into()))?;
        // The record says "complete": it must not outlive a power failure that the files do not.
        let synced = File::open(&dir).and_then(|dir| Ok(syncfs(dir)?));
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
            .map_err(|error| node_failed("record the environment", &error))
    }

    /// Installs the packages; the user who owns them afterwards.
    fn install(&self, plan: &Plan, dir: &Path, deadline: Instant, line: &mut dyn FnMut(&str)) -> Result<u32, Failure> {
        let Some(uv) = &self.uv else {
            return Err(Failure::permanent(
                "uv is not on this node, and requirements.txt needs it: put it beside omni-launcher, or name it as `uv` \
                 in [python] of the node's configuration",
            ));
        };
        let shared = self.cache_dir.join("uv");
        // What refers to files of the model may build them: that is foreign code at once.
        if !plan.own_files {
            self.fresh(plan, dir, Some(BUILDER_UID))?;
            let step = Step { uid: BUILDER_UID, writable: &self.cache_dir, cache: &shared, wheels_only: true };
            let finished = self.uv(plan, uv, dir, &step, deadline, line)?;
            match finished.code {
                Some(0) => return Ok(BUILDER_UID),
                Some(_) if !plan.require_hashes && judge(&finished.tail, true) == Verdict::NeedsSource => {
                    line("a package has no wheel and is built from source, apart from everything else");
                }
                Some(_) | None => return Err(failed(plan, &finished, true)),
            }
        }
        let uid = self.source_uid;
        let scratch = Scratch::make(&self.cache_dir, plan, uid)
            .map_err(|error| node_failed("make a folder to build in", &error))?;
        self.fresh(plan, dir, Some(uid))?;
        let step = Step { uid, writable: dir, cache: &scratch.cache(), wheels_only: false };
        let finished = self.uv(plan, uv, dir, &step, deadline, line);
        scratch.remove().map_err(|error| node_failed("remove the folder of a build", &error))?;
        let finished = finished?;
        if finished.code == Some(0) { Ok(uid) } else { Err(failed(plan, &finished, false)) }
    }

    fn uv(
        &self,
        plan: &Plan,
        uv: &Path,
        dir: &Path,
        step: &Step<'_>,
        deadline: Instant,
        line: &mut dyn FnMut(&str),
    ) -> Result<Finished, Failure> {
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
        self.run(plan, argv, binds, env, MODEL, Access { uid: step.uid, network: true }, deadline, line)
    }

    /// Bytecode for all packages. A file that does not compile (a template, say) is no reason to fail.
    fn compile(
        &self,
        plan: &Plan,
        dir: &Path,
        uid: u32,
        deadline: Instant,
        line: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
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
        let finished = self.run(plan, argv, vec![shown(dir, true)], Vec::new(), "/tmp", access, deadline, line)?;
        if finished.code.is_none_or(|code| code > 1) {
            return Err(failed(plan, &finished, false));
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
        deadline: Instant,
        line: &mut dyn FnMut(&str),
    ) -> Result<Finished, Failure> {
        binds.extend(plan.interpreter.mounts().iter().map(|dir| shown(dir, false)));
        let Access { uid, network } = access;
        let errand = Errand { argv, binds, env, cwd, uid, network, tmp_bytes: TMP_BYTES };
        let name: String = plan.key.as_str().chars().take(12).collect();
        let limit = deadline.saturating_duration_since(Instant::now());
        self.sandboxes
            .run(&name, errand, limit, line, || self.has_room())
            .map_err(|error| Failure { message: omni_log::chain(&StepError(error)), permanent: false })
    }

    fn has_room(&self) -> Result<(), String> {
        room::check(&self.cache_dir)
    }

    /// An empty environment in the place of whatever was there.
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

/// What a build from source may write beside its environment: a fresh package cache, and a copy of the model's directory.
struct Scratch(PathBuf);

impl Scratch {
    fn at(cache_dir: &Path, key: &EnvironmentKey) -> Self {
        Self(cache_dir.join(format!("{SCRATCH}{key}")))
    }

    fn make(cache_dir: &Path, plan: &Plan, uid: u32) -> io::Result<Self> {
        let scratch = Self::at(cache_dir, &plan.key);
        remove_tree(&scratch.0)?;
        fs::create_dir(&scratch.0)?;
        fs::create_dir(scratch.cache())?;
        tree::copy(&plan.snapshot, &scratch.model())?;
        tree::hand_over(&scratch.0, uid)?;
        Ok(scratch)
    }

    fn cache(&self) -> PathBuf {
        self.0.join("uv")
    }

    fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    fn remove(self) -> io::Result<()> {
        remove_tree(&self.0)
    }
}

/// One run of uv.
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
    let permanent = judge(&finished.tail, wheels_only && !plan.require_hashes) == Verdict::Permanent;
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
    fn a_time_out_is_told_as_one_and_nothing_else_is() {
        let broken = StepError(CommandError::Io(io::ErrorKind::BrokenPipe.into()).into());
        assert_eq!(omni_log::chain(&broken), "the build could not be run: cannot run it: broken pipe");
        let late = CommandError::TimedOut { limit: Duration::from_secs(1), tail: "begun".to_owned() };
        assert!(omni_log::chain(&StepError(late.into())).contains("`build-timeout`"));
        let stopped = CommandError::Stopped("/x has 1 byte left".to_owned());
        assert_eq!(omni_log::chain(&StepError(stopped.into())), "the build was stopped: /x has 1 byte left");
    }
}
