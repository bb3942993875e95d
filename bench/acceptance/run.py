#!/usr/bin/env python3
"""Tools of others against the native engine, alone and through a node: lm-eval, giraffe, aiperf. `make engine-test`.

Usage: run.py [--only lm-eval,giraffe,aiperf] [--servers alone,node]     (as root, after `setup/tools.sh engine`)

The model is that of models/chat, SmolLM2-135M-Instruct. Prints what passed and what did not, and exits with 1 if
anything did not. Takes the programs of OMNI_BIN, by default those of `make build`; reports are in target/acceptance.

| tool | what it must show |
| --- | --- |
| lm-eval | generated text, and choices by the log probabilities of a repeated prompt, right as often as this model is |
| giraffe | each of its checks that is about a server; what a larger model would know is not counted |
| aiperf | no failed request, and usage with the numbers of tokens that it has made and asked for |
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import tokenizer  # noqa: E402  beside this file
from node import BIN, ROOT, Node, until  # noqa: E402  the benchmarks' folder comes first
from report import machine, row  # noqa: E402

CHAT = ROOT / "models/chat"
WEIGHTS = CHAT / "SmolLM2-135M-Instruct.Q4_1.gguf"
REPORTS = ROOT / "target/acceptance"
TOOLS = ROOT / ".omni/engine"
NAME = "chat"
PATIENCE = 600
# Right answers of 16 that are asked for: chance alone is four of the choices, and none of the capitals.
LEAST_CAPITALS, LEAST_CHOICES = 12 / 16, 12 / 16
REQUESTS, PROMPT, TOKENS = 40, 128, 32
CHECKS = "access,serving,first_output,generation,context,correctness,json,cancellation,recovery,consistency"
# Nothing is fetched from anywhere: data and tokenizer are here. Told so, aiperf does not take a folder for a tokenizer.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


# Words, figure, and whether it passed.
Result = tuple[str, str, bool]


@dataclass(frozen=True)
class Server:
    """A server with the OpenAI API. `template`: that of its conversations, if not that of the weights."""

    name: str
    address: str
    template: str | None


@contextlib.contextmanager
def alone() -> Iterator[Server]:
    """The engine as a program of its own."""
    log = REPORTS / "alone.log"
    command = [BIN / "omni-engine", "serve", WEIGHTS, "--name", NAME, "--listen", "127.0.0.1:0"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            until("the engine", lambda: " at http://" in log.read_text() or process.poll() is not None)
            if process.poll() is not None:
                sys.exit(log.read_text())
            yield Server("alone", log.read_text().split(" at ", 1)[1].split("/v1", 1)[0], template=None)
        finally:
            process.terminate()


@contextlib.contextmanager
def through_a_node() -> Iterator[Server]:
    """The engine as a model of a node."""
    with tempfile.TemporaryDirectory(prefix="omni-weights-") as folder:
        Path(folder).chmod(0o755)
        shutil.copy(WEIGHTS, folder)
        manifest = (CHAT / "omni.toml").read_text() + f'\n[weights]\nsource = "file://{folder}"\n'
        template = (CHAT / "chat_template.jinja").read_text()
        files = {"omni.toml": manifest, "chat_template.jinja": template}
        with Node({NAME: files}, config=f'[weights]\nfolders = ["{folder}"]\n') as node:
            host, port = node.address
            yield Server("node", f"http://{host}:{port}", template=template)


SERVERS = {"alone": alone, "node": through_a_node}


def call(
    run: str, server: Server, command: list[str | Path], folder: Path = HERE, more: dict[str, str] | None = None
) -> tuple[int, Path]:
    """Runs a tool of its own environment. Returns its status, and the folder of its reports."""
    into = REPORTS / f"{run}-{server.name}"
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    program = next(TOOLS.glob(f"*/bin/{command[0]}"), None)
    if program is None:
        sys.exit(f"{command[0]} is missing: `setup/tools.sh engine` fetches it")
    words = [str(word).replace("{into}", str(into)) for word in command[1:]]
    environment = {**os.environ, **(OFFLINE if more is None else more)}
    environment |= {"NO_COLOR": "1", "HF_HOME": str(into / "home"), "HOME": str(into / "home")}
    with (into / "log").open("w") as log:
        done = subprocess.run(
            [program, *words], cwd=folder, env=environment, stdout=log, stderr=log, check=False, timeout=PATIENCE
        )
    return done.returncode, into


def lm_eval(server: Server, tokens: Path) -> list[Result]:
    tasks = ["omni_capitals", "omni_choices"]
    model = {
        "model": NAME,
        "base_url": f"{server.address}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": tokens,
        "num_concurrent": 4,
        "max_length": 2048,
    }
    arguments = ",".join(f"{key}={value}" for key, value in model.items())
    command: list[str | Path] = ["lm_eval", "--model", "local-completions", "--model_args", arguments]
    command += ["--batch_size", "2", "--include_path", ".", "--tasks", ",".join(tasks)]
    status, into = call("lm-eval", server, [*command, "--output_path", "{into}", "--log_samples"], HERE / "tasks")
    reports = sorted(into.rglob("results_*.json"))
    results = json.loads(reports[-1].read_text())["results"] if reports else {}
    measures = {"omni_capitals": ("exact_match,none", LEAST_CAPITALS), "omni_choices": ("acc,none", LEAST_CHOICES)}
    rows = [("lm-eval ends well", f"status {status}", status == 0)]
    for task in tasks:
        measure, least = measures[task]
        share = results.get(task, {}).get(measure)
        rows.append((f"lm-eval {task}", "no result" if share is None else f"{share:.0%}", (share or 0) >= least))
    return rows


def giraffe(server: Server, tokens: Path) -> list[Result]:
    config = REPORTS / f"giraffe-{server.name}.json"
    target = {"name": server.name, "url": f"{server.address}/v1", "model": NAME, "tokenizer": str(tokens)}
    config.write_text(json.dumps({"targets": [target]}))
    command: list[str | Path] = ["giraffe", "run", "--config", config, "--max-requests", "400"]
    command += ["--checks", CHECKS, "--context-limit", "2048", "--max-output-tokens", "64", "--retention", "all"]
    # Right words are the model's affair, and lm-eval's. The times are wide: machines are shared.
    command += ["--min-correctness", "0", "--first-output-ms", "60000", "--latency-ms", "120000"]
    status, into = call("giraffe", server, [*command, "--output", "{into}/run"])
    report = into / "run/report.json"
    said = json.loads(report.read_text()) if report.exists() else {"checks": [], "requests": []}
    rows = [("giraffe reports", f"status {status}, {len(said['checks'])} checks", bool(said["checks"]))]
    for check in said["checks"]:
        if check["status"] != "skipped":
            rows.append((f"giraffe {check['title']}", *judged(check, said["requests"])))
    return rows


def judged(check: dict[str, Any], requests: list[dict[str, Any]]) -> tuple[str, bool]:
    """Figure of a check, and whether the server passed. A check that fails for a small model's words alone says so:
    it passes if every request was answered, but for those that the client gave up, and equal ones in the same words.
    """
    own = [request for request in requests if check["id"] in request["check_ids"]]
    own = [request for request in own if request["scenario"] not in ("client_cancel", "client_deadline")]
    scored = [request["score"] for request in own if request["score"] is not None]
    if check["status"] == "pass" or all(scored):
        return check["status"], check["status"] == "pass"
    is_served = all(request["status"] == "completed" and request["valid"] for request in own)
    words: dict[str, set[str]] = {}
    for request in own:
        words.setdefault(str(request.get("request_hash")), set()).add(request["output"])
    is_same = check["id"] != "consistency" or all(len(answers) == 1 for answers in words.values())
    figure = f"{check['status']}: {sum(scored)} of {len(scored)} answers right"
    return figure, is_served and is_same and not check["metrics"].get("timing_violations")


def aiperf(server: Server, tokens: Path) -> list[Result]:
    rows = []
    for kind in ("chat", "completions"):
        command: list[str | Path] = ["aiperf", "profile", "--model", NAME, "--url", server.address]
        command += ["--endpoint-type", kind, "--streaming", "--tokenizer", tokens, "--random-seed", "1"]
        command += ["--apply-chat-template"] if kind == "chat" else []
        command += ["--request-count", str(REQUESTS), "--concurrency", "4", "--isl", str(PROMPT), "--osl", str(TOKENS)]
        command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0", "--ui", "none"]
        status, into = call(f"aiperf-{kind}", server, [*command, "--artifact-dir", "{into}"], more={})
        reports = sorted(into.rglob("profile_export_aiperf.json"))
        report = json.loads(reports[-1].read_text()) if reports else {}

        def average(name: str, report: dict[str, Any] = report) -> float:
            return (report.get(name) or {}).get("avg", 0.0)

        requests, errors = average("request_count"), average("error_request_count")
        rows.append(
            (
                f"aiperf {kind}",
                f"status {status}, {requests:.0f} requests, {errors:.0f} errors",
                not status and requests == REQUESTS and not errors,
            )
        )
        # Not its own number of differences: with transformers 5 it leaves the template of a conversation out of that.
        prompt, answer = average("usage_prompt_tokens"), average("usage_completion_tokens")
        figure = f"{prompt:.1f} and {answer:.1f} tokens of {PROMPT} and {TOKENS}"
        # The tool takes the template around an empty text for its length, which can be one off: transformers counts
        # 127 tokens for its conversations by the template of models/chat, as the node does.
        rows.append((f"aiperf {kind}, usage as asked for", figure, abs(prompt - PROMPT) <= 1 and answer == TOKENS))
        first, between = average("time_to_first_token"), average("inter_token_latency")
        figure = f"{first:.0f} ms, then {between:.1f} ms"
        rows.append((f"aiperf {kind}, time to first token, and between", figure, first > 0 and between > 0))
    return rows


RUNS = {"lm-eval": lm_eval, "giraffe": giraffe, "aiperf": aiperf}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tools of others against the native engine")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--servers", default=",".join(SERVERS))
    chosen = parser.parse_args()
    if not WEIGHTS.exists():
        sys.exit(f"{WEIGHTS} is missing: `setup/tools.sh weights` fetches it")
    REPORTS.mkdir(parents=True, exist_ok=True)
    machine()
    failed = 0
    for name in chosen.servers.split(","):
        with SERVERS[name]() as server:
            tokens = REPORTS / f"tokenizer-{name}"
            tokenizer.write(WEIGHTS, tokens, server.template)
            for tool in chosen.only.split(","):
                for what, figure, passed in RUNS[tool](server, tokens):
                    row(f"{server.name}: {what}", figure, "", passed)
                    failed += not passed
    if failed:
        sys.exit(f"{failed} did not pass: see the logs in {REPORTS}")


if __name__ == "__main__":
    main()
