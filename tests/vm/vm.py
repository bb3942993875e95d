"""A guest that runs jobs: each in the same system, restored as it was saved, which is thrown away afterwards.

Called by the tests. A job is files, one of which is the shell script `run`; all of them lie in the guest's /job, the
working directory. The clock is right, root runs it, and there is no network.

Invariant: a job ends, by itself or by its limit; nothing of it is left, also after an interrupt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import debian
import image
import qemu


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit status, and what it printed."""

    status: int
    output: str


class Guest:
    """A release of Debian."""

    def __init__(self, release: str, folder: Path | None = None) -> None:
        self.release = release
        self._tools, self._image = image.tools(), folder or image.image(release)

    def after(self, name: str, files: Mapping[str, str | Path]) -> Guest:
        """The same as a job has left it, which is done once and kept under that name."""
        return Guest(self.release, image.after(self.release, name, files))

    def run(self, files: Mapping[str, str | Path], limit: float = 300) -> Outcome:
        """Runs a job and prints what it prints, as it comes.

        Raises RuntimeError when the job has not ended after `limit` seconds, or the guest died of it.
        """
        output = []
        with tempfile.TemporaryFile(dir=debian.VM) as job:
            qemu.pack(files, job)
            restore = ("-incoming", "file:state")
            with qemu.machine(self._tools, self._image, "snapshot=on", job, *restore) as process:
                for line in qemu.lines(process, limit):
                    if line.startswith("EXIT "):
                        return Outcome(int(line.removeprefix("EXIT ")), "\n".join(output))
                    print(line, flush=True)
                    output.append(line)
        raise RuntimeError(f"{self.release}: the job did not end within {limit} s, or QEMU did:\n" + "\n".join(output))
