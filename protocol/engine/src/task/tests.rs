//! Embeddings that are read, and those that are refused.

use super::*;
use proptest::prelude::*;

fn embeddings(header: &str, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = u32::try_from(header.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes
}

#[test]
fn embeddings_are_read_one_by_one() {
    let bytes =
        embeddings(r#"{"count":2,"dimensions":3,"usage":{"prompt_tokens":5}}"#, &[0.0, 1.5, -2.0, 3.0, 4.0, 5.0]);
    let answer = EmbeddingsAnswer::parse(&bytes).unwrap();
    assert_eq!(answer.header.usage.unwrap().prompt_tokens, 5);
    assert_eq!(answer.embedding(0).collect::<Vec<_>>(), [0.0, 1.5, -2.0]);
    assert_eq!(answer.embedding(1).collect::<Vec<_>>(), [3.0, 4.0, 5.0]);
    assert_eq!(answer.embedding(2).count(), 0);
    assert_eq!(answer.embedding(usize::MAX).count(), 0);
}

#[test]
fn embeddings_that_are_not_as_their_header_says_are_refused() {
    for (header, numbers) in [
        ("{}", 0),
        ("[]", 0),
        (r#"{"count":1,"dimensions":0}"#, 0),
        (r#"{"count":1,"dimensions":2}"#, 3),
        (r#"{"count":2,"dimensions":2}"#, 3),
        (r#"{"count":9223372036854775807,"dimensions":4}"#, 0),
        (r#"{"count":4611686018427387904,"dimensions":1}"#, 0),
    ] {
        let bytes = embeddings(header, &vec![0.0; numbers]);
        assert!(matches!(EmbeddingsAnswer::parse(&bytes), Err(FrameError::Malformed(_))), "{header} with {numbers}");
    }
    assert!(EmbeddingsAnswer::parse(&[9, 0]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader_of_embeddings(bytes: Vec<u8>) {
        if let Ok(answer) = EmbeddingsAnswer::parse(&bytes) {
            prop_assert_eq!(answer.header.count * answer.header.dimensions * 4, answer.numbers.len());
        }
    }
}
