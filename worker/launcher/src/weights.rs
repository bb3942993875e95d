//! Fetches weights: one run of the downloader, a program of its own, in a sandbox with the host's network.
//!
//! The launcher has no network. It checks the source by its own configuration, gives the downloader one order and the
//! secret of that source, and takes over what it has left once none of its processes is there any more.

use super::settings::Settings;
use omni_cgroup::Limits;
use omni_config::Source;
use omni_config::node::{WEIGHTS_UID, Weights};
use omni_environment::{
    CommandError, Failure, SandboxedCommand, SandboxedCommandError, Sandboxes, check_room, processors, reserved_room,
};
use omni_log::chain;
use omni_sandbox::Bind;
use omni_weights::{Cache, Digest, FILES, ORDER, Order, Report, SECRET, WORK};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Memory of a downloader: it holds a piece of each of its connections.
const MEMORY: u64 = 1 << 30;
/// Threads of a downloader.
const THREADS: u32 = 64;
/// Longest run: what is fetched by then is kept, and the next attempt goes on from there.
const LONGEST: Duration = Duration::from_hours(24);
/// Largest secret, in bytes.
const SECRET_MAX: u64 = 16 << 10;
/// Size of its `/tmp`, which it does not use.
const TMP_BYTES: u64 = 1 << 20;
/// Where it finds the program and certificates.
const PROGRAM: &str = "/omni/weights";
const AUTHORITIES: &str = "/authorities.pem";

/// Reason to end a run; none while it may go on.
#[derive(Debug, Default)]
pub(super) struct Stop(Mutex<Option<String>>);

