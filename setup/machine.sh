#!/bin/bash
# Checks that this machine can build, run and test a node, and says how to get what is missing. Changes nothing.
#
# Usage: setup/machine.sh build|run|check|test|weights|engine        called by setup/tools.sh; prints only what is wrong, exit status 1 then
#
# Where Debian 12 has a package for it, the package is named; elsewhere look for the same program.
set -euo pipefail
purpose=${1:?usage: setup/machine.sh build|run|check|test|weights|engine}

problems=0
missing() { # what, how to get it
    printf 'missing: %s\n         %s\n' "$1" "$2" >&2
    problems=$((problems + 1))
}
has() { command -v "$1" >/dev/null 2>&1; }

# Needs of a build.
has gcc || missing "gcc, which links the programs and compiles their cryptography" "apt-get install gcc libc6-dev"
if ! has cargo; then
    missing "cargo" "install Rust with rustup: https://rustup.rs"
elif ! cargo --version >/dev/null 2>&1; then
    missing "the Rust toolchain that rust-toolchain.toml names" "rustup toolchain install (in this folder)"
fi
if ! has python3; then
    missing "python3" "apt-get install python3 python3-venv"
elif ! python3 -m pip --version >/dev/null 2>&1 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing "pip or venv, to fetch uv from PyPI" "apt-get install python3-pip    (or python3-venv)"
fi
has flock || missing "flock, for runs of the set-up at the same time" "apt-get install util-linux"
case $purpose in build | weights) exit $((problems > 0)) ;; esac
has python3.11 || missing "python3.11, on which the models in models/ run" "apt-get install python3.11"
[ "$purpose" = check ] && exit $((problems > 0))
[ "$purpose" != test ] || has systemd-analyze || missing "systemd-analyze, which reads the units" "apt-get install systemd"
[ "$purpose" != test ] || has chromium || missing "chromium, in which the node's page is tested" "apt-get install chromium"
[ "$purpose" != test ] || has dbus-daemon || missing "dbus-daemon, for the tests of systemd's bus" "apt-get install dbus"

# Needs of a node.
[ "$(uname -s)" = Linux ] || { missing "Linux" "a node is made of namespaces, control groups and FUSE"; exit 1; }
has mke2fs || missing "mke2fs, which makes the models' bounded cache folders" "apt-get install e2fsprogs"
if [ "$(id -u)" != 0 ]; then
    missing "root" "sandboxes are built by root; the part that faces the network drops root: try sudo make $purpose"
    exit 1
fi

capabilities=$(awk '/^CapEff:/ { print $2 }' /proc/self/status)
(( (16#$capabilities >> 21) & 1 )) || missing "the capability CAP_SYS_ADMIN" \
    "mounts and namespaces need it; in a container: --privileged, or --cap-add SYS_ADMIN with the devices below"

# landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) answers with the version: Linux 5.13, and switched on.
if has python3 && ! python3 - <<'P'
import ctypes, sys
sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1)
P
then
    missing "Landlock" "Linux 5.13 or newer with \"landlock\" in /sys/kernel/security/lsm (boot parameter lsm=landlock,...)"
fi

for device in fuse loop-control; do
    [ -c "/dev/$device" ] || missing "/dev/$device" "modprobe ${device%-control}; in a container: --device /dev/$device"
done
[ "$(cat /proc/sys/user/max_user_namespaces 2>/dev/null || echo 0)" -gt 0 ] || missing "user namespaces, for id-mapped mounts" \
    "sysctl user.max_user_namespaces=1000"
for space in cgroup ipc mnt net pid uts; do
    [ -e "/proc/self/ns/$space" ] || missing "$space namespaces" "a kernel built with them; every distribution's is"
done

# Control groups: v2 with its controllers, or v1 (also beside an empty v2, "hybrid").
v2=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
for controller in memory pids cpu; do
    if [ -n "$v2" ] && grep -qw "$controller" "$v2/cgroup.controllers"; then continue; fi
    if awk -v want="$controller" '$3 == "cgroup" && ("," $4 ",") ~ ("," want ",") { found = 1 } END { exit !found }' /proc/mounts
    then continue; fi
    missing "the $controller controller of control groups" \
        "mount cgroup2 on /sys/fs/cgroup (boot parameter cgroup_enable=$controller where it is switched off)"
done

exit $((problems > 0))
