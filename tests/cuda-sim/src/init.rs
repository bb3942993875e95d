//! Beginning, versions, errors.

use crate::abi::{Out, api};
use crate::error::{self, Answer, Error};
use crate::machine;

api! {
    fn cuInit(flags: u32) = init;
    fn cuDriverGetVersion(version: Out<i32>) = version;
    fn cuGetErrorName(code: u32, text: Out<u64>) = error_name;
    fn cuGetErrorString(code: u32, text: Out<u64>) = error_name;
}

fn init(flags: u32) -> Answer {
    if flags == 0 { machine::begin() } else { Err(Error::INVALID_VALUE) }
}

fn version(version: Out<i32>) -> Answer {
    version.put(i32::try_from(machine::version()).unwrap_or(i32::MAX))
}

/// The name serves as the text for people, too.
fn error_name(code: u32, text: Out<u64>) -> Answer {
    let name = error::name(code);
    text.put(name.map_or(0, |name| name.as_ptr().expose_provenance() as u64))?;
    name.map_or(Err(Error::INVALID_VALUE), |_| Ok(()))
}
