//! Files that are broken or lie about themselves: each is refused with the reason.

use super::{open, refusal, sequence};
use crate::testing::{GgufType, GgufWriter};
use std::time::{Duration, Instant};

/// File of safetensors with this header and so many bytes of data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

fn check_safetensors(file: &[u8], message: &str) {
    let found = refusal(&[("model.safetensors", file)]);
    assert!(found.starts_with("model.safetensors: ") && found.contains(message), "{found}");
    assert!(found.len() < 500, "{} bytes", found.len());
}

fn check_gguf(file: &[u8], message: &str) {
    let found = refusal(&[("model.gguf", file)]);
    assert!(found.starts_with("model.gguf: ") && found.contains(message), "{found}");
    assert!(found.len() < 700, "{} bytes", found.len());
}

#[test]
fn safetensors_that_lie_are_refused() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (header, data, message) in [
        ("[]", 0, "has no header of safetensors: invalid type: sequence, expected an object"),
        ("{", 0, "has no header of safetensors: EOF"),
        ("\u{0}", 0, "has no header of safetensors: expected value"),
        (r#"{"x": 1}"#, 0, "tensor \"x\": has an entry in the header that cannot be read: invalid type"),
        (
            r#"{"x": {"dtype": "F32", "shape": [1]}}"#,
            4,
            "tensor \"x\": has an entry in the header that cannot be read: missing field",
        ),
        (&entry("F32", "[1]", "[0,4]"), 3, "tensor \"x\": ends 4 bytes after the header, beyond the file's end at 3."),
        (&entry("F32", "[1]", "[0,4]"), 5, "has 1 bytes after its last tensor."),
        (&entry("F32", "[1]", "[4,8]"), 8, "tensor \"x\": begins at byte 66 after a gap: nothing is at byte 62."),
        (
            &entry("F32", "[2]", "[0,4]"),
            4,
            "tensor \"x\": has the offsets 0 to 4, which is not the size of [2] numbers of type F32.",
        ),
        (&entry("F32", "[1]", "[4,0]"), 4, "tensor \"x\": has the offsets 4 to 0"),
        (
            &entry("F32", "[1]", "[-4,0]"),
            4,
            "tensor \"x\": has an entry in the header that cannot be read: invalid value",
        ),
        (&entry("F32", "[1.5]", "[0,4]"), 4, "tensor \"x\": has an entry in the header that cannot be read"),
        (&entry("F32", "[0]", "[0,0]"), 0, "tensor \"x\": has no elements: its shape is [0]."),
        (
            &entry("F32", "[4294967296,4294967296,4294967296]", "[0,4]"),
            4,
            "tensor \"x\": has a shape whose number of elements is beyond any memory",
        ),
        (&entry("F64", "[2305843009213693951]", "[0,18446744073709551608]"), 4, "tensor \"x\": has the offsets"),
        (
            &entry("U8", "[1]", "[18446744073709551614,18446744073709551615]"),
            4,
            "tensor \"x\": ends 18446744073709551615 bytes after the header",
        ),
        (&entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "tensor \"x\": has 9 dimensions, more than 8."),
        (&entry("F5", "[1]", "[0,4]"), 4, "tensor \"x\": has the unknown type \"F5\"."),
        (
            &entry("F4", "[1]", "[0,1]"),
            1,
            "tensor \"x\": has the offsets 0 to 1, which is not the size of [1] numbers of type F4.",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
            3,
            "tensor \"y\": begins at byte 114, within tensor \"x\".",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
            2,
            "tensor \"x\": is there twice.",
        ),
        (
            r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0078":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
            2,
            "tensor \"x\": is there twice.",
        ),
        (r#"{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1, "tensor \"\": has no name."),
    ] {
        check_safetensors(&safetensors(header, data), message);
    }
}

#[test]
fn safetensors_of_wrong_length_are_refused() {
    check_safetensors(b"", "has 0 bytes, too few for a safetensors file.");
    check_safetensors(b"1234567", "has 7 bytes, too few");
    check_safetensors(&100_u64.to_le_bytes(), "is cut short: its header should have 100 bytes, there are 0.");
    check_safetensors(&u64::MAX.to_le_bytes(), "has a header of 18446744073709551615 bytes, more than 100000000.");
}

#[test]
fn long_foreign_texts_are_shortened_in_messages() {
    let long = "x".repeat(100_000);
    let entry = |name: &str, dtype: &str, shape: &str| {
        format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,4]}}}}"#)
    };
    check_safetensors(&safetensors(&entry(&long, "F32", "[1]"), 4), "has a name of 100000 bytes that begins like this");
    check_safetensors(&safetensors(&entry("x", &long, "[1]"), 4), "tensor \"x\": has the unknown type");
    check_safetensors(&safetensors(&entry("x", "F32", &format!("\"{long}\"")), 4), "tensor \"x\": has an entry");
}

