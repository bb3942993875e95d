//! Names of tensors from their patterns.

use crate::error::ConfigError;
use crate::source::Tensors;
use omni_kernels::model::{Linear, Norm, NormKind, RowOrder, TensorName};

/// Names of one kind of file, filled in.
#[derive(Clone, Copy)]
pub(crate) struct Namer<'a> {
    tensors: &'a dyn Tensors,
    prefix: &'static str,
}

impl<'a> Namer<'a> {
    /// Namer with the first prefix under which there is a tensor of this pattern, or the first of all.
    pub(crate) fn new(tensors: &'a dyn Tensors, prefixes: &[&'static str], embedding: &str) -> Self {
        let exists = |prefix: &&&'static str| {
            let namer = Self { tensors, prefix };
            tensors.shape(&namer.weight(embedding, 0, 0).0).is_some()
        };
        let prefix = prefixes.iter().find(exists).or(prefixes.first()).copied().unwrap_or_default();
        Self { tensors, prefix }
    }

    fn fill(&self, pattern: &str, layer: usize, expert: usize) -> String {
        let mut name = String::with_capacity(pattern.len() + 16);
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once('{') {
            name.push_str(before);
            let (key, after) = after.split_once('}').unwrap_or((after, ""));
            match key {
                "model" => name.push_str(self.prefix),
                "layer" => name.push_str(&layer.to_string()),
                _ => name.push_str(&expert.to_string()),
            }
            rest = after;
        }
        name.push_str(rest);
        name
    }

    /// Name of a matrix or of a norm's factors. Matrices of AWQ and GPTQ go by the name of their operation.
    pub(crate) fn weight(&self, pattern: &str, layer: usize, expert: usize) -> TensorName {
        let name = self.fill(pattern, layer, expert);
        let plain = format!("{name}.weight");
        let exists = |name: &str| self.tensors.shape(name).is_some();
        if !exists(&plain) && (exists(&name) || exists(&format!("{name}.qweight"))) {
            return TensorName(name);
        }
        TensorName(plain)
    }

    /// Name of a bias, `None`: there is none.
    pub(crate) fn bias(&self, pattern: &str, layer: usize, required: bool) -> Option<TensorName> {
        let name = format!("{}.bias", self.fill(pattern, layer, 0));
        (required || self.tensors.shape(&name).is_some()).then_some(TensorName(name))
    }

    /// Shape of a weight.
    pub(crate) fn shape(&self, name: &TensorName) -> Option<&'a [usize]> {
        self.tensors.shape(&name.0)
    }

    /// RMS norm.
    pub(crate) fn rms_norm(&self, pattern: &str, layer: usize, epsilon: f32, offset: f32) -> Norm {
        let weight = self.weight(pattern, layer, 0);
        Norm { weight, bias: None, kind: NormKind::Rms, epsilon, offset }
    }

    /// Norm by mean and variance.
    pub(crate) fn layer_norm(&self, pattern: &str, layer: usize, epsilon: f32) -> Norm {
        let weight = self.weight(pattern, layer, 0);
        Norm { weight, bias: self.bias(pattern, layer, true), kind: NormKind::Layer, epsilon, offset: 0.0 }
    }

    /// Matrix with all its rows in the order of the outputs.
    pub(crate) fn linear(&self, pattern: &str, layer: usize, widths: Widths, bias: bool) -> Linear {
        Linear {
            weight: self.weight(pattern, layer, 0),
            rows: None,
            bias: self.bias(pattern, layer, bias),
            order: RowOrder::Outputs,
            inputs: widths.inputs,
            outputs: widths.outputs,
        }
    }

    /// Matrix of an expert, which has a tensor of its own, or a range of the rows of its layer's tensor.
    pub(crate) fn expert(&self, pattern: &str, layer: usize, expert: usize, widths: Widths, stacked: bool) -> Linear {
        Linear {
            weight: self.weight(pattern, layer, expert),
            rows: stacked.then(|| expert * widths.outputs..(expert + 1) * widths.outputs),
            bias: None,
            order: RowOrder::Outputs,
            inputs: widths.inputs,
            outputs: widths.outputs,
        }
    }

    /// Rows of the matrix of the tokens' vectors.
    ///
    /// # Errors
    /// The matrix has fewer rows than there are tokens, or the number of them is said nowhere.
    pub(crate) fn vocabulary(&self, embedding: &TensorName, stated: Option<usize>) -> Result<usize, ConfigError> {
        let Some([rows, _]) = self.shape(embedding) else {
            return stated.ok_or_else(|| ConfigError::Missing { field: "vocab_size".to_owned() });
        };
        match stated {
            Some(stated) if stated > *rows => Err(ConfigError::Tensor {
                tensor: embedding.0.clone(),
                reason: format!("it has {rows} rows for a vocabulary of {stated} tokens"),
            }),
            Some(stated) => Ok(stated),
            None => Ok(*rows),
        }
    }
}

/// Widths of a matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widths {
    /// Inputs.
    pub(crate) inputs: usize,
    /// Outputs.
    pub(crate) outputs: usize,
}

/// Widths of a matrix from `inputs` to `outputs`.
pub(crate) const fn widths(inputs: usize, outputs: usize) -> Widths {
    Widths { inputs, outputs }
}
