#!/usr/bin/env python3
"""Perplexity of the engine's forms of weights beside that of 32-bit numbers, over texts that are on every machine.

Usage: .omni/venv/bin/python bench/perplexity.py [MODEL.gguf]    (after `make build`)

Ten windows of 1,024 tokens each of three texts: this repository's documents, the reference of the language that comes
with Python, and the source of a module of Python. The model's own numbers are its quantised weights, as 32-bit numbers:
the other forms are made of those, so that a difference is the form's alone. Fails where int8 is more than 1 % worse.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import gguf
from node import BIN, ROOT
from report import machine

WINDOW, WINDOWS = 1024, 10
MOST_WORSE = 1.0  # percent
DEFAULT = ROOT / "models/chat/SmolLM2-135M-Instruct.Q4_1.gguf"


def texts(folder: Path) -> dict[str, Path]:
    """Files of the texts, by their names for the table."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {
        "documents": "\n".join(page.read_text() for page in pages),
        "reference": "\n".join(topics[topic] for topic in sorted(topics)),
        "source": Path(argparse.__file__).read_text(),
    }
    paths = {}
    for name, text in found.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text(text)
    return paths


def perplexity(model: Path, weights: str, text: Path) -> float:
    command = [BIN / "omni-engine", "perplexity", model, text, "--weights", weights]
    command += ["--window", str(WINDOW), "--windows", str(WINDOWS)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if len(result["windows"]) != WINDOWS:
        sys.exit(f"{text.name} is too short: {len(result['windows'])} windows")
    return float(result["perplexity"])


def main() -> None:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    machine()
    print(f"{model.name}; {WINDOWS} windows of {WINDOW} tokens; Python {platform.python_version()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="omni-perplexity-") as name:
        folder = Path(name)
        wide, half = folder / "f32.gguf", folder / "bf16.gguf"
        gguf.copy(model, wide, gguf.F32)
        gguf.copy(model, half, gguf.BF16)
        forms = [
            ("32-bit numbers", wide, "f32"),
            ("as the file has them, 4 and 8 bits", model, "as-stored"),
            ("BF16", half, "as-stored"),
            ("rounded to 8 bits at load", wide, "int8"),
            ("rounded to 4 bits at load", wide, "int4"),
        ]
        files = texts(folder)
        print("| weights | " + " | ".join(files) + " | all |\n|" + " --- |" * (len(files) + 2), flush=True)
        reference: list[float] = []
        worst = -math.inf
        for what, path, weights in forms:
            found = [perplexity(path, weights, text) for text in files.values()]
            found.append(math.exp(sum(map(math.log, found)) / len(found)))
            reference = reference or found
            worse = [100 * (mine / exact - 1) for mine, exact in zip(found, reference, strict=True)]
            if weights == "int8":
                worst = max(worse)
            cells = (f"{value:.3f} ({percent:+.2f} %)" for value, percent in zip(found, worse, strict=True))
            print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nint8 is at most {worst:.2f} % worse, {MOST_WORSE} % are allowed")
    if worst > MOST_WORSE:
        sys.exit(1)


if __name__ == "__main__":
    main()
