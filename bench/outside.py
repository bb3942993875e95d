"""Processor time of unrelated programs during a benchmark: the machine's own effect on latencies.

Called by the benchmarks of tail latencies. A monitor that reads /proc once a second for some milliseconds is met by as
many requests as are due in these, and at a hundred a second that is one in a hundred: it decides a p99 alone. Such
requests cannot be recognised by their latency; the kernel's record of scheduling (`perf record`, Debian's linux-perf)
identifies them.

Invariant: a program is outside only if it was there before the benchmark started anything and has a command line. The
kernel's own threads have none, and are not: a model may cause their work.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from node import processes

# Shorter turns are not felt beside requests of milliseconds.
SHORTEST = 0.0002
SWITCH = re.compile(r"\[(\d+)\]\s+([\d.]+):.* next_pid=(\d+) ")
Turn = tuple[float, float]


def available() -> bool:
    """True if this machine has `perf`."""
    return shutil.which("perf") is not None


def strangers() -> set[int]:
    """The programs that are there now, without this one: to be called before anything is started."""
    return {pid for pid in processes() if pid != os.getpid() and _has_a_command(pid)}


class Record:
    """Records from now on when each program runs. Its processes and files are gone after `turns`."""

    def __init__(self, outside: set[int]) -> None:
        self._outside = outside
        self._folder = tempfile.TemporaryDirectory(prefix="omni-outside-")
        self._data = Path(self._folder.name) / "perf.data"
        command: list[str | Path] = ["perf", "record", "--quiet", "--all-cpus", "--clockid", "CLOCK_MONOTONIC"]
        # The buffers are large enough that nothing is written, and nothing disturbed, for about a minute.
        command += ["--mmap-pages", "16M", "--event", "sched:sched_switch", "--output", self._data]
        self._perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def turns(self) -> list[Turn]:
        """When any program outside had any processor, in seconds of the monotonic clock."""
        self._perf.send_signal(signal.SIGINT)
        self._perf.wait()
        threads = {int(task.name) for pid in self._outside for task in _tasks(pid)}
        command = ["perf", "script", "--input", str(self._data), "--fields", "cpu,time,event,trace"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self._folder.cleanup()
        return _turns(SWITCH.findall(told), threads)


def met(begin: float, seconds: float, turns: Iterable[Turn]) -> bool:
    """True if a request that was due at this moment, and took this long, met any of the turns."""
    return any(begin < until and since < begin + seconds for since, until in turns)


def _turns(switches: list[tuple[str, str, str]], threads: set[int]) -> list[Turn]:
    """A turn lasts until the next switch on its processor that is recorded. Where its own is not, which was seen
    of one that runs as process 1, the turn includes the next program, which got the processor late because of it.
    """
    since: dict[str, float] = {}
    found = []
    for processor, moment, after in switches:
        if processor in since:
            found.append((since.pop(processor), float(moment)))
        if int(after) in threads:
            since[processor] = float(moment)
    return [(begin, end) for begin, end in found if end - begin >= SHORTEST]


def _has_a_command(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
