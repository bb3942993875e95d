"""All probes, in the order in which they are tried: in the model, in a package's build and in the control run."""

import descriptors  # noqa: F401  first: its inventory is that of a process in which no probe has opened anything yet
import files  # noqa: F401
import kernel  # noqa: F401
import processes  # noqa: F401
import sockets  # noqa: F401
from attempt import PROBES, outcome


def try_all(world):
    """The outcome of every probe, by its name."""
    return {name: outcome(name, world) for name in PROBES}
