//! Checkpoints: files of weights, opened and checked, tensors by name.

use crate::directory::{self, Files, Index};
use crate::error::{CheckpointError, Defect};
use crate::float::Float;
use crate::gguf;
use crate::map::MappedFile;
use crate::matrix::{Grouped, Matrix, Values};
use crate::packed::{PackedTensor, Tensors};
use crate::quantization::Quantization;
use crate::safetensors;
use crate::tensor::{Format, Tensor};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Checkpoint. Its files stay mapped as long as it lives.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<Arc<MappedFile>>,
    tensors: BTreeMap<String, Tensor>,
    /// Matrices of AWQ or GPTQ, by the name without `.qweight`.
    packed: BTreeMap<String, PackedTensor>,
    config: Option<String>,
    gguf: Option<gguf::Metadata>,
}

impl Checkpoint {
    /// Opens a checkpoint: a directory with safetensors files and `config.json`, a GGUF file, or a directory with one.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is broken in any way, or holds a tensor or a quantisation that is not supported.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        match directory::find(path)? {
            Files::Gguf(file) => Self::open_gguf(path, file),
            Files::Safetensors { files, index, config } => Self::open_safetensors(path, files, index, config),
        }
    }

    fn open_gguf(path: &Path, file: PathBuf) -> Result<Self, CheckpointError> {
        let file = Arc::new(MappedFile::open(file)?);
        let (metadata, found) = gguf::parse(&file).map_err(|defect| defect.in_file(file.path()))?;
        let files = vec![file];
        let mut tensors = BTreeMap::new();
        insert(&mut tensors, found, &files)?;
        let path = path.to_owned();
        Ok(Self { path, files, tensors, packed: BTreeMap::new(), config: None, gguf: Some(metadata) })
    }

    fn open_safetensors(
        path: &Path,
        paths: Vec<PathBuf>,
        index: Option<Index>,
        config: Option<(PathBuf, String)>,
    ) -> Result<Self, CheckpointError> {
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
        for path in paths {
            files.push(Arc::new(MappedFile::open(path)?));
            let file = &files[files.len() - 1];
            let found = safetensors::parse(file.bytes(), files.len() - 1);
            insert(&mut tensors, found.map_err(|defect| defect.in_file(file.path()))?, &files)?;
        }
        if let Some(index) = index {
            check_index(&index, &tensors, &files)?;
        }
        let quantization = match &config {
            Some((path, text)) => Quantization::parse(text).map_err(|reason| Defect::file(reason).in_file(path))?,
            None => None,
        };
        let packed = find_packed(&tensors, &files, quantization)?;
        let config = config.map(|(_, text)| text);
        Ok(Self { path: path.to_owned(), files, tensors, packed, config, gguf: None })
    }

    /// Text of `config.json`, which a GGUF file does not need.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Metadata of a GGUF file.
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        self.gguf.as_ref()
    }

    /// Names of all tensors of the files, and of the matrices of AWQ or GPTQ that are made of several of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().chain(self.packed.keys()).map(String::as_str)
    }

    /// Dimensions of a tensor, the outermost first; of a matrix of AWQ or GPTQ outputs and inputs.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let packed = || self.packed.get(name).map(|packed| packed.shape().as_slice());
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice()).or_else(packed)
    }

    /// Values of a tensor of one dimension.
    ///
    /// # Errors
    ///
    /// If there is no such tensor, or it has several dimensions or a type that is not a number's.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.tensor(name)?;
        let &[columns] = tensor.shape.as_slice() else {
            return Err(self.refuse(name, tensor, format!("has the shape {:?}, and a vector is wanted", tensor.shape)));
        };
        let mut values = vec![0.0; columns];
        Matrix { rows: 1, columns, values: self.values(name, tensor)? }.row(0, &mut values);
        Ok(values)
    }

    /// Matrix, in place. A tensor of three dimensions, such as stacked experts, is one matrix under the other.
    ///
    /// # Errors
    ///
    /// If there is no such tensor, or it has another number of dimensions or a type that is not a number's.
    pub fn matrix(&self, name: &str) -> Result<Matrix<'_>, CheckpointError> {
        if let Some(packed) = self.packed.get(name) {
            let [rows, columns] = *packed.shape();
            let values = Values::Grouped(Grouped::of_packed(packed.read(&self.files)));
            return Ok(Matrix { rows, columns, values });
        }
        let tensor = self.tensor(name)?;
        let (rows, columns) = match *tensor.shape.as_slice() {
            [rows, columns] => (rows, columns),
            [matrices, rows, columns] => (matrices * rows, columns),
            _ => {
                let reason = format!("has the shape {:?}, and a matrix is wanted", tensor.shape);
                return Err(self.refuse(name, tensor, reason));
            }
        };
        Ok(Matrix { rows, columns, values: self.values(name, tensor)? })
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, CheckpointError> {
        self.tensors.get(name).ok_or_else(|| Defect::tensor(name, "is missing").in_file(&self.path))
    }

    fn values(&self, name: &str, tensor: &Tensor) -> Result<Values<'_>, CheckpointError> {
        let bytes = &self.files[tensor.file].bytes()[tensor.bytes.clone()];
        Ok(match &tensor.format {
            Format::Float(Float::F32) => Values::F32(bytes),
            Format::Float(Float::F16) => Values::F16(bytes),
            Format::Float(Float::Bf16) => Values::Bf16(bytes),
            Format::Block(block) => {
                let columns = tensor.shape.last().copied().unwrap_or(1);
                Values::Grouped(Grouped::of_blocks(*block, columns, bytes))
            }
            Format::I32 => {
                return Err(self.refuse(name, tensor, "has the type I32: integers are no weights".to_owned()));
            }
            Format::Other(kind) => {
                return Err(self.refuse(name, tensor, format!("has the type {kind}; F32, F16 and BF16 are supported")));
            }
        })
    }

    fn refuse(&self, name: &str, tensor: &Tensor, reason: String) -> CheckpointError {
        Defect::tensor(name, reason).in_file(self.files[tensor.file].path())
    }
}

