//! Lines about folders and their disks, uv, Python. Pure.

use omni_machine::{Disk, Folder, Machine, Probe, Python, Role};

use super::{Check, Line};
use crate::human::size;

/// Free space that a disk should have: room for some environments, or a model.
const ROOM: (u64, u64) = (2 << 30, 20_000);
/// Bytes and files without which a node cannot write down what it has to.
const LEAST: (u64, u64) = (64 << 20, 1000);

pub(super) fn lines(machine: &Machine) -> Vec<Line> {
    let mut lines: Vec<Line> = machine.folders.iter().flat_map(folder).collect();
    lines.push(uv(machine));
    lines.push(python(&machine.pythons));
    lines
}

const fn name(role: Role) -> &'static str {
    match role {
        Role::Models => "models folder",
        Role::State => "state folder",
        Role::Cache => "cache folder",
        Role::Runtime => "runtime folder",
    }
}

fn folder(folder: &Folder) -> Vec<Line> {
    let path = folder.path.display();
    let name = name(folder.role);
    let there = if folder.exists { path.to_string() } else { format!("{path}, which a start makes") };
    let disk = match &folder.disk {
        Probe::Works(disk) => disk,
        Probe::Fails(words) | Probe::Untried(words) => {
            let check = Check::needed(name, "the node may be unable to write there", format!("look at {path}"));
            return vec![check.unknown(words)];
        }
    };
    match folder.role {
        Role::Models => {
            let mend = format!("install -d {path}; or name another one: `--models`, or `models` below [node]");
            let check = Check::needed(name, "the launcher ends: there is nothing to serve", mend);
            vec![check.enough(folder.exists, if folder.exists { there } else { format!("{path} is not there") })]
        }
        Role::State | Role::Cache => room(name, &there, disk),
        Role::Runtime => runtime(name, &there, disk),
    }
}

fn room(name: &str, there: &str, disk: &Disk) -> Vec<Line> {
    let files = disk.free_files.map_or_else(String::new, |files| format!(", {files} files"));
    let found = format!("{there}: {}{files} free", size(disk.free_bytes));
    let below =
        |(bytes, files): (u64, u64)| disk.free_bytes < bytes || disk.free_files.is_some_and(|free| free < files);
    let mend = "free some, or name a folder on another disk: `state-dir` and `cache-dir` below [node]";
    let line = if disk.read_only {
        Check::needed(name, "the node cannot be started", mend).failed(format!("{there}: read-only"))
    } else if below(LEAST) {
        Check::needed(name, "no model can be copied, and no environment built", mend).failed(found)
    } else {
        let cost = "larger models and environments do not fit";
        Check::wanted(name, cost, mend).enough(!below(ROOM), found)
    };
    let no_exec = disk.no_exec.then(|| {
        let cost = "compiled libraries of models, packages and of the GPU cannot be loaded";
        let mend = "mount -o remount,exec, for good in /etc/fstab; or name a folder on another disk";
        Check::wanted(format!("{name}, execution"), cost, mend).failed("mounted noexec")
    });
    [Some(line), no_exec].into_iter().flatten().collect()
}

fn runtime(name: &str, there: &str, disk: &Disk) -> Vec<Line> {
    let mend = "use a folder on a tmpfs, as /run is, or have it cleaned at boot";
    vec![if disk.read_only {
        Check::needed(name, "the node cannot be started", mend).failed(format!("{there}: read-only"))
    } else {
        let cost = "after a boot, records of instances that are gone may be taken for running ones";
        let kind = if disk.is_memory { "in memory" } else { "on a disk" };
        Check::wanted(name, cost, mend).enough(disk.is_memory, format!("{there}: {kind}"))
    }]
}

fn uv(machine: &Machine) -> Line {
    let check = Check::wanted(
        "uv",
        "models with a requirements.txt are refused",
        "put the uv of the package beside omni-launcher, or name one: `uv` below [python]",
    );
    match &machine.uv {
        None => check.failed("neither beside omni-launcher nor in PATH"),
        Some(uv) => check.tried(&uv.version, |version| format!("{version} at {}", uv.path.display())),
    }
}

fn python(pythons: &[Python]) -> Line {
    let found = |python: &Python| match &python.found {
        Probe::Works((path, version)) => Some(format!("{version} at {}", path.display())),
        Probe::Fails(_) | Probe::Untried(_) => None,
    };
    let all: Vec<String> = pythons.iter().filter_map(found).collect();
    let default = pythons.iter().find(|python| python.is_default);
    let release = default.map_or("3", |python| &python.release);
    let mend = format!("apt-get install python{release}, or name an interpreter below [python.interpreters]");
    let broken = pythons.iter().find_map(|python| match &python.found {
        Probe::Fails(words) if python.is_named => Some(words),
        Probe::Works(_) | Probe::Fails(_) | Probe::Untried(_) => None,
    });
    if all.is_empty() {
        return Check::needed("Python", "no model can run", mend).failed("no release that models can ask for is here");
    }
    if let Some(words) = broken {
        return Check::wanted("Python", "models that ask for this release are refused", mend).failed(words);
    }
    let cost = format!("models whose omni.toml does not ask for another release than {release} are refused");
    let has_default = default.is_some_and(|python| found(python).is_some());
    Check::wanted("Python", cost, mend).enough(has_default, all.join(", "))
}
