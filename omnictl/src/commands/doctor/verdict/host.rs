//! The machine itself: programs, configuration, privileges, kernel, control groups, bounds. Pure.

use std::path::Path;

use omni_machine::{Cgroups, Identity, Layout, Limits, Machine, Service};

use super::{Check, Line};

/// Hint for users other than root.
pub(super) const AS_ROOT: &str = "sudo omnictl doctor";
/// The first kernel that Omni is tested on.
const KERNEL: (u32, u32) = (5, 13);
/// Open files beside those of connections: a few for each instance, and the node's own.
const OTHER_FILES: u64 = 4096;
/// Each instance of a framework has hundreds of threads, and each takes an id.
const PROCESS_IDS: u64 = 65_536;
/// Each directory of each model takes one.
const WATCHES: u64 = 8192;

/// Capabilities that sandboxes are made with, by their number (`linux/capability.h`).
const NEEDED: [(u32, &str); 11] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (8, "CAP_SETPCAP"),
    (12, "CAP_NET_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (27, "CAP_MKNOD"),
];

pub(super) fn no_programs() -> Line {
    let mend = "install the package, or run the omnictl that is in one folder with omni-launcher";
    Check::needed("programs", "no node can be started", mend)
        .failed("omni-launcher is neither beside omnictl nor in /usr/lib/omni")
}

/// `unanswered` is why the launcher did not say what there is.
pub(super) fn programs(place: &Path, worker: bool, unanswered: Option<&String>) -> Line {
    let mend = "install omni-scheduler, omni-launcher, omni-worker and omnictl of one build into one folder";
    let check = Check::needed("programs", "no node can be started, and nothing else could be looked at", mend);
    match unanswered {
        Some(why) => check.failed(why),
        None => check.enough(worker, format!("{}{}", place.display(), if worker { "" } else { " has no omni-worker" })),
    }
}

pub(super) fn lines(machine: &Machine) -> Vec<Line> {
    let mut lines = vec![configuration(machine), privileges(&machine.identity)];
    lines.push(kernel(&machine.kernel));
    lines.extend(cgroups(&machine.cgroups));
    lines.extend(limits(&machine.limits));
    lines
}

fn configuration(machine: &Machine) -> Line {
    let mend = "correct the file: `omni-scheduler --check-config` lists all problems";
    let check = Check::needed("configuration", "the node ends at once, with 78; all below is for the defaults", mend);
    match (&machine.configuration.file, &machine.configuration.problem) {
        (_, Some(problem)) => check.failed(problem.replace('\n', "; ")),
        (Some(file), None) => check.ok(file.display().to_string()),
        (None, None) => check.ok("none: the defaults"),
    }
}

/// Access by the network, worded as in a node's log at its start: of a running node its own, else by its configuration.
pub(super) fn listeners(service: &Result<Service, String>, running: Option<&[String]>) -> Vec<Line> {
    let check = || {
        Check::wanted(
            "listeners",
            "anyone who reaches the address has this access",
            "what the line names, or another address: `listen`, `admin-listen` below [server]; it stays where a firewall \
             or a proxy keeps others away",
        )
    };
    let exposure = match (running, service) {
        (Some(warnings), _) => warnings,
        (None, Ok(Service { exposure, .. })) => exposure,
        (None, Err(words)) => return vec![check().unknown(words)],
    };
    if exposure.is_empty() {
        let whose =
            if running.is_some() { "of the node that runs" } else { "by the configuration, without flags and units" };
        return vec![check().ok(format!("only this machine reaches them, or there are tokens and TLS ({whose})"))];
    }
    exposure.iter().map(|line| check().failed(line)).collect()
}

fn privileges(identity: &Identity) -> Line {
    let has = |bit: u32| identity.capabilities.checked_shr(bit).is_some_and(|bits| bits & 1 == 1);
    let missing: Vec<_> = NEEDED.iter().filter(|(bit, _)| !has(*bit)).map(|(_, name)| *name).collect();
    if identity.uid != 0 {
        let check = Check::needed("privileges", "most checks are not possible", AS_ROOT);
        return check.unknown(format!("asked as user {}", identity.uid));
    }
    if identity.confined {
        let mend = "run the node on the machine itself, or in a container without a user namespace (`--privileged \
                    --userns=host`)";
        let cost = "no instance starts: device files and file systems of models cannot be made from here";
        return Check::needed("privileges", cost, mend).failed("root in a container's user namespace, but not outside");
    }
    let mend = "in a container: `--privileged`, or `--cap-add` each; in a unit: CapabilityBoundingSet= as in \
                omni-launcher.service";
    let check = Check::needed("privileges", "no instance starts", mend);
    let found = if missing.is_empty() { "root".to_owned() } else { format!("root without {}", missing.join(", ")) };
    check.enough(missing.is_empty(), found)
}

