"""Writes a model of random weights as a GGUF file that llama.cpp serves: `python3 gguf.py PATH [WIDTH LAYERS]`.

Architecture llama; the vocabulary is the 256 bytes, two control tokens and an unknown one. The text is noise, but all
else is as with a model that was trained: the chat template, tool calls and JSON that a grammar keeps, usage, limits.
The weights are the same each time.
"""

from __future__ import annotations

import array
import random
import struct
import sys

HEADS = 4
CONTEXT = 4096
VOCABULARY = 259
TEMPLATE = """\
{%- if tools %}Functions:{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.tool_calls %}{"name": "{{ message.tool_calls[0].function.name }}", "parameters": {{
 message.tool_calls[0].function.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
UNKNOWN, CONTROL, BYTE = 2, 3, 6
ALIGNMENT = 32


def text(value: str) -> bytes:
    """A string of the format."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def items(kind: int, values: list[bytes]) -> bytes:
    """An array of the format."""
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def metadata(width: int, layers: int) -> list[tuple[str, int, bytes]]:
    """The keys with types and values."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    numbers = {
        "llama.context_length": CONTEXT,
        "llama.embedding_length": width,
        "llama.block_count": layers,
        "llama.feed_forward_length": 2 * width,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.rope.dimension_count": width // HEADS,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return [
        ("general.architecture", STRING, text("llama")),
        ("general.name", STRING, text("noise")),
        *((name, U32, struct.pack("<I", number)) for name, number in numbers.items()),
        ("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        ("tokenizer.ggml.model", STRING, text("llama")),
        ("tokenizer.ggml.tokens", ARRAY, items(STRING, [text(name) for name in names])),
        ("tokenizer.ggml.scores", ARRAY, items(F32, [struct.pack("<f", 0)] * VOCABULARY)),
        ("tokenizer.ggml.token_type", ARRAY, items(5, [struct.pack("<i", kind) for kind in types])),
        ("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
        ("tokenizer.ggml.add_space_prefix", BOOL, b"\0"),
        ("tokenizer.chat_template", STRING, text(TEMPLATE)),
    ]


def tensors(width: int, layers: int) -> list[tuple[str, list[int]]]:
    """Names and shapes, the fastest dimension first; what has one dimension is all ones."""
    shapes = [("token_embd.weight", [width, VOCABULARY])]
    for layer in range(layers):
        within = [
            ("attn_norm", [width]),
            *((f"attn_{part}", [width, width]) for part in ("q", "k", "v", "output")),
            ("ffn_norm", [width]),
            ("ffn_gate", [width, 2 * width]),
            ("ffn_up", [width, 2 * width]),
            ("ffn_down", [2 * width, width]),
        ]
        shapes += [(f"blk.{layer}.{name}.weight", shape) for name, shape in within]
    return [*shapes, ("output_norm.weight", [width]), ("output.weight", [width, VOCABULARY])]


def weights(shape: list[int], chance: random.Random) -> bytes:
    """Weights of a tensor: rows of noise, repeated with other signs where there are many."""
    if len(shape) == 1:
        return array.array("f", [1.0] * shape[0]).tobytes()
    size, some = shape[0] * shape[1], [chance.gauss(0, shape[0] ** -0.5) for _ in range(65_537)]
    values = array.array("f", some * (size // len(some) + 1))
    return values[:size].tobytes()


def write(path: str, width: int = 64, layers: int = 2) -> None:
    """Writes the file."""
    keys, shapes = metadata(width, layers), tensors(width, layers)
    chance = random.Random(7)
    head, body, at = [], [], 0
    for name, shape in shapes:
        data = weights(shape, chance)
        dimensions = struct.pack(f"<{len(shape)}Q", *shape)
        head.append(text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", 0, at))
        body.append(data + bytes(-len(data) % ALIGNMENT))
        at += len(body[-1])
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)))
        for name, kind, value in keys:
            file.write(text(name) + struct.pack("<I", kind) + value)
        file.write(b"".join(head))
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(b"".join(body))


if __name__ == "__main__":
    write(sys.argv[1], *(int(number) for number in sys.argv[2:4]))
