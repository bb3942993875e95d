//! Beginning, versions, errors.

use crate::abi::{Out, api};
use crate::error::{self, Answer, Error};
use crate::machine;

api! {
    fn cuInit(flags: u32) = init;
    fn cuDriverGetVersion(version: Out<i32>) = version;
    fn cuGetErrorName(code: u32, text: Out<u64>) = error_name;
    fn cuGetErrorString(code: u32, text: Out<u64>) = error_sentence;
}

fn init(flags: u32) -> Answer {
    if flags == 0 { machine::begin() } else { Err(Error::INVALID_VALUE) }
}

fn version(version: Out<i32>) -> Answer {
    version.put(i32::try_from(machine::version()).unwrap_or(i32::MAX))
}

fn error_name(code: u32, text: Out<u64>) -> Answer {
    put_text(text, error::texts(code).map(|(name, _)| name))
}

fn error_sentence(code: u32, text: Out<u64>) -> Answer {
    put_text(text, error::texts(code).map(|(_, sentence)| sentence))
}

fn put_text(text: Out<u64>, found: Option<&'static str>) -> Answer {
    text.put(found.map_or(0, |found| found.as_ptr().expose_provenance() as u64))?;
    found.map_or(Err(Error::INVALID_VALUE), |_| Ok(()))
}
