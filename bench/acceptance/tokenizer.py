"""Tokenizer of a GGUF file in the form of Hugging Face, for tools that count tokens themselves.

Usage: tokenizer.py MODEL.gguf FOLDER

Reads byte-level BPE with the pre-tokenizer of SmolLM2 (single digits, then the pattern of GPT-2), and nothing else.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
CONTROL = 3


def number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]


def value(file: BinaryIO, kind: int) -> Any:
    """Value of a key."""
    if kind == TEXT:
        return file.read(number(file, "Q")).decode()
    if kind == ARRAY:
        inner, count = number(file, "I"), number(file, "Q")
        return [value(file, inner) for _ in range(count)]
    return number(file, FORMS[kind])


def metadata(path: Path) -> dict[str, Any]:
    """Keys of a GGUF file with their values."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            sys.exit(f"{path} is no GGUF file")
        _version, _tensors, keys = (number(file, form) for form in "IQQ")
        return {value(file, TEXT): value(file, number(file, "I")) for _ in range(keys)}


def tokenizer(keys: dict[str, Any]) -> dict[str, Any]:
    """Contents of `tokenizer.json`."""
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [
        {"id": number, "content": text, "special": True, **flags}
        for number, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {text: number for number, text in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in keys["tokenizer.ggml.merges"]],
    }
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, level]},
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True},
        "model": model,
    }


def write(model: Path, folder: Path, template: str | None = None) -> None:
    """Writes the tokenizer of a GGUF file, with its chat template or another one."""
    keys = metadata(model)
    if (keys["tokenizer.ggml.model"], keys.get("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        sys.exit(f"{model} has another tokenizer than SmolLM2's")
    folder.mkdir(parents=True, exist_ok=True)
    tokens = keys["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[keys["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[keys["tokenizer.ggml.eos_token_id"]],
        "chat_template": template or keys["tokenizer.chat_template"],
        "model_max_length": keys["llama.context_length"],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(keys), ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
