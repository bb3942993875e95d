//! Reads and writes of the kernel's files, with errors that name them.

use crate::Error;
use std::fs;
use std::path::Path;

pub(crate) fn read(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).map_err(Error::io("read", file))
}

pub(crate) fn write(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(Error::io("write", file))
}
