"""Keys of `omni.toml` with the values that each takes. Equal to `config/schema/omni.schema.json`: a test compares."""

from __future__ import annotations

from typing import Any, NamedTuple, Union


class Text(NamedTuple):
    """A text of this form."""

    pattern: str
    expected: str


class Number(NamedTuple):
    """A number within bounds."""

    least: float
    most: float
    is_whole: bool = True


class Items(NamedTuple):
    """A list of such values."""

    item: Any


Kind = Union[Text, Number, Items, tuple[Any, ...]]
"""Values of a key; a plain tuple lists them."""

MOST_ITEMS = 256
"""Values in a list."""

TEXT = Text("", 'a text such as "value"')
FLAG = (True, False)
SIZE = Text("^[0-9]+(B|KiB|MiB|GiB|TiB)$", 'a size such as "512MiB"')
DURATION = Text("^[0-9]+(ms|s|m|h|d)$", 'a duration such as "30s"')
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_MODULE = rf"{_NAME}(\.{_NAME})*"

KEYS: dict[str, dict[str, Kind]] = {
    "model": {
        "kind": (
            "custom",
            "text-generation",
            "embeddings",
            "rerank",
            "speech-to-text",
            "text-to-speech",
            "text-to-image",
        ),
        "entrypoint": Text(f"^{_MODULE}:{_NAME}$", 'module and function such as "model:handle_request"'),
    },
    "runtime": {
        "engine": ("python", "openai", "native"),
        "python": ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"),
        "interpreter": Text("^(/.*)?$", "an absolute path"),
        "command": Items(TEXT),
    },
    "python": {
        "preload": Items(Text(f"^{_MODULE}$", 'the name of a module, such as "numpy"')),
        "zygote": (True, False, "auto"),
        "require-hashes": FLAG,
    },
    "generation": {
        "honours": Items(
            (
                "audio",
                "ignore-eos",
                "images",
                "json-object",
                "json-schema",
                "literal-ranges",
                "logit-bias",
                "logprobs",
                "max-tokens",
                "min-p",
                "min-tokens",
                "penalties",
                "repetition-penalty",
                "seed",
                "token-prompts",
                "top-k",
            )
        )
    },
    "chat": {"render": ("node", "model"), "tool-parser": TEXT, "reasoning-parser": TEXT},
    "batching": {"max": Number(1, 1 << 20), "cost": ("requests", "inputs", "tokens"), "isolate": FLAG},
    "weights": {
        "source": Text("^((s3://|hf://|https://|http://|file:///).+)?$", "a folder such as file:///srv/weights"),
        "sha256": Text("^([0-9A-Fa-f]{64})?$", "a SHA-256"),
        "files": Items(Text(r"^[^\s].*$", "a line of `sha256sum`, or a path below the source")),
    },
    "resources": {
        "memory": SIZE,
        "cpus": Number(0.01, 1024, is_whole=False),
        "pids": Number(1, 32768),
        "gpu-memory": SIZE,
        "gpu-mode": ("unified", "device", "sleep"),
    },
    "scaling": {
        "min-instances": Number(0, 1024),
        "max-instances": Number(1, 1024),
        "concurrency": Number(1, 1024),
        "idle-timeout": DURATION,
        "queue": Number(0, 100_000),
        "priority": Number(0, 9),
    },
    "timeouts": {
        "startup": DURATION,
        "request": DURATION,
        "drain": DURATION,
        "cancel-grace": DURATION,
        "healthcheck": DURATION,
    },
    "limits": {"body": SIZE, "body-handover": FLAG, "cache": SIZE, "tmp": SIZE},
    "logs": {"libraries": ("debug", "info", "warning", "error")},
    "network": {"access": ("none", "host")},
}
"""Sections with their keys. Beside them stand `schema` and `[env]`."""

SCHEMA = Number(1, 1)

VARIABLE = (
    "^(?!LD_|OMNI_|(CUDA_CACHE_PATH|CUDA_DEVICE_ORDER|CUDA_VISIBLE_DEVICES|GLIBC_TUNABLES|HOME|LOGNAME|PATH|PWD"
    "|PYTHONHOME|PYTHONPATH|SHELL|TMPDIR|USER|VIRTUAL_ENV)$)[A-Za-z_][A-Za-z0-9_]{0,127}$"
)
"""Names of variables in `[env]`."""

TOOL_PARSERS = (
    "auto",
    "hermes",
    "qwen3-coder",
    "llama-3",
    "pythonic",
    "mistral",
    "deepseek-v3",
    "deepseek-v3.2",
    "kimi-k2",
    "glm-4.5",
    "minimax-m2",
    "gemma-4",
    "gpt-oss",
    "json",
    "none",
)
"""Values of `tool-parser` (`gateway/tool-parser/src/dialect.rs`)."""

REASONING_PARSERS = (
    "auto",
    "none",
    "think",
    "brackets",
    "seed",
    "command",
    "channel",
    "granite",
    "triangles",
    "thought",
    "inner",
    "steps",
)
"""Values of `reasoning-parser` (`gateway/tool-parser/src/reasoning.rs`)."""
