//! `omnictl completion`: completion scripts, made from the command line's own description.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Context;
use crate::cli::Cli;
use crate::exit::Exit;
use crate::failure::Failure;

pub(super) fn run(context: &mut Context<'_>, shell: Shell) -> Result<Exit, Failure> {
    // `generate` panics when its writer fails; memory does not.
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "omnictl", &mut script);
    context.out.bytes(&script)?;
    Ok(Exit::Ok)
}
