//! The sandbox of a model: its parts, and the whole of it. Pure.

use omni_machine::{LANDLOCK_SCOPES, Machine, Parts, Probe};

use super::{Check, Line};

/// Namespaces by their name in `/proc/self/ns`, each with its effect for a model.
const NAMESPACES: [(&str, &str); 7] = [
    ("mnt", "a view of files of its own"),
    ("pid", "processes of its own"),
    ("ipc", "shared memory of its own"),
    ("uts", "a host name of its own"),
    ("net", "a network of its own"),
    ("cgroup", "no view of other control groups"),
    ("user", "the owners of its cache directory"),
];

pub(super) fn lines(machine: &Machine) -> Vec<Line> {
    let Parts { child, namespaces, mounts, meminfo, cache, seccomp, landlock } = &machine.parts;
    let mut lines = vec![clone().tried(child, |()| "a child was started and ended".to_owned())];
    lines.extend(namespaces.iter().map(|(kind, trial)| namespace(kind, trial)));
    lines.extend([
        needed(
            "mounts",
            "Linux 5.12 or newer; in a container: CAP_SYS_ADMIN, and a seccomp profile that allows fsopen, fsmount, \
             open_tree, move_mount and mount_setattr",
        )
        .tried(mounts, |()| "mounted, copied and removed".to_owned()),
        needed("FUSE", "modprobe fuse; in a container: `--device /dev/fuse` and CAP_SYS_ADMIN")
            .tried(meminfo, |()| "a file for /proc/meminfo was made".to_owned()),
        needed(
            "cache directories",
            "apt-get install e2fsprogs; modprobe loop; modprobe ext4; in a container: `--device /dev/loop-control` and the \
             loop devices, and CAP_SYS_ADMIN",
        )
        .tried(cache, |()| "ext4 on a loop device, with mapped owners".to_owned()),
        needed("system call filter", "a kernel with CONFIG_SECCOMP_FILTER, as every distribution's is")
            .tried(seccomp, |()| "seccomp takes it".to_owned()),
        walls(landlock),
        needed("sandbox", "the missing parts above; else the message names the step of a sandbox that this kernel refuses")
            .tried(&machine.sandbox, |()| "a program ran in one".to_owned()),
    ]);
    lines
}

fn walls(landlock: &Probe<i32>) -> Line {
    match landlock {
        Probe::Works(version) if *version < LANDLOCK_SCOPES => Check::wanted(
            "Landlock",
            "a model with the host's network connects to abstract sockets of the host, as container runtimes have some",
            "Linux 6.12 or newer; else no model in `host-access` of [network] that is not trusted with them",
        )
        .failed(format!("version {version}: no wall around abstract sockets")),
        Probe::Works(_) | Probe::Fails(_) | Probe::Untried(_) => Check::wanted(
            "Landlock",
            "a second wall behind the mounts of each sandbox: models still run",
            "Linux 5.13 or newer, with landlock in /sys/kernel/security/lsm: lsm=landlock,... on the kernel's command line",
        )
        .tried(landlock, |version| format!("version {version}")),
    }
}

fn needed(name: &str, mend: &str) -> Check {
    Check::needed(name, "no instance starts", mend)
}

fn clone() -> Check {
    let mend = "Linux 5.3 or newer; in a container: a seccomp profile that allows clone3 (Docker 20.10.10 and newer)";
    needed("clone3, pidfd", mend)
}

fn namespace(kind: &str, trial: &Probe) -> Line {
    let mend = match kind {
        "user" => "sysctl -w user.max_user_namespaces=15000; with AppArmor of Ubuntu: sysctl -w \
                   kernel.apparmor_restrict_unprivileged_userns=0"
            .to_owned(),
        _ => format!("sysctl -w user.max_{kind}_namespaces=15000; in a container: CAP_SYS_ADMIN"),
    };
    let gives = NAMESPACES.iter().find(|(name, _)| *name == kind).map_or("", |(_, gives)| *gives);
    needed(&format!("{kind} namespace"), &mend).tried(trial, |()| gives.to_owned())
}
