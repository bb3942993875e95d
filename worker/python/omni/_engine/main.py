"""The engine: `python /omni/python/omni/_engine/main.py`, started by the sandbox's init with descriptor 3 open.

Reads `boot`, loads the model, says `ready` or `failed`, then serves the data connections that it is given until `stop`.
When the first message is `preload` instead, it is a zygote, and all that happens in its copies.

    exit code 0    stopped
              1    setup or healthcheck failed, or the engine cannot go on: trying again may help
             78    the model cannot be imported or has no such entry point: trying again cannot help
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # A script's own directory comes first in sys.path; the engine's modules are imported through the package only.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni._engine.control import Control
    from omni._engine.model import Model
    from omni._engine.serial import Serial
    from omni._engine.tasks import Tasks
    from omni._engine.threads import Threads


def main() -> int:
    """Runs the engine; returns its exit code."""
    from omni._engine import output
    from omni._engine.control import Control
    from omni._engine.descriptors import give_up

    output.take()
    try:
        return _serve(Control())
    except Exception as err:
        give_up(err)
        return 1


def _serve(control: Control) -> int:
    # Before the model: its directory then comes first in sys.path and may hold a `select.py` or a `queue.py`.
    from omni._engine import outcome, output, serial  # noqa: F401
    from omni._engine.control import PERMANENT_FAILURE
    from omni._engine.model import LoadError, Model

    first = control.receive()
    if first is not None and first[0]["type"] == "preload":
        from omni._engine import zygote

        forked = zygote.run(control, first[0])
        if isinstance(forked, int):
            return forked
        control = forked
        first = control.receive()
    if first is None:
        return 1
    boot, _ = first
    if boot["type"] != "boot":
        raise ValueError(f"the first message is `boot`, not `{boot['type']}`")
    output.answer_for_stacks()  # not before: a zygote has no threads
    try:
        if boot["engine"]["kind"] == "openai":
            from omni._engine.openai.model import ServerModel

            model: Model = ServerModel(boot)
        else:
            model = Model(boot)
    except LoadError as err:
        control.failed(err.phase, err.message)
        return PERMANENT_FAILURE if err.permanent else 1
    runner = runner_for(model)
    control.ready(runner.mode)
    while True:
        runner.wait(control.socket)
        message = control.receive()
        if message is None:
            return 1
        told, sockets = message
        if told["type"] == "attach":
            data, cancel = sockets
            runner.serve(data, cancel, control.socket)
        elif told["type"] == "stop":
            runner.finish(control.socket)
            model.teardown()
            return 0
        else:
            raise ValueError(f"omni-worker sent `{told['type']}`")


def runner_for(model: Model) -> Serial | Tasks | Threads:
    """The way this model's handler is run. Only what is needed is imported: asyncio alone costs 40 ms."""
    if model.is_async:
        from omni._engine.tasks import Tasks

        return Tasks(model)
    if model.concurrency > 1:
        from omni._engine.threads import Threads

        return Threads(model)
    from omni._engine.serial import Serial

    return Serial(model)


if __name__ == "__main__":
    sys.exit(main())
