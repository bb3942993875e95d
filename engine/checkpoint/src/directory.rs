//! Files of a checkpoint in a model's directory.

use crate::error::{CheckpointError, Defect};
use crate::safetensors::Pairs;
use crate::tensor::beginning;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Name of the index of shards.
const INDEX: &str = "model.safetensors.index.json";
/// Most files of a checkpoint.
const MOST_FILES: usize = 4096;
/// Longest `config.json`, in bytes.
const LONGEST_CONFIG: u64 = 16 << 20;
/// Longest index of shards, in bytes.
const LONGEST_INDEX: u64 = 256 << 20;

/// Files of a checkpoint.
#[derive(Debug)]
pub(crate) enum Files {
    Gguf(PathBuf),
    Safetensors {
        files: Vec<PathBuf>,
        /// Index of the shards.
        index: Option<Index>,
        /// Text of `config.json`, with its path.
        config: Option<(PathBuf, String)>,
    },
}

/// Index of shards.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) path: PathBuf,
    /// Number of the file of each tensor.
    pub(crate) tensors: Vec<(String, usize)>,
}

/// Finds the files: of a directory its safetensors, else its only GGUF file; any other path is taken for a GGUF file.
pub(crate) fn find(path: &Path) -> Result<Files, CheckpointError> {
    if !fs::metadata(path).map_err(|error| io(path, error))?.is_dir() {
        return Ok(Files::Gguf(path.to_owned()));
    }
    if let Some(text) = read_text(&path.join(INDEX), LONGEST_INDEX)? {
        let (files, index) = parse_index(path, &text).map_err(|defect| defect.in_file(&path.join(INDEX)))?;
        return Ok(Files::Safetensors { files, index: Some(index), config: config(path)? });
    }
    let safetensors = with_extension(path, "safetensors")?;
    let single = path.join("model.safetensors");
    let file = match safetensors.as_slice() {
        files if files.contains(&single) => single,
        [file] => file.clone(),
        [] => return only_gguf(path),
        files => {
            let reason =
                format!("holds {} safetensors files, and no {INDEX} that says which tensors they have", files.len());
            return Err(Defect::file(reason).in_file(path));
        }
    };
    Ok(Files::Safetensors { files: vec![file], index: None, config: config(path)? })
}

fn only_gguf(directory: &Path) -> Result<Files, CheckpointError> {
    let mut files = with_extension(directory, "gguf")?;
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(Files::Gguf(file)),
        (Some(_), others) => {
            let reason = format!("holds {} GGUF files; name the one that is meant", others + 1);
            Err(Defect::file(reason).in_file(directory))
        }
        (None, _) => Err(Defect::file("holds neither safetensors nor a GGUF file").in_file(directory)),
    }
}

fn config(directory: &Path) -> Result<Option<(PathBuf, String)>, CheckpointError> {
    let path = directory.join("config.json");
    Ok(read_text(&path, LONGEST_CONFIG)?.map(|text| (path, text)))
}

fn with_extension(directory: &Path, extension: &str) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| io(directory, error))? {
        let path = entry.map_err(|error| io(directory, error))?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
        if files.len() > MOST_FILES {
            return Err(Defect::file(format!("holds more than {MOST_FILES} files of {extension}")).in_file(directory));
        }
    }
    Ok(files)
}

/// Index as JSON.
#[derive(serde::Deserialize)]
struct IndexText<'a> {
    #[serde(borrow)]
    weight_map: Pairs<'a, String>,
}

fn parse_index(directory: &Path, text: &str) -> Result<(Vec<PathBuf>, Index), Defect> {
    let index: IndexText<'_> = serde_json::from_str(text).map_err(|error| {
        Defect::file(format!("is not an index of safetensors files: {}", beginning(&error.to_string())))
    })?;
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for (tensor, file) in index.weight_map.0 {
        let number = if let Some(number) = numbers.get(&file) {
            *number
        } else {
            // A path could lead out of the directory, and a line's end in a name would end that of a message.
            if Path::new(&file).file_name().is_none_or(|name| name != file.as_str()) || file.contains(char::is_control)
            {
                return Err(Defect::tensor(
                    beginning(&tensor),
                    format!("should be in {:?}, which is not the name of a file", beginning(&file)),
                ));
            }
            if files.len() == MOST_FILES {
                return Err(Defect::file(format!("names more than {MOST_FILES} files")));
            }
            files.push(directory.join(&file));
            numbers.insert(file, files.len() - 1);
            files.len() - 1
        };
        tensors.push((tensor.into_owned(), number));
    }
    if files.is_empty() {
        return Err(Defect::file("names no files"));
    }
    Ok((files, Index { path: directory.join(INDEX), tensors }))
}

/// Reads a text of bounded length, `None` if there is no such file.
fn read_text(path: &Path, longest: u64) -> Result<Option<String>, CheckpointError> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(|error| io(path, error))?,
    };
    if !metadata.is_file() {
        return Err(Defect::file("is not a regular file").in_file(path));
    }
    let file = File::open(path).map_err(|error| io(path, error))?;
    let mut text = String::new();
    let read = file.take(longest + 1).read_to_string(&mut text).map_err(|error| io(path, error))?;
    if read as u64 > longest {
        return Err(Defect::file(format!("is longer than {longest} bytes")).in_file(path));
    }
    Ok(Some(text))
}

fn io(path: &Path, error: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.to_owned(), error }
}
