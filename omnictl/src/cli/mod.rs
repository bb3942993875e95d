//! The command line: every command, option and help text; arguments of the larger commands in [`arguments`].
//!
//! Parsed once, in `main`. The texts are meant to be learned from; `omnictl/tests/help.rs` holds them.

mod arguments;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use omni_config::manifest::Kind;
use omni_config::{ModelName, duration};

use crate::output::Format;

pub(crate) use arguments::{Deploy, Lifecycle, Logs, Rollback, Run, WaitFor};

/// Heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// Looks after a node: its models, their state, their logs.
#[derive(Debug, Parser)]
#[command(
    name = "omnictl",
    version,
    max_term_width = 100,
    propagate_version = false,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  omnictl list                                all models and how they are
  omnictl run cowsay '{\"text\": \"hi\"}'         one request
  omnictl status cowsay                       why it does not work
  omnictl logs cowsay -f                      what it writes, as it writes
  omnictl deploy hello                        a new version of a model

Exit codes: 0 ok, 1 failed, 2 usage, 3 not ready, 4 no such model, 5 daemon unreachable,
6 machine unfit, 7 not allowed, 124 timed out, 130 interrupted."
)]
pub(crate) struct Cli {
    /// The daemon's control socket
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        help_heading = GLOBAL,
        env = "OMNI_SOCKET",
        hide_env_values = true,
        default_value = "/run/omni/control.sock"
    )]
    pub(crate) socket: PathBuf,
    /// How data is written: table, for people, or json, for programs
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        help_heading = GLOBAL,
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub(crate) output: Format,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List all models with their state
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  omnictl list
  omnictl list -o json | jq -r '.models[] | select(.state == \"failed\") | .name'"
    )]
    List,
    /// Show the state of the node, or of a model and its reason
    #[command(after_help = "\
For a model the exit code is 0 when requests are answered (it is ready, or idle and started by
its next request) and 3 when they are not, or not yet.

Examples:
  omnictl status
  omnictl status cowsay
  omnictl status cowsay >/dev/null && echo serves")]
    Status {
        /// The model; without it, the node
        #[arg(value_name = "MODEL")]
        model: Option<ModelName>,
    },
    /// Show a model's manifest: the keys it sets, or all values in force
    #[command(after_help = "\
Examples:
  omnictl show cowsay                         what its omni.toml changes
  omnictl show --effective cowsay             every key with its value in force
  omnictl show --effective cowsay -o json | jq .resources.memory")]
    Show {
        /// The model
        #[arg(value_name = "MODEL")]
        model: ModelName,
        /// Every key with its value in force, not only those that differ from the defaults
        #[arg(long)]
        effective: bool,
    },
    /// Send a model one request and print its answer
    Run(Run),
    /// Print a model's standard output and error
    #[command(after_help = "\
A line is: moment (UTC), instance, stream, text. The stream is stdout or stderr of the model, worker
for what its worker says, node for what became of an instance, build for its environment.

Examples:
  omnictl logs cowsay
  omnictl logs cowsay -n 20 -f
  omnictl logs cowsay --request 0198c5f2-7d41-7ccc-8000-3f5e2a6b9c10
  omnictl logs cowsay -o json | jq -r 'select(.stream == \"stderr\") | .text'")]
    Logs(Logs),
    /// Show the stacks of a model's threads, and write them to its log
    Stack {
        /// The model
        #[arg(value_name = "MODEL")]
        model: ModelName,
    },
    /// Build a model's environment and fetch its weights before its first request, and start nothing
    #[command(after_help = "\
Starts nothing. Without --wait the command returns when the daemon has taken the request.

Examples:
  omnictl pull cowsay --wait --timeout 2h")]
    Pull(Lifecycle),
    /// Start a model now, also one that was stopped by hand
    #[command(after_help = LIFECYCLE)]
    Start(Lifecycle),
    /// Stop a model after its requests; it stays stopped until `start`
    #[command(after_help = LIFECYCLE)]
    Stop(Lifecycle),
    /// Replace a model's instances by new ones, and try a refused version again
    #[command(after_help = LIFECYCLE)]
    Restart(Lifecycle),
    /// Wait until a model is ready, or stopped
    #[command(after_help = "\
Starts and stops nothing: a model that nobody asks for stays stopped. Exit code 3 when it failed and
is not tried again, 124 after --timeout.

Examples:
  omnictl wait cowsay --for=ready --timeout 5m")]
    Wait {
        /// The model
        #[arg(value_name = "MODEL")]
        model: ModelName,
        /// State to wait for: ready or stopped
        #[arg(long = "for", value_name = "STATE", value_enum, default_value_t, hide_possible_values = true)]
        state: WaitFor,
        /// Wait at most this long; exit code 124 if it takes longer
        #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
        timeout: Duration,
    },
    /// Publish a model's directory on this node and wait until it serves
    Deploy(Deploy),
    /// Serve an earlier version of a model again
    Rollback(Rollback),
    /// Show the versions of a model that a rollback can bring back
    #[command(after_help = "\
