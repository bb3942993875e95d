#!/bin/bash
# Reading /proc/meminfo: the kernel's own file, ours, and lxcfs's, for the same control group.
#
# Usage (root): bench/meminfo.sh [READS]      default 15000
#
# Server and reader are pinned to CPUs, because where they run decides more than what they do: once both on one CPU,
# once on two. The three are interleaved, three rounds. Needs the Debian package lxcfs and cgroup v1 or v2 with the memory
# controller; leaves no mount, process or group behind.
# Not like for like: lxcfs finds the reader's group on every open and knows swap, ours serves one group.
set -euo pipefail
cd "$(dirname "$0")/.."

reads=${1:-15000}
rounds=3
here=0
there=$(($(nproc) > 1 ? 1 : 0))

command -v lxcfs >/dev/null || { echo "bench/meminfo.sh: lxcfs is missing: apt-get install lxcfs" >&2; exit 1; }
cargo build --quiet --package omni-meminfo-fs --examples --release
programs=target/release/examples

work=$(mktemp -d)
group= ours= lxcfs=
cleanup() {
    if [ -n "$ours" ]; then exec 3>&-; wait "$ours" || true; fi
    if [ -n "$lxcfs" ]; then umount "$work/lxcfs" || true; wait "$lxcfs" || true; fi
    if [ -n "$group" ]; then rmdir "$group"; fi
    rm -rf "$work"
}
trap cleanup EXIT

# A group with a limit, for the readers and for both servers' numbers.
v1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ { print $2; exit }' /proc/mounts)
v2=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
if [ -n "$v1" ]; then
    group=$v1/omni-bench-$$; mkdir "$group"; echo $((7 << 30)) >"$group/memory.limit_in_bytes"
else
    echo +memory >"$v2/cgroup.subtree_control"
    group=$v2/omni-bench-$$; mkdir "$group"; echo $((7 << 30)) >"$group/memory.max"
fi

mkdir "$work/lxcfs"
mkdir "$work/files"
mkfifo "$work/stop" "$work/ready"
"$programs/serve" "$group" "$work/files" <"$work/stop" >"$work/ready" &
ours=$!
exec 3>"$work/stop"
read -r _ <"$work/ready"
# Without 3>&- it would hold our server's input open, and that would not end.
lxcfs --foreground --pidfile="$work/lxcfs.pid" "$work/lxcfs" >"$work/lxcfs.log" 2>&1 3>&- &
lxcfs=$!
for _ in $(seq 100); do [ -e "$work/lxcfs/proc/meminfo" ] && break; sleep 0.05; done
[ -e "$work/lxcfs/proc/meminfo" ] || { echo "bench/meminfo.sh: lxcfs does not start:" >&2; cat "$work/lxcfs.log" >&2; exit 1; }

measure() { # CPU PATH -> "p50 p99 reads/s", from inside the group
    bash -c 'echo $$ >"$0/cgroup.procs"; exec taskset -c "$1" "$2" "$3" "$4"' \
        "$group" "$1" "$programs/read_latency" "$2" "$reads"
}

for file in "$work/files/meminfo" "$work/lxcfs/proc/meminfo"; do
    shown=$(bash -c 'echo $$ >"$0/cgroup.procs"; exec head -n 1 "$1"' "$group" "$file")
    [ "$shown" = "MemTotal:        7340032 kB" ] || { echo "bench/meminfo.sh: $file does not show the group: $shown" >&2; exit 1; }
done

echo "$(uname -sr), $(nproc) CPUs, $(lxcfs --version 2>&1 | tail -n 1), $reads reads each; load $(cut -d' ' -f1 /proc/loadavg)"
echo "RSS in kB: ours $(awk '/^VmRSS/ { print $2 }' /proc/$ours/status), lxcfs $(awk '/^VmRSS/ { print $2 }' /proc/$lxcfs/status)"
printf '%-9s %-6s %-7s %9s %9s %9s\n' CPUs round file 'p50 us' 'p99 us' reads/s
for servers in $here $there; do
    for server in $ours $lxcfs; do taskset --all-tasks -cp "$servers" "$server" >/dev/null; done
    [ "$servers" = "$here" ] && where=same || where=other
    for round in $(seq $rounds); do
        for target in "kernel /proc/meminfo" "ours $work/files/meminfo" "lxcfs $work/lxcfs/proc/meminfo"; do
            result=$(measure $here "${target#* }")
            # shellcheck disable=SC2086
            printf '%-9s %-6s %-7s %9s %9s %9s\n' $where $round ${target%% *} $result
        done
    done
    [ "$here" = "$there" ] && break
done