/// Adds the tensors of a file, the last of `files`, to those of all.
fn insert(
    tensors: &mut BTreeMap<String, Tensor>,
    found: Vec<(String, Tensor)>,
    files: &[Arc<MappedFile>],
) -> Result<(), CheckpointError> {
    for (name, tensor) in found {
        match tensors.entry(name) {
            Entry::Vacant(entry) => _ = entry.insert(tensor),
            Entry::Occupied(entry) => {
                let (first, second) = (files[entry.get().file].path(), files[tensor.file].path());
                let reason = if first == second {
                    "is there twice".to_owned()
                } else {
                    format!("is in {} too", first.display())
                };
                return Err(Defect::tensor(entry.key(), reason).in_file(second));
            }
        }
    }
    Ok(())
}

/// Checks that every tensor of the index is in the file that the index says.
fn check_index(
    index: &Index,
    tensors: &BTreeMap<String, Tensor>,
    files: &[Arc<MappedFile>],
) -> Result<(), CheckpointError> {
    for (name, file) in &index.tensors {
        if tensors.get(name).is_none_or(|tensor| tensor.file != *file) {
            let reason = format!("should be in {}, and is not", files[*file].path().display());
            return Err(Defect::tensor(crate::tensor::beginning(name), reason).in_file(&index.path));
        }
    }
    Ok(())
}

/// Puts together the matrices of AWQ or GPTQ.
fn find_packed(
    tensors: &BTreeMap<String, Tensor>,
    files: &[Arc<MappedFile>],
    quantization: Option<Quantization>,
) -> Result<BTreeMap<String, PackedTensor>, CheckpointError> {
    let mut packed = BTreeMap::new();
    for (name, tensor) in tensors {
        let Some(prefix) = name.strip_suffix(".qweight") else { continue };
        let refuse = |reason: &str| Defect::tensor(name, reason).in_file(files[tensor.file].path());
        let Some(quantization) = quantization else {
            return Err(refuse(
                "is a packed matrix, and config.json has no quantization_config that says in which form",
            ));
        };
        if tensors.contains_key(prefix) {
            return Err(refuse("is a packed matrix, and there is a tensor of its name without \".qweight\""));
        }
        let all = Tensors { by_name: tensors, files };
        packed.insert(prefix.to_owned(), PackedTensor::new(prefix, tensor, quantization, &all)?);
    }
    Ok(packed)
}
