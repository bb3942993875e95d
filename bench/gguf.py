"""GGUF files for the benchmarks of the engine: noise in the shape of a small Llama, and copies in wider numbers.

Needs numpy, which `make test` puts into .omni/venv.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
# Values and bytes of a block.
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q4_1: (32, 20), Q8_0: (32, 34), BF16: (1, 2)}
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ALIGNMENT = 32

HIDDEN, LAYERS, HEADS, KV_HEADS, WIDTH, FEED_FORWARD, VOCABULARY = 768, 12, 12, 4, 64, 2048, 32_000


@dataclass
class Tensor:
    """A tensor of a file: its shape is the innermost dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: Any

    @property
    def size(self) -> int:
        """Bytes."""
        values, size = BLOCKS[self.kind]
        return int(np.prod(self.shape)) // values * size


class Reader:
    """A file, mapped, with a position."""

    def __init__(self, path: Path) -> None:
        self.bytes = np.memmap(path, np.uint8, "r")
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.bytes[self.at - size : self.at].tobytes()

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0])

    def skip(self, kind: int) -> None:
        """Passes a value of metadata."""
        if kind == STRING:
            size = self.number("Q")
            self.at += size
        elif kind == ARRAY:
            of, count = self.number("I"), self.number("Q")
            if of in SIZES:
                self.at += SIZES[of] * count
            else:
                for _ in range(count):
                    self.skip(of)
        else:
            self.at += SIZES[kind]


def read(path: Path) -> tuple[list[bytes], list[Tensor]]:
    """The values of metadata as they are, and the tensors. Files with an alignment of their own are none of these."""
    file = Reader(path)
    if file.take(4) != b"GGUF" or file.number("I") < 2:
        raise SystemExit(f"{path} is no GGUF file of version 2 or 3")
    tensors, values = file.number("Q"), file.number("Q")
    metadata = []
    for _ in range(values):
        start = file.at
        file.skip(STRING)
        file.skip(file.number("I"))
        metadata.append(file.bytes[start : file.at].tobytes())
    found = []
    for _ in range(tensors):
        name = file.take(file.number("Q")).decode()
        shape = tuple(file.number("Q") for _ in range(file.number("I")))
        kind, offset = file.number("I"), file.number("Q")
        if kind not in BLOCKS:
            raise SystemExit(f"{path}: {name} has a type that is not read here: {kind}")
        found.append((offset, Tensor(name, shape, kind, None)))
    start = file.at + -file.at % ALIGNMENT
    for offset, tensor in found:
        tensor.data = file.bytes[start + offset : start + offset + tensor.size]
    return metadata, [tensor for _, tensor in found]


def write(path: Path, metadata: list[bytes], tensors: Iterator[Tensor], described: list[Tensor]) -> None:
    """Writes a file. The tensors come one by one, in the order in which they are described."""
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(described), len(metadata)) + b"".join(metadata))
        offset = 0
        for tensor in described:
            file.write(text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
            file.write(struct.pack("<IQ", tensor.kind, offset))
            offset += tensor.size + -tensor.size % ALIGNMENT
        for tensor in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            file.write(np.ascontiguousarray(tensor.data).data)


def copy(source: Path, target: Path, kind: int) -> None:
    """Copies a file with all its weights in numbers of another kind, F32 or BF16. Vectors stay in F32."""
    metadata, tensors = read(source)
    kinds = [F32 if len(tensor.shape) == 1 else kind for tensor in tensors]
    described = [Tensor(tensor.name, tensor.shape, to, None) for tensor, to in zip(tensors, kinds, strict=True)]

    def converted() -> Iterator[Tensor]:
        for tensor, to in zip(tensors, kinds, strict=True):
            values = numbers(tensor)
            yield Tensor(tensor.name, tensor.shape, to, rounded(values) if to == BF16 else values)

    write(target, metadata, converted(), described)


def numbers(tensor: Tensor) -> Any:
    """Values of a tensor."""
    data, kind = tensor.data, tensor.kind
    if kind == F32:
        return data.view("<f4")
    if kind == F16:
        return data.view("<f2").astype(np.float32)
    if kind == BF16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = data.reshape(-1, BLOCKS[kind][1])
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return scale * blocks[:, 2:].view(np.int8).astype(np.float32)
    packed = blocks[:, 2 if kind == Q4_0 else 4 :]
    quants = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    if kind == Q4_0:
        return scale * (quants - 8)
    return scale * quants + blocks[:, 2:4].copy().view("<f2").astype(np.float32)


def rounded(values: Any) -> Any:
    """Numbers of 16 bits, 8 of them the exponent, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def noise(path: Path) -> None:
    """Writes 124.7 million weights of noise in BF16 in the shape of a small Llama, the same each time."""

    def value(key: str, kind: int, data: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + data

    def items(key: str, kind: int, elements: list[bytes]) -> bytes:
        return value(key, ARRAY, struct.pack("<IQ", kind, len(elements)) + b"".join(elements))

    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [f"<extra_{number}>" for number in range(VOCABULARY - len(names))]
    types = [2, 3, 3, *[6] * 256, *[5] * (VOCABULARY - 259)]
    sizes = {
        "llama.context_length": 8192,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": WIDTH,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    metadata = [
        value("general.architecture", STRING, text("llama")),
        *(value(key, 4, struct.pack("<I", size)) for key, size in sizes.items()),
        value("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        value("tokenizer.ggml.model", STRING, text("llama")),
        items("tokenizer.ggml.tokens", STRING, [text(name) for name in names]),
        items("tokenizer.ggml.scores", 6, [struct.pack("<f", 0)] * VOCABULARY),
        items("tokenizer.ggml.token_type", 5, [struct.pack("<i", kind) for kind in types]),
    ]
    matrices = {
        "attn_q": (HIDDEN, HEADS * WIDTH),
        "attn_k": (HIDDEN, KV_HEADS * WIDTH),
        "attn_v": (HIDDEN, KV_HEADS * WIDTH),
        "attn_output": (HEADS * WIDTH, HIDDEN),
        "ffn_gate": (HIDDEN, FEED_FORWARD),
        "ffn_up": (HIDDEN, FEED_FORWARD),
        "ffn_down": (FEED_FORWARD, HIDDEN),
    }
    described = [Tensor(name, (HIDDEN, VOCABULARY), BF16, None) for name in ("token_embd.weight", "output.weight")]
    described.append(Tensor("output_norm.weight", (HIDDEN,), F32, None))
    for layer in range(LAYERS):
        described += [Tensor(f"blk.{layer}.{norm}.weight", (HIDDEN,), F32, None) for norm in ("attn_norm", "ffn_norm")]
        described += [Tensor(f"blk.{layer}.{name}.weight", shape, BF16, None) for name, shape in matrices.items()]
    chance = np.random.default_rng(0)

    def filled() -> Iterator[Tensor]:
        for tensor in described:
            if tensor.kind == F32:
                data = np.ones(tensor.shape, np.float32)
            else:
                data = rounded(chance.standard_normal(tensor.shape, np.float32) * 0.02)
            yield Tensor(tensor.name, tensor.shape, tensor.kind, data)

    write(path, metadata, filled(), described)
