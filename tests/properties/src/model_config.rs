//! Configuration of a model, with the names of its tensors: described, or refused with a sentence.

use crate::model;
use omni_architectures::{Configuration, SentenceTransformer, Source, Tensors};
use std::collections::BTreeMap;

/// Between `config.json`, `modules.json`, `1_Pooling/config.json` and the tensors.
const SEPARATOR: u8 = 0;
/// Longest vector that is made up.
const LONGEST: usize = 4096;

/// Describes a model.
///
/// # Panics
/// A description does not fit together, takes more memory than is allowed, or a refusal is no sentence.
pub fn holds(data: &[u8]) {
    let parts: Vec<_> = data.splitn(4, |byte| *byte == SEPARATOR).map(String::from_utf8_lossy).collect();
    let part = |number: usize| parts.get(number).map(|part| &**part).filter(|part| !part.is_empty());
    let (modules, pooling) = (part(1), part(2));
    let tensors = Named::parse(part(3).unwrap_or_default());
    let sentence = (modules.is_some() || pooling.is_some()).then_some(SentenceTransformer { modules, pooling });
    let configuration = Configuration::Json(part(0).unwrap_or_default());
    model::described(&Source { configuration, tensors: &tensors, sentence }, data.len());
}

/// Tensors that are there by name.
struct Named(BTreeMap<String, Vec<usize>>);

impl Named {
    /// Reads lines of a name and the sizes of the dimensions.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut words = line.split(' ');
            let name = words.next()?.to_owned();
            Some((name, words.map(str::parse).collect::<Result<Vec<usize>, _>>().ok()?))
        };
        Self(text.lines().filter_map(line).collect())
    }
}

impl Tensors for Named {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(Vec::as_slice)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, String> {
        match self.shape(name) {
            Some(&[length @ 0..=LONGEST]) => Ok((0..length).map(|at| at as f32 / 8.0).collect()),
            _ => Err("there is no such vector".to_owned()),
        }
    }
}