impl Stop {
    /// Ends the run, unless it is being ended.
    pub(super) fn set(&self, reason: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

/// Means of fetching weights on this node.
pub(super) struct Fetcher {
    pub(super) cache: Cache,
    pub(super) config: Weights,
    pub(super) boot: String,
    program: Option<PathBuf>,
    cache_dir: PathBuf,
    sandboxes: Sandboxes,
}

impl Fetcher {
    /// Opens the cache. `in_use`: sets that instances of an earlier launcher have mounted.
    pub(super) fn open(settings: &Settings, sandboxes: &Sandboxes, in_use: &BTreeSet<Digest>) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let config = settings.config.weights.clone();
        let cache = Cache::open(&settings.cache_dir, WEIGHTS_UID, config.cache.bytes(), &boot, in_use)?;
        let cpu_millis = Some(processors().saturating_mul(500).max(1000));
        let limits = Limits { memory_bytes: Some(MEMORY), pids: Some(THREADS), cpu_millis };
        Ok(Self {
            cache,
            config,
            boot,
            program: settings.program_dir.as_ref().map(|dir| dir.join("omni-weights")),
            cache_dir: settings.cache_dir.clone(),
            sandboxes: sandboxes.with_limits(limits),
        })
    }

    /// Fetches an order; returns the set of its files. What is left of a failed attempt stays for the next one, unless
    /// that would fail, too, or the disk is full. What is complete stays in any case.
    pub(super) fn fetch(
        &self,
        key: &Digest,
        order: &Order,
        stop: &Stop,
        report: &dyn Fn(Report),
    ) -> Result<Digest, Failure> {
        let fetched = self.run(key, order, stop, report);
        let is_lost = |failure: &Failure| failure.permanent || check_room(&self.cache_dir).is_err();
        if fetched.as_ref().is_err_and(is_lost) && !self.cache.is_fetched(key) {
            self.cache.abandon(key);
        }
        fetched
    }

    fn run(&self, key: &Digest, order: &Order, stop: &Stop, report: &dyn Fn(Report)) -> Result<Digest, Failure> {
        let passing = |message: String| Failure { message, permanent: false };
        let complete = || self.cache.complete(key, order).map_err(|error| passing(chain(&error)));
        if self.cache.is_fetched(key) {
            // An earlier launcher ended, or the disk refused, after all of it had been fetched.
            return complete();
        }
        let work = self.cache.begin(key, order).map_err(|error| passing(chain(&error)))?;
        let command = self.command(order, &work)?;
        let mut last = None;
        let mut line = |line: &str| match Report::parse(line) {
            Some(Report::Failed { message, permanent }) => last = Some(Failure { message, permanent }),
            Some(other) => report(other),
            None => tracing::warn!(source = order.source, line, "the downloader of weights says"),
        };
        let may_go_on = || {
            stop.check()?;
            check_room(&self.cache_dir)
        };
        let name: String = format!("weights-{}", key.as_str().chars().take(12).collect::<String>());
        let finished = self.sandboxes.run(&name, command, LONGEST, &mut line, may_go_on).map_err(|error| {
            let why = match &error {
                SandboxedCommandError::Run(CommandError::Stopped(why)) => why.clone(),
                _ => format!("the downloader could not be run: {}", chain(&error)),
            };
            passing(format!("fetching weights from {}: {why}", order.source))
        })?;
        if finished.code != Some(0) {
            let unknown = || passing(format!("the downloader ended without a word ({})", finished.end));
            let Failure { message, permanent } = last.unwrap_or_else(unknown);
            return Err(Failure { message: format!("fetching weights from {}: {message}", order.source), permanent });
        }
        complete()
    }

    fn command(&self, order: &Order, work: &omni_weights::Work) -> Result<SandboxedCommand, Failure> {
        let permanent = |message: String| Failure { message, permanent: true };
        let program = self.program.clone().filter(|program| program.is_file());
        let program = program
            .ok_or_else(|| permanent("omni-weights is not on this node: put it beside omni-launcher".to_owned()))?;
        let bind =
            |source: &Path, target: &str, writable| Bind { source: source.into(), target: target.into(), writable };
        let mut binds = vec![
            bind(&program, PROGRAM, false),
            bind(&work.order, ORDER, false),
            bind(&work.folder, WORK, true),
            bind(&self.cache.files(), FILES, false),
        ];
        if let Some(path) = self.rule(order).and_then(|rule| rule.authorities.as_ref()) {
            binds.push(bind(path, AUTHORITIES, false));
        }
        let secret = self
            .secret(order)
            .map_err(|error| permanent(format!("fetching weights from {}: {error}", order.source)))?;
        Ok(SandboxedCommand {
            argv: [PROGRAM, ORDER, WORK, FILES].map(str::to_owned).into(),
            binds,
            env: secret.into_iter().map(|secret| (SECRET.to_owned(), secret)).collect(),
            cwd: "/",
            uid: WEIGHTS_UID,
            network: true,
            tmp_bytes: TMP_BYTES,
        })
    }

    /// The order for a request, by the node's configuration.
    pub(super) fn order(&self, request: &omni_node_protocol::launcher::WeightsRequest) -> Result<Order, String> {
        let order = Order::new(request, &self.config, reserved_room(&self.cache_dir), &self.boot)?;
        let has_authorities = self.rule(&order).is_some_and(|rule| rule.authorities.is_some());
        Ok(Order { authorities: has_authorities.then(|| AUTHORITIES.to_owned()), ..order })
    }

    fn rule(&self, order: &Order) -> Option<&omni_config::node::SourceRule> {
        let source: Source = order.source.parse().ok()?;
        self.config.rule(&source).map(|(_, rule)| rule)
    }

    /// The secret of the source, read anew for each run.
    fn secret(&self, order: &Order) -> Result<Option<String>, String> {
        let Some(credential) = self.rule(order).and_then(|rule| rule.credential.as_ref()) else { return Ok(None) };
        let folder = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let path = credential.path(folder.as_deref());
        let path =
            path.ok_or("the launcher has no credentials of its service, and the node's configuration names one")?;
        let read = || {
            let mut text = String::new();
            File::open(&path)?.take(SECRET_MAX).read_to_string(&mut text)?;
            io::Result::Ok(text)
        };
        read().map(Some).map_err(|error| format!("the node cannot read the credential {}: {error}", path.display()))
    }
}
