//! Foreign bytes, by chance and by mutation of good files: refused or read, and never a panic.

use super::{numbers, open, read_all};
use crate::testing::{GgufType, GgufWriter, SafetensorsWriter};
use proptest::collection::vec;
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::collections::BTreeSet;

const CONFIG: &str = r#"{"quantization_config": {"quant_method": "METHOD", "bits": 4, "group_size": 32}}"#;

/// Change of a file.
#[derive(Debug, Clone)]
enum Mutation {
    /// Another byte at a place.
    Set(usize, u8),
    /// Eight bytes with a number that is near a limit.
    Number(usize, u64),
    /// Bytes left out.
    Cut(usize, usize),
    /// Bytes that are there twice.
    Repeat(usize, usize),
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let number = prop_oneof![
        any::<u64>(),
        (0_u32..64).prop_map(|shift| 1 << shift),
        (0_u32..64).prop_map(|shift| (1 << shift) - 1),
        0_u64..64,
    ];
    let mutation = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<usize>(), number).prop_map(|(at, number)| Mutation::Number(at, number)),
        (any::<usize>(), 1_usize..64).prop_map(|(at, length)| Mutation::Cut(at, length)),
        (any::<usize>(), 1_usize..64).prop_map(|(at, length)| Mutation::Repeat(at, length)),
    ];
    vec(mutation, 1..5)
}

/// Applies mutations; most of them to the first bytes, where the descriptions are.
fn mutate(mut file: Vec<u8>, head: usize, mutations: Vec<Mutation>) -> Vec<u8> {
    for mutation in mutations {
        let size = file.len().clamp(1, head);
        match mutation {
            Mutation::Set(at, byte) if !file.is_empty() => file[at % size] = byte,
            Mutation::Number(at, number) if file.len() >= 8 => {
                let at = at % (size.max(8) - 7);
                file[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            Mutation::Cut(at, length) if !file.is_empty() => {
                let at = at % size;
                file.drain(at..(at + length).min(file.len()));
            }
            Mutation::Repeat(at, length) if !file.is_empty() => {
                let at = at % size;
                let again = file[at..(at + length).min(file.len())].to_vec();
                file.splice(at..at, again);
            }
            _ => {}
        }
    }
    file
}

fn gguf() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.text("general.architecture", "llama").u32("llama.block_count", 1).f32("f", 0.5).bool("b", true);
    writer.texts("tokens", &["a", "b", "", "cd"]).f32s("scores", &[0.0, -1.0]).i32s("types", &[1, 2, 3]);
    writer.tensor("a", &[32], GgufType::F32, &numbers(32));
    writer.tensor("b", &[2, 3, 64], GgufType::Q4_0, &numbers(384));
    writer.raw("c", &[2, 256], 14, vec![7; 420]).raw("d", &[1, 256], 12, vec![9; 144]);
    writer.bytes()
}

fn safetensors(method: &str) -> Vec<u8> {
    let mut writer = SafetensorsWriter::new();
    writer.f32("a", &[8], &numbers(8)).bf16("b", &[2, 3], &numbers(6));
    match method {
        "awq" => writer.awq("x", [16, 64], 4, 32, &numbers(16 * 64)),
        _ => writer.gptq("x", [16, 64], 4, 32, &numbers(16 * 64)),
    };
    writer.bytes()
}

fn read(files: &[(&str, &[u8])]) {
    match open(files) {
        Ok(checkpoint) => read_all(&checkpoint),
        Err(error) => assert!(error.to_string().len() < 2000, "{error}"),
    }
}

/// Checks that the reference implementation accepts what is accepted here, and sees the same tensors.
fn agrees_with_the_reference(file: &[u8]) {
    let Ok(ours) = crate::safetensors::parse(file, 0) else { return };
    let names: BTreeSet<_> = ours.iter().map(|(name, _)| name).collect();
    if names.len() < ours.len() {
        return; // refused when the tensors get their names
    }
    let reference = SafeTensors::deserialize(file).unwrap();
    assert_eq!(reference.len(), ours.len());
    for (name, tensor) in ours {
        let wanted = reference.tensor(&name).unwrap();
        assert_eq!(wanted.shape(), tensor.shape, "{name}");
        assert_eq!(wanted.data().as_ptr(), file[tensor.bytes].as_ptr(), "{name}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_cause_a_panic(bytes in vec(any::<u8>(), 0..512)) {
        read(&[("model.safetensors", &bytes)]);
        read(&[("model.gguf", &bytes)]);
        let mut named = b"GGUF\x03\0\0\0".to_vec();
        named.extend(&bytes);
        read(&[("model.gguf", &named)]);
        read(&[("model.safetensors", &safetensors("awq")), ("config.json", &bytes)]);
        read(&[("model.safetensors", &safetensors("awq")), ("model.safetensors.index.json", &bytes)]);
    }

    #[test]
    fn mutated_gguf_never_causes_a_panic(mutations in mutations()) {
        read(&[("model.gguf", &mutate(gguf(), 700, mutations))]);
    }

    #[test]
    fn mutated_safetensors_never_cause_a_panic(mutations in mutations(), awq in any::<bool>()) {
        let method = if awq { "awq" } else { "gptq" };
        let config = CONFIG.replace("METHOD", method);
        let file = mutate(safetensors(method), 600, mutations);
        agrees_with_the_reference(&file);
        read(&[("model.safetensors", &file), ("config.json", config.as_bytes())]);
    }

    /// Headers of the right form with numbers by chance.
    #[test]
    fn headers_by_chance_never_cause_a_panic(
        entries in vec((0_u8..4, vec(0_usize..5, 0..3), 0_usize..40, 0_usize..40, any::<bool>()), 0..5),
        data in 0_usize..64,
    ) {
        let entries: Vec<String> = entries.iter().map(|(name, shape, first, last, wide)| {
            let dtype = if *wide { "F32" } else { "BF16" };
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{first},{last}]}}"#)
        }).collect();
        let header = format!("{{{}}}", entries.join(","));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.resize(file.len() + data, 1);
        agrees_with_the_reference(&file);
        read(&[("model.safetensors", &file)]);
    }

    /// All numbers of a configuration by chance.
    #[test]
    fn configurations_by_chance_never_cause_a_panic(bits in -1_i64..10, group in any::<i64>(), small in -2_i64..130, take in any::<bool>()) {
        let group = if take { group } else { small };
        for method in ["awq", "gptq"] {
            let config = format!(r#"{{"quantization_config":{{"quant_method":"{method}","bits":{bits},"group_size":{group}}}}}"#);
            read(&[("model.safetensors", &safetensors(method)), ("config.json", config.as_bytes())]);
        }
    }
}
