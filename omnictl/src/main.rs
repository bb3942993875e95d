//! `omnictl`, the command line of a node.
//!
//! For the person on call and the author of a model: asks the daemon over its control socket, and helps to write a
//! model without one. Here: parse, run the command, print its failure, exit. Invariants: data goes to standard output,
//! everything else to standard error; the exit code is one of [`exit::Exit`].

mod cli;
mod client;
mod commands;
mod exit;
mod failure;
mod human;
mod json;
mod output;
mod sse;
mod table;

use std::io::Write;

use clap::Parser;

use crate::cli::Cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Out;

fn main() -> ! {
    let cli = Cli::parse();
    let exit = run(cli).unwrap_or_else(|failure| {
        output::report(&failure);
        failure.exit()
    });
    // Ends also a thread that still waits in a read of standard input.
    std::process::exit(exit as i32)
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    let mut stdout = std::io::stdout().lock();
    let result = commands::run(cli, Out::stdout(&mut stdout));
    // Output written before a failure is still delivered.
    let flushed = stdout.flush().map_err(Failure::Output);
    result.and_then(|exit| flushed.map(|()| exit))
}
