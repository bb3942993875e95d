//! `omnictl token`: a new token for clients of a node, and its entry for the file of tokens.
//!
//! Invariant: the token is printed once and kept nowhere.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;

/// Where chance comes from.
const RANDOM: &str = "/dev/urandom";

#[derive(Serialize)]
struct Answer<'a> {
    name: &'a str,
    token: String,
    sha256: String,
}

pub(super) fn run(context: &mut Context<'_>, name: &str) -> Result<Exit, Failure> {
    let mut random = [0; 32];
    let read = File::open(RANDOM).and_then(|mut file| file.read_exact(&mut random));
    read.map_err(|source| Failure::File { verb: "read", path: PathBuf::from(RANDOM), source })?;
    let token = format!("omni_{}", hexadecimal(&random));
    let sha256 = hexadecimal(&Sha256::digest(&token));
    match context.format {
        Format::Json => {
            let json = serde_json::to_string(&Answer { name, token, sha256 });
            context.out.json(&json.map_err(|error| Failure::Render(error.into()))?)?;
        }
        Format::Table => {
            context.out.line(format_args!("# for the client, shown this once: {token}"))?;
            context.out.line(format_args!("[{name}]"))?;
            context.out.line(format_args!("sha256 = \"{sha256}\""))?;
        }
    }
    Ok(Exit::Ok)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_written_as_sha256sum_does() {
        let one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
        assert_eq!(hexadecimal(&Sha256::digest("one")), one);
    }
}