Examples:
  omnictl history cowsay
  omnictl history cowsay -o json | jq -r '.versions[1].version'")]
    History {
        /// The model
        #[arg(value_name = "MODEL")]
        model: ModelName,
    },
    /// Explain a model's number of instances
    #[command(after_help = "\
Examples:
  omnictl explain cowsay")]
    Explain {
        /// The model
        #[arg(value_name = "MODEL")]
        model: ModelName,
    },
    /// Write the directory of a new model, ready to serve and to test
    #[command(after_help = "\
Examples:
  omnictl init hello                          writes ./hello
  omnictl init talk --kind text-generation    a model for chats
  omnictl init @acme/summarize --dir models   writes models/@acme/summarize")]
    Init {
        /// The model's name, which is its path below the models folder
        #[arg(value_name = "NAME")]
        name: String,
        /// APIs that it answers; custom: any JSON over /ai/run
        #[arg(long, value_name = "KIND", default_value = Kind::Custom.name(), value_parser = arguments::kind())]
        kind: Kind,
        /// The folder to write it into
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
    /// Check a model's directory without a node and without running it
    #[command(after_help = "\
Looks at what the node would look at: the files, omni.toml, requirements.txt, and with Python the
syntax and the entrypoint of the model's code. Nothing of the model is run. Every finding has a
place and a hint; any finding: exit code 1.

Examples:
  omnictl check models/hello
  omnictl check . -o json")]
    Check {
        /// The model's directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Show the resource use of running models, refreshed continuously
    #[command(after_help = "\
Examples:
  omnictl top
  omnictl top --once -o json")]
    Top {
        /// Show it once
        #[arg(long)]
        once: bool,
    },
    /// Show what models were used for, by model and token
    #[command(after_help = "\
Sums over the records that the node keeps, within [usage] of its configuration. A request of several
choices counts for each. INPUT, CACHED and OUTPUT are tokens; TIME is the time in instances.

Examples:
  omnictl usage --since 24h
  omnictl usage --since 1h -o json | jq '[.rows[].output_tokens] | add'")]
    Usage {
        /// How far back
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse)]
        since: Duration,
    },
    /// Show the batches that clients have left with the node, or cancel one
    #[command(after_help = "\
The newest 100, of all owners. FAILED are requests with another response than one of success, or with
none for good. A batch that is cancelled keeps the results it has.

Examples:
  omnictl jobs
  omnictl jobs show batch_019c8b7e5d3a7c3d8f1e2a4b6c8d0e1f
  omnictl jobs -o json | jq '[.jobs[] | select(.status == \"in_progress\")] | length'")]
    Jobs {
        #[command(subcommand)]
        command: Option<JobsCommand>,
    },
    /// Show the GPUs, and the models on them
    #[command(after_help = "\
USED is what anybody has on the card, as the driver says; RESIDENT what models have there, within
BUDGET; COMMITTED the sum of what they may have, within LIMIT.

Examples:
  omnictl gpu
  omnictl gpu -o json | jq -r '.gpus[].instances[] | select(.residency == \"evicted\") | .model'")]
    Gpu,
    /// Check this machine for what a node needs, what is missing, and how to mend it
    #[command(after_help = "\
Needs no running node. The node's programs, beside omnictl or in /usr/lib/omni, try each thing as a
start of a model does. As root: what only root may try is unknown otherwise.

Exit code 0 when a node can serve models here, 6 when it cannot, 1 when that could not be found out.

Examples:
  omnictl doctor
  omnictl doctor -o json | jq -r '.checks[] | select(.state != \"ok\") | .mend'")]
    Doctor {
        /// The node's configuration file [default: /etc/omni/omni.toml when it exists]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Make a token for clients of a node, and its lines for the node's file
    #[command(after_help = "\
Needs no daemon and keeps nothing: the token is shown once, the file that `[server] tokens` names has
its digest. `systemctl reload omni` reads that file anew.

Examples:
  omnictl token ci -o json | jq -r .token")]
    Token {
        /// The holder's name, in metrics and in the file
        #[arg(value_name = "NAME", value_parser = arguments::token_holder)]
        name: String,
    },
    /// Write a completion script for a shell
    #[command(after_help = "\
Examples:
  omnictl completion bash >/etc/bash_completion.d/omnictl
  omnictl completion fish >~/.config/fish/completions/omnictl.fish")]
    Completion {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Replace the running scheduler by the program on disk, without a failed request
    #[command(after_help = "\
Starts a new process of the daemon's program, with its command line and the configuration as it is
now, and returns when that serves. The old process finishes what it has; models go on. When the new
one cannot serve, nothing has changed.

Examples:
  omnictl upgrade")]
    Upgrade,
    /// Print the versions of omnictl and of the daemon
    Version,
}

/// Action of `omnictl jobs`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Show one batch, and the faults of its file
    Show {
        /// The batch
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Cancel a batch
    Cancel {
        /// The batch
        #[arg(value_name = "ID")]
        id: String,
    },
}

const LIFECYCLE: &str = "\
Without --wait the command returns when the daemon has taken the request.

Examples:
  omnictl start cowsay --wait
  omnictl restart cowsay --wait --timeout 5m";
