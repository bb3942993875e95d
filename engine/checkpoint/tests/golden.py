"""Writes golden.gguf: random blocks of every quantised type with their values by the gguf package's dequantisation.

Usage: golden.py OUTPUT    (needs gguf 0.19 and numpy from PyPI)
"""

import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K")
# Values of a row: two blocks of 256, so that rows and blocks differ.
ROWS, COLUMNS = 2, 512


def halves(random: np.random.Generator, count: int) -> np.ndarray:
    """Draws numbers of type F16 by their bits: of any exponent and sign, subnormal ones too, but finite."""
    bits = random.integers(0, 1 << 16, count, dtype=np.uint16)
    finite = np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits)
    return finite.astype("<u2").view(np.uint8).reshape(count, 2)


def blocks(random: np.random.Generator, kind: GGMLQuantizationType) -> np.ndarray:
    """Draws rows of blocks: random bytes, except for scales of type F16, which are finite."""
    values, size = GGML_QUANT_SIZES[kind]
    count = ROWS * COLUMNS // values
    drawn = random.integers(0, 256, (count, size), dtype=np.uint8)
    scales = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind.name, (0,))
    for at in scales:
        drawn[:, at : at + 2] = halves(random, count)
    return drawn.reshape(ROWS, -1)


def metadata(writer: GGUFWriter) -> None:
    """Adds a value of every type."""
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -100)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4_000_000_000)
    writer.add_int32("test.i32", -2_000_000_000)
    writer.add_uint64("test.u64", 1 << 63)
    writer.add_int64("test.i64", 1 << 40)
    writer.add_float32("test.f32", 0.1)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("test.text", "grüße")
    writer.add_array("test.texts", ["a", "", "ĠĠ", "日本"])
    writer.add_array("test.f32s", [0.5, -1.5])
    writer.add_array("test.i32s", [1, -2, 3])


def main() -> None:
    """Writes the file."""
    random = np.random.default_rng(1)
    writer = GGUFWriter(sys.argv[1], "golden")
    metadata(writer)
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        drawn = blocks(random, kind)
        writer.add_tensor(f"{name}.blocks", drawn, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", dequantize(drawn, kind))
    widths = random.integers(0, 256, (3, 64, 2), dtype=np.uint8)
    for name, bits in (("F16", halves(random, 192).reshape(3, 128)), ("BF16", widths.reshape(3, 128))):
        kind = GGMLQuantizationType[name]
        if name == "F16":
            writer.add_tensor("F16.numbers", bits.view(np.float16))
        else:
            writer.add_tensor("BF16.numbers", bits, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", dequantize(bits, kind))
    # Dimensions in an order that shows which one is the innermost.
    writer.add_tensor("stacked", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