fn kernel(release: &str) -> Line {
    let check = Check::wanted(
        "kernel",
        "nothing of Omni was tried on it; the lines below list what is missing",
        format!("a kernel of {}.{} or newer", KERNEL.0, KERNEL.1),
    );
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => check.enough((major, minor) >= KERNEL, release),
        _ => check.unknown(format!("its release is `{release}`")),
    }
}

fn cgroups(cgroups: &Cgroups) -> [Line; 4] {
    let layout = Check::needed(
        "control groups",
        "no node can be started: nothing would bound what models use",
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup; with a controller that is switched off: cgroup_enable=memory on the \
         kernel's command line; or mount memory, pids, cpu and cpuacct of version 1",
    );
    let limits = Check::needed(
        "limits of groups",
        "no instance starts: it would run without its limits",
        "in a container: `--security-opt unmask=/sys/fs/cgroup` of podman, else `--privileged`; in a unit: without ProtectControlGroups=",
    );
    let container = if cgroups.confined { ", as a container sees it" } else { "" };
    let layout = layout.tried(&cgroups.layout, |layout| {
        let version = match layout {
            Layout::Unified => "version 2",
            Layout::Hybrid => "version 1, beside a version 2 without controllers",
            Layout::Legacy => "version 1",
        };
        format!("{version}: cpu, memory, pids{container}")
    });
    let processors = Check::wanted(
        "processors of groups",
        "a model that computes all the time makes the others slower: it is on all processors, though within its limit",
        "CAP_SYS_NICE; a kernel with CONFIG_CPUSETS; with version 2, cpuset in cgroup.controllers of the group above; \
         with version 1, cpuset mounted",
    );
    let driver = Check::needed(
        "driver of groups",
        "no node can be started: the driver of its control groups is missing",
        "`cgroup-driver = \"auto\"` in [node] of the configuration, or the missing part named here",
    );
    let driver = driver.tried(&cgroups.driver, |(name, why)| match why {
        Some(why) => format!("{name}: {why}"),
        None => format!("{name}: a scope for each instance"),
    });
    [
        layout,
        driver,
        limits.tried(&cgroups.limits, |()| "set, and read back".to_owned()),
        processors.tried(&cgroups.processors, |count| format!("a group can be kept to any of {count}")),
    ]
}

fn limits(limits: &Limits) -> Vec<Line> {
    let needed = u64::from(limits.connections) + OTHER_FILES;
    let files = Check::wanted(
        "open files",
        format!("fewer connections at a time than `[server] connections` = {}: further ones wait", limits.connections),
        format!(
            "by hand: ulimit -Hn {}; a service has the limit of its unit (LimitNOFILE=)",
            needed.next_power_of_two()
        ),
    );
    let hard =
        limits.open_files.map(|hard| (hard >= needed, format!("at most {hard} for a process started from here")));
    let ids = Check::wanted(
        "process ids",
        "starts fail for want of processes while limits of models are not reached",
        "sysctl -w kernel.pid_max=4194304",
    );
    let most = limits.process_ids.map(|most| (most >= PROCESS_IDS, format!("{most} for the whole machine")));
    let watcher = Check::needed(
        "watchers",
        "the launcher ends: it would not see what authors change",
        "sysctl -w fs.inotify.max_user_instances=1024",
    );
    let watches = Check::wanted(
        "watched directories",
        "changes in further directories of models are not seen until the launcher starts again",
        "sysctl -w fs.inotify.max_user_watches=65536",
    );
    vec![
        files.known(hard, "the limit cannot be read"),
        ids.known(most, "kernel.pid_max cannot be read"),
        watcher.tried(&limits.watcher, |()| "one was made".to_owned()),
        watches.known(
            limits.watches.map(|most| (most >= WATCHES, most.to_string())),
            "fs.inotify.max_user_watches cannot be read",
        ),
    ]
}
