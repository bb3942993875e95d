//! Directories and files that a checkpoint may be.

use super::{directory, numbers, open, refusal};
use crate::testing::{GgufType, GgufWriter, SafetensorsWriter};
use crate::{Checkpoint, CheckpointError, Values};

fn weights(names: &[&str]) -> Vec<u8> {
    let mut writer = SafetensorsWriter::new();
    for name in names {
        writer.f32(name, &[2], &[1.0, 2.0]);
    }
    writer.bytes()
}

fn gguf() -> Vec<u8> {
    GgufWriter::new().text("general.architecture", "llama").tensor("a", &[2], GgufType::F32, &[1.0, 2.0]).bytes()
}

#[test]
fn a_single_file_is_opened_with_its_config() {
    let checkpoint = open(&[("model.safetensors", &weights(&["a"])), ("config.json", b"{\"x\": 1}")]).unwrap();
    assert_eq!(checkpoint.config(), Some("{\"x\": 1}"));
    assert!(checkpoint.gguf().is_none());
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a"]);
    assert_eq!(checkpoint.vector("a").unwrap(), [1.0, 2.0]);
    // Another name, if it is the only one; `model.safetensors` beside others.
    assert!(open(&[("weights.safetensors", &weights(&["a"]))]).is_ok());
    let both: &[(&str, &[u8])] = &[("model.safetensors", &weights(&["a"])), ("adapter.safetensors", &weights(&["b"]))];
    assert_eq!(open(both).unwrap().names().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_gguf_file_is_opened_by_itself_and_from_its_directory() {
    let directory = directory(&[("model.gguf", &gguf()), ("readme.md", b"")]);
    for path in [directory.path().to_owned(), directory.path().join("model.gguf")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.gguf().unwrap().text("general.architecture"), Some("llama"));
        assert_eq!(checkpoint.vector("a").unwrap(), [1.0, 2.0]);
        assert!(checkpoint.config().is_none());
    }
}

#[test]
fn both_versions_of_gguf_are_read() {
    for version in [2, 3] {
        let mut writer = GgufWriter::new();
        writer.version(version).u64("n", 1 << 40).tensor("a", &[2], GgufType::F32, &[1.0, 2.0]);
        let checkpoint = open(&[("a.gguf", &writer.bytes())]).unwrap();
        assert_eq!(checkpoint.gguf().unwrap().u64("n"), Some(1 << 40));
        assert_eq!(checkpoint.vector("a").unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn shards_are_joined_by_their_index() {
    let (one, two) = (weights(&["a", "b"]), weights(&["c"]));
    let index = br#"{"metadata": {"total_size": 24}, "weight_map": {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}"#;
    let files = [("1.safetensors", one.as_slice()), ("2.safetensors", &two), ("model.safetensors.index.json", index)];
    assert_eq!(open(&files).unwrap().names().collect::<Vec<_>>(), ["a", "b", "c"]);

    let with_index = |index: &str| refusal(&[files[0], files[1], ("model.safetensors.index.json", index.as_bytes())]);
    for (index, message) in [
        (
            r#"{"weight_map": {"a": "../1.safetensors"}}"#,
            "tensor \"a\": should be in \"../1.safetensors\", which is not the name of a file.",
        ),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "which is not the name of a file."),
        (r#"{"weight_map": {"a": "b\nc"}}"#, "should be in \"b\\nc\", which is not the name of a file."),
        (r#"{"weight_map": {"a": ".."}}"#, "which is not the name of a file."),
        (r#"{"weight_map": {"a": ""}}"#, "which is not the name of a file."),
        (r#"{"weight_map": {"d": "1.safetensors"}}"#, "tensor \"d\": should be in 1.safetensors, and is not."),
        (
            r#"{"weight_map": {"c": "1.safetensors", "a": "2.safetensors"}}"#,
            "tensor \"c\": should be in 1.safetensors, and is not.",
        ),
        (
            r#"{"weight_map": {"a": "3.safetensors"}}"#,
            "3.safetensors: cannot be read: No such file or directory (os error 2).",
        ),
        (r#"{"weight_map": {}}"#, "model.safetensors.index.json: names no files."),
        (
            r#"{"weight_map": {"a": 1}}"#,
            "model.safetensors.index.json: is not an index of safetensors files: invalid type",
        ),
        ("{}", "missing field `weight_map`"),
        ("[", "is not an index of safetensors files"),
    ] {
        let found = with_index(index);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn a_tensor_of_two_shards_is_refused() {
    let one = weights(&["a"]);
    let index = br#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    let two = weights(&["a", "b"]);
    let message = refusal(&[("1.safetensors", &one), ("2.safetensors", &two), ("model.safetensors.index.json", index)]);
    assert_eq!(message, "2.safetensors: tensor \"a\": is in 1.safetensors too.");
}

#[test]
fn directories_without_a_clear_choice_are_refused() {
    let (one, two) = (weights(&["a"]), weights(&["b"]));
    for (files, message) in [
        (vec![], "holds neither safetensors nor a GGUF file."),
        (
            vec![("a.safetensors", one.as_slice()), ("b.safetensors", &two)],
            "holds 2 safetensors files, and no model.safetensors.index.json that says which tensors they have.",
        ),
        (vec![("a.gguf", b"GGUF".as_slice()), ("b.gguf", b"GGUF")], "holds 2 GGUF files; name the one that is meant."),
        (
            vec![("model.safetensors", one.as_slice()), ("config.json", b"\xff")],
            "config.json: cannot be read: stream did not contain valid UTF-8.",
        ),
        (
            vec![("model.safetensors", one.as_slice()), ("config.json", b"{")],
            "config.json: has a quantization_config that cannot be read: EOF while parsing",
        ),
    ] {
        let found = refusal(&files);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn only_regular_files_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("model.safetensors")).unwrap();
    let message = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(message.ends_with("model.safetensors: is not a regular file."), "{message}");
    let error = Checkpoint::open("/dev/zero".as_ref()).unwrap_err();
    assert_eq!(error.to_string(), "/dev/zero: is not a regular file.");
    let error = Checkpoint::open("/nowhere/at all".as_ref()).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
}

#[test]
fn tensors_are_asked_for_in_their_own_form() {
    let mut writer = SafetensorsWriter::new();
    writer.f32("vector", &[2], &[1.0, 2.0]).f16("matrix", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).f32("number", &[], &[1.0]);
    writer.bf16("stack", &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]).i32("integers", &[1, 2], &[1, 2]);
    writer.raw("bytes", "U8", &[2], vec![1, 2]);
    let checkpoint = open(&[("model.safetensors", &writer.bytes())]).unwrap();
    for (error, message) in [
        (checkpoint.vector("matrix").unwrap_err(), "tensor \"matrix\": has the shape [2, 2], and a vector is wanted."),
        (checkpoint.matrix("vector").unwrap_err(), "tensor \"vector\": has the shape [2], and a matrix is wanted."),
        (checkpoint.matrix("number").unwrap_err(), "tensor \"number\": has the shape [], and a matrix is wanted."),
        (checkpoint.matrix("integers").unwrap_err(), "tensor \"integers\": has the type I32: integers are no weights."),
        (
            checkpoint.vector("bytes").unwrap_err(),
            "tensor \"bytes\": has the type U8; F32, F16 and BF16 are supported.",
        ),
        (checkpoint.vector("none").unwrap_err(), "tensor \"none\": is missing."),
    ] {
        let found = error.to_string();
        assert!(found.ends_with(message), "{found}");
    }
    let stack = checkpoint.matrix("stack").unwrap();
    let mut row = [0.0; 2];
    stack.row(1, &mut row);
    assert_eq!((stack.rows, stack.columns, row), (2, 2, [3.0, 4.0]));
    assert_eq!(checkpoint.shape("stack"), Some([2, 1, 2].as_slice()));
    assert_eq!(checkpoint.shape("none"), None);
}

#[test]
fn weights_are_read_where_they_lie() {
    let values = numbers(1000);
    let bytes = SafetensorsWriter::new().f32("a", &[10, 100], &values).bytes();
    let checkpoint = open(&[("model.safetensors", &bytes)]).unwrap();
    let place = || match checkpoint.matrix("a").unwrap().values {
        Values::F32(bytes) => (bytes.as_ptr(), bytes.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(place(), place());
    assert_eq!(place().1, 4000);
}

#[test]
fn the_reference_implementation_reads_the_same() {
    let mut writer = SafetensorsWriter::new();
    writer.f32("a \"quoted\" name", &[3, 5], &numbers(15)).bf16("b", &[7], &numbers(7)).f16("c", &[], &[0.5]);
    let bytes = writer.bytes();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = crate::safetensors::parse(&bytes, 0).unwrap();
    assert_eq!(ours.len(), reference.len());
    for (name, tensor) in ours {
        let wanted = reference.tensor(&name).unwrap();
        assert_eq!(tensor.shape, wanted.shape(), "{name}");
        assert_eq!(&bytes[tensor.bytes], wanted.data(), "{name}");
    }
}

#[test]
fn written_blocks_are_near_their_values() {
    let values = numbers(4 * 64);
    for (kind, error) in [
        (GgufType::F32, 0.0),
        (GgufType::F16, 0.001),
        (GgufType::Bf16, 0.005),
        (GgufType::Q8_0, 0.005),
        (GgufType::Q4_0, 0.13),
        (GgufType::Q4_1, 0.075),
    ] {
        let bytes = GgufWriter::new().alignment(64).tensor("a", &[4, 64], kind, &values).bytes();
        let checkpoint = open(&[("a.gguf", &bytes)]).unwrap();
        let matrix = checkpoint.matrix("a").unwrap();
        let mut row = vec![0.0; 64];
        for (number, wanted) in values.chunks_exact(64).enumerate() {
            matrix.row(number, &mut row);
            for (found, wanted) in row.iter().zip(wanted) {
                assert!((found - wanted).abs() <= error, "{kind:?}: {found} for {wanted}");
            }
        }
    }
}
