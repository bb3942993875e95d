//! Faults in the start of a worker: any one of its kernel calls fails, or is the moment when the worker is killed.
//!
//! A test makes [`Programs`] for its node, in which `omni-worker` is another program, `faulty-worker`: it takes the
//! place of one start, has itself traced ([`trace`]), and becomes the real worker, same process and same input. Nothing
//! of this is in the product, and no call can be forgotten: what a start does is found by counting one.

pub mod trace;

use nix::errno::Errno;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tempfile::TempDir;

/// Kind of the start that a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartKind {
    /// An instance.
    Instance,
    /// A zygote.
    Zygote,
    /// The first step of a build that is started.
    Build,
}

impl StartKind {
    /// Where a plan for it is.
    fn file(self) -> &'static str {
        match self {
            Self::Instance => "plan",
            Self::Zygote => "plan-of-zygote",
            Self::Build => "plan-of-build",
        }
    }
}

/// A fault of the next start of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where; `None` to let it pass and only list what it does.
    pub at: Option<Place>,
    /// The fault.
    pub fault: Fault,
}

/// A kernel call of a start. Calls of each kind are counted separately: how many a C library makes for its own memory
/// depends on what the other threads map meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Task that makes the call: `worker`, or with a dot and a number for each birth, `worker.1.2`.
    pub task: String,
    /// Number in the kernel's table.
    pub number: u64,
    /// How many of that number this task has made before.
    pub before: usize,
}

/// Effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call is not carried out and gives this error.
    Error(Errno),
    /// The worker gets SIGKILL.
    Kill,
}

/// A folder with the programs of a node of which the worker is the faulty one.
#[derive(Debug)]
pub struct Programs(TempDir);

impl Programs {
    /// Links this build's programs.
    ///
    /// # Panics
    /// When they are not built.
    #[must_use]
    pub fn new() -> Self {
        // Beside them, so that they can be linked: a program asks the kernel for its own path, and a symbolic link
        // would not do.
        let folder = crate::program::program("omni-worker").with_file_name("tmp");
        fs::create_dir_all(&folder).unwrap();
        let folder = tempfile::Builder::new().prefix("programs").tempdir_in(folder).unwrap();
        let links = [
            ("omni-scheduler", "omni-scheduler"),
            ("omni-launcher", "omni-launcher"),
            ("uv", "uv"),
            ("omni-worker", REAL),
            ("faulty-worker", "omni-worker"),
        ];
        for (program, name) in links {
            fs::hard_link(crate::program::program(program), folder.path().join(name)).unwrap();
        }
        for library in ["libomni_cuda.so", "libomni_cuda_proxy.so"] {
            // Built for tests with GPUs only.
            let _ = fs::hard_link(
                crate::program::program("omni-worker").with_file_name(library),
                folder.path().join(library),
            );
        }
        Self(folder)
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The next start of such a worker gets this, once.
    pub fn plan(&self, kind: StartKind, plan: &Plan) {
        let _ = fs::remove_file(self.folder().join(MADE));
        fs::write(self.folder().join("plan.new"), plan.to_string()).unwrap();
        fs::rename(self.folder().join("plan.new"), self.folder().join(kind.file())).unwrap();
    }

    /// Returns true once a start has taken the last plan.
    #[must_use]
    pub fn is_taken(&self, kind: StartKind) -> bool {
        !self.folder().join(kind.file()).exists()
    }

    /// Result of the last plan: all calls that were listed, or the one that was hit; `None` while that is open.
    #[must_use]
    pub fn made(&self) -> Option<Vec<Place>> {
        let text = fs::read_to_string(self.folder().join(MADE)).ok()?;
        Some(text.lines().map(|line| line.parse().unwrap()).collect())
    }
}

impl Default for Programs {
    fn default() -> Self {
        Self::new()
    }
}

/// Names in the folder: the real worker, and what came of a plan.
pub(crate) const REAL: &str = "omni-worker-real";
pub(crate) const MADE: &str = "made";

/// Takes the plan, if there is one: no other start has it then.
pub(crate) fn take_plan(folder: &Path, kind: StartKind) -> Option<PathBuf> {
    let taken = folder.join(format!("plan.{}", std::process::id()));
    fs::rename(folder.join(kind.file()), &taken).ok().map(|()| taken)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.at, self.fault) {
            (None, _) => write!(f, "list"),
            (Some(place), Fault::Error(errno)) => write!(f, "{place} {}", errno as i32),
            (Some(place), Fault::Kill) => write!(f, "{place} kill"),
        }
    }
}

impl FromStr for Plan {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((place, fault)) = text.rsplit_once(' ') else { return Ok(Self { at: None, fault: Fault::Kill }) };
        let fault = if fault == "kill" { Fault::Kill } else { Fault::Error(Errno::from_raw(fault.parse()?)) };
        Ok(Self { at: Some(place.parse()?), fault })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.task, self.number, self.before)
    }
}

impl FromStr for Place {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        Ok(Self { task: word().to_owned(), number: word().parse()?, before: word().parse()? })
    }
}