#[test]
fn deep_json_is_refused_without_a_deep_stack() {
    let deep = "[".repeat(1_000_000);
    check_safetensors(&safetensors(&deep, 0), "has no header of safetensors");
    check_safetensors(&safetensors(&format!("{{\"x\":{deep}"), 0), "has no header of safetensors");
    let closed = format!("{{\"x\":{deep}{}}}", "]".repeat(1_000_000));
    check_safetensors(&safetensors(&closed, 0), "tensor \"x\": has an entry in the header that cannot be read");
    let config = format!("{{\"x\":{deep}{},\"quantization_config\":{deep}", "]".repeat(1_000_000));
    let file = safetensors("{}", 0);
    let found = refusal(&[("model.safetensors", &file), ("config.json", config.as_bytes())]);
    assert!(found.starts_with("config.json: has a quantization_config that cannot be read"), "{found}");
}

/// Writer of a file with a value and a tensor.
fn good() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.text("a", "text").tensor("x", &[2, 32], GgufType::Q8_0, &[0.5; 64]);
    writer
}

/// File whose only tensor has this description.
fn described(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend(1_u64.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.extend((name.len() as u64).to_le_bytes());
    file.extend(name.as_bytes());
    file.extend((dimensions.len() as u32).to_le_bytes());
    file.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
    file.extend(kind.to_le_bytes());
    file.extend(offset.to_le_bytes());
    file.resize(file.len().max(256), 0);
    file
}

#[test]
fn gguf_heads_that_lie_are_refused() {
    let head = |version: u32, tensors: u64, values: u64| {
        let mut file = b"GGUF".to_vec();
        file.extend(version.to_le_bytes());
        file.extend(tensors.to_le_bytes());
        file.extend(values.to_le_bytes());
        file
    };
    for (file, message) in [
        (vec![], "is not a GGUF file: it does not begin with \"GGUF\"."),
        (b"GGML".to_vec(), "is not a GGUF file"),
        (b"GGUF\x03".to_vec(), "is cut short: the version should have 4 bytes from byte 4 on, there are 1."),
        (head(1, 0, 0), "is a GGUF file of version 1; versions 2 and 3 are supported."),
        (head(4, 0, 0), "is a GGUF file of version 4; versions 2 and 3 are supported."),
        (head(3_u32.swap_bytes(), 0, 0), "is a GGUF file of a big-endian machine, which is not supported."),
        (head(3, 1, 0), "says that it has 1 tensors, more than fit into it."),
        (head(3, u64::MAX, 0), "says that it has 18446744073709551615 tensors, more than fit into it."),
        (head(3, 0, u64::MAX), "says that it has 18446744073709551615 values of metadata, more than 65536."),
        (
            head(3, 0, 1),
            "is cut short: the key of value 0 of the metadata should have 8 bytes from byte 24 on, there are 0.",
        ),
    ] {
        check_gguf(&file, message);
    }
    assert!(open(&[("a.gguf", &head(3, 0, 0))]).is_ok());
}

#[test]
fn gguf_metadata_that_lies_is_refused() {
    let array = |kind: u32, count: u64, bytes: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat();
    let string = |length: u64, bytes: &[u8]| [&length.to_le_bytes()[..], bytes].concat();
    for (kind, bytes, message) in [
        (13, vec![0; 8], "has the unknown type 13 in the value of key \"k\"."),
        (u32::MAX, vec![], "has the unknown type 4294967295 in the value of key \"k\"."),
        (4, vec![0; 3], "is cut short: the value of key \"k\" should have 4 bytes from byte 37 on, there are 3."),
        (7, vec![2], "holds a byte that is neither true nor false in the value of key \"k\"."),
        (8, string(u64::MAX, b""), "is cut short: the value of key \"k\" should have 18446744073709551615 bytes"),
        (8, string(1, b"\xff"), "holds bytes that are not UTF-8 in the value of key \"k\""),
        (9, array(4, u64::MAX, b""), "is cut short: the value of key \"k\" should have 18446744073709551615 bytes"),
        (9, array(4, 1 << 62, b"1234"), "is cut short: the value of key \"k\" should have 18446744073709551615 bytes"),
        (9, array(8, 1 << 62, b""), "is cut short: the value of key \"k\""),
        (9, array(8, 2, &string(0, b"")), "is cut short: the value of key \"k\""),
        (9, array(9, 1, b""), "has arrays of arrays in the value of key \"k\": not supported."),
        (9, array(77, 1, b""), "has the unknown type 77 in the value of key \"k\"."),
        (9, array(7, 2, b"\x01\x03"), "holds a byte that is neither true nor false in the value of key \"k\"."),
    ] {
        check_gguf(&GgufWriter::new().value("k", kind, &bytes).bytes(), message);
    }
    check_gguf(&GgufWriter::new().u32("k", 1).u32("k", 2).bytes(), "has the key \"k\" twice.");
    check_gguf(
        &GgufWriter::new().u32(&"k".repeat(70_000), 1).bytes(),
        "has 70000 bytes in the key of value 0 of the metadata, more than 65535.",
    );
    check_gguf(&GgufWriter::new().u32("split.count", 3).bytes(), "is one of 3 parts; join them into one file");
    for alignment in [0, 1, 4, 33, 1 << 21] {
        let message = "has a value of \"general.alignment\" that is not a power of 2 from 8 to 1048576.";
        check_gguf(&GgufWriter::new().u32("general.alignment", alignment).bytes(), message);
    }
    check_gguf(&GgufWriter::new().text("general.alignment", "32").bytes(), "has a value of \"general.alignment\"");
}

#[test]
fn gguf_tensors_that_lie_are_refused() {
    let supported = "which is not one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K.";
    for (file, message) in [
        (described("x", &[0], 0, 0), "tensor \"x\": has no elements: its shape is [0]."),
        (described("x", &[1, 1, 1, 1, 1], 0, 0), "tensor \"x\": has 5 dimensions, more than 4."),
        (
            described("x", &[1 << 32, 1 << 32, 1 << 32], 0, 0),
            "tensor \"x\": has a shape whose number of elements is beyond any memory",
        ),
        (described("x", &[1 << 62], 0, 0), "tensor \"x\": has a size beyond any memory"),
        (
            described("x", &[1 << 40], 0, 0),
            "tensor \"x\": has 4398046511104 bytes at offset 0 of the data at byte 64, beyond the file's end at byte 256.",
        ),
        (
            described("x", &[8], 0, 192),
            "tensor \"x\": has 32 bytes at offset 192 of the data at byte 64, beyond the file's end at byte 256.",
        ),
        (described("x", &[8], 0, u64::MAX - 31), "tensor \"x\": has 32 bytes at offset 18446744073709551584"),
        (described("x", &[8], 0, 8), "tensor \"x\": has the offset 8, which is not a multiple of the alignment, 32."),
        (
            described("x", &[31, 2], 8, 0),
            "tensor \"x\": has rows of 31 values, which is not a multiple of a block's 32.",
        ),
        (
            described("x", &[128], 14, 0),
            "tensor \"x\": has rows of 128 values, which is not a multiple of a block's 256.",
        ),
        (described("x", &[256], 10, 0), &format!("tensor \"x\": has the type 10 (Q2_K), {supported}")),
        (described("x", &[8], 999, 0), &format!("tensor \"x\": has the type 999, {supported}")),
        (described("", &[8], 0, 0), "tensor \"\": has no name."),
        (described(&"x".repeat(2000), &[8], 0, 0), "has a name of 2000 bytes that begins like this, more than 1024."),
    ] {
        check_gguf(&file, message);
    }
    assert!(open(&[("a.gguf", &described("x", &[8], 0, 160))]).is_ok());
    check_gguf(
        &GgufWriter::new().raw("x", &[1], 0, vec![0; 4]).raw("x", &[1], 0, vec![0; 4]).bytes(),
        "tensor \"x\": is there twice.",
    );
    // Two descriptions of the same bytes.
    let mut file = GgufWriter::new().raw("x", &[8], 0, vec![0; 32]).raw("y", &[8], 0, vec![0; 32]).bytes();
    let second = file.windows(8).rposition(|window| window == 32_u64.to_le_bytes()).unwrap();
    file[second..second + 8].fill(0);
    check_gguf(&file, "tensor \"y\": begins at byte 96, within tensor \"x\".");
}

#[test]
fn files_that_are_cut_anywhere_are_refused() {
    let file = good().bytes();
    assert!(open(&[("a.gguf", &file)]).is_ok());
    for length in 0..file.len() {
        check_gguf(&file[..length], "model.gguf");
    }
}

/// Refusals cost no more than reading the file: counts are believed only as far as the file goes.
#[test]
fn absurd_counts_cost_nothing() {
    let begun = Instant::now();
    let mut random = sequence(3);
    for _ in 0..200 {
        let count = random() | 1 << 40;
        let bytes = [&8_u32.to_le_bytes()[..], &count.to_le_bytes()].concat();
        check_gguf(&GgufWriter::new().value("k", 9, &bytes).bytes(), "is cut short");
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
