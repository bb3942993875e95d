"""`python -m omni`: for authors on a laptop.

python -m omni run DIR [--port PORT] [--reload]    serve one model without a node
python -m omni --version
"""

from __future__ import annotations

import os
import sys

import omni

# `-m` puts the current directory first in sys.path. In a model's own directory its files would then be what this
# program gets for modules of Python's library.
if os.path.realpath(sys.path[0]) not in [os.path.dirname(os.path.realpath(path)) for path in omni.__path__]:
    del sys.path[0]

import argparse
from pathlib import Path

from omni._version import VERSION


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m omni", description="Try an Omni model without a node.")
    parser.add_argument("--version", action="version", version=f"omni {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve the model in DIR over HTTP")
    run.add_argument("directory", type=Path, metavar="DIR")
    run.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1; 0 takes a free one (default: 8000)")
    run.add_argument("--reload", action="store_true", help="load the model anew when one of its files changes")
    options = parser.parse_args(arguments)
    if not options.directory.is_dir():
        parser.error(f"{options.directory} is not a directory")

    from omni._run.program import serve

    return serve(options.directory.resolve(), options.port, options.reload)


if __name__ == "__main__":
    sys.exit(main())
