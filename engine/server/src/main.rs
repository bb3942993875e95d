//! `omni-engine`: the native engine as a program.
#![forbid(unsafe_code)]

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use omni_engine::alone::memory::parse_size;
use omni_engine::bench::{self, Measurements};
use omni_engine::model::{LoadOptions, Model};
use omni_engine::{alone, bench_drafts, perplexity, tenant};
use omni_kernels_cpu::Weights;
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Inference engine for models in safetensors or GGUF files.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a node's instance, by the control socket at descriptor 3
    #[command(hide = true)]
    Instance,
    /// Serve a model alone, with the OpenAI API
    Serve(Serve),
    /// Measure the speed of a model on this machine, as JSON
    Bench(Bench),
    /// Compute the perplexity of a model over a text, as JSON
    Perplexity(Perplexity),
}

/// Model and the form in which it is loaded.
#[derive(Args)]
struct ModelArguments {
    /// Directory with safetensors, or GGUF file
    model: PathBuf,
    /// Form of the weights in memory
    #[arg(long, value_enum, default_value_t = WeightsArgument::AsStored)]
    weights: WeightsArgument,
    /// Threads; by default as many as processors may be used
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum WeightsArgument {
    /// As the file has them
    AsStored,
    /// 32-bit numbers, the reference
    F32,
    /// 8-bit integers
    Int8,
    /// 4-bit integers in groups of 32
    Int4,
}

#[derive(Args)]
struct Serve {
    #[command(flatten)]
    model: ModelArguments,
    /// Smaller model with the same vocabulary, directory or GGUF file, that drafts tokens for this one to verify
    #[arg(long, value_name = "PATH")]
    draft: Option<PathBuf>,
    /// Address of the listener; all who reach it may use the model
    #[arg(long, default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// Memory for weights, steps and cache, such as 4GiB; by default the control group's limit, or else half of what
    /// is available
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Most sequences that are computed at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    sequences: usize,
    /// Name of the model for clients; by default that of the file or directory
    #[arg(long)]
    name: Option<String>,
}

#[derive(Args)]
struct Bench {
    #[command(flatten)]
    model: ModelArguments,
    /// Draft model: one answer is measured without drafts and with its drafts, and nothing else
    #[arg(long, value_name = "PATH", conflicts_with_all = ["prompts", "batches", "depth"])]
    draft: Option<PathBuf>,
    /// Lengths of prompts
    #[arg(long, value_delimiter = ',', default_value = "512")]
    prompts: Vec<usize>,
    /// Numbers of sequences that are answered beside each other
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    batches: Vec<usize>,
    /// Positions of each sequence before the measured ones
    #[arg(long, default_value_t = 128)]
    depth: usize,
    /// Repetitions, whose median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Args)]
struct Perplexity {
    #[command(flatten)]
    model: ModelArguments,
    /// Text
    text: PathBuf,
    /// Tokens of a window
    #[arg(long, default_value_t = 1024)]
    window: usize,
    /// Most windows
    #[arg(long, default_value_t = 10)]
    windows: usize,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Instance => return ExitCode::from(u8::try_from(tenant::run()).unwrap_or(1)),
        Command::Serve(arguments) => serve(arguments),
        Command::Bench(arguments) => measure(&arguments),
        Command::Perplexity(arguments) => compute_perplexity(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "omni-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

impl ModelArguments {
    fn options(&self) -> LoadOptions {
        let weights = match self.weights {
            WeightsArgument::AsStored => Weights::AsStored,
            WeightsArgument::F32 => Weights::F32,
            WeightsArgument::Int8 => Weights::Int8,
            WeightsArgument::Int4 => Weights::Int4,
        };
        let default = LoadOptions::default();
        LoadOptions { weights, threads: self.threads.unwrap_or(default.threads), ..default }
    }
}

fn serve(arguments: Serve) -> Result<(), Box<dyn Error>> {
    let load = arguments.model.options();
    let Serve { model, draft, listen, memory, sequences, name } = arguments;
    Ok(alone::serve(&alone::Options { path: model.model, draft, listen, memory, sequences, name, load })?)
}

fn measure(arguments: &Bench) -> Result<(), Box<dyn Error>> {
    let model = Model::open(&arguments.model.model)?;
    let options = arguments.model.options();
    if let Some(draft) = &arguments.draft {
        return print(&bench_drafts::run(&model, draft, &options, arguments.rounds)?);
    }
    let mut backend = model.load(&options, &mut |_, _| {})?;
    let measured = Measurements {
        prompts: arguments.prompts.clone(),
        batches: arguments.batches.clone(),
        depth: arguments.depth,
        rounds: arguments.rounds,
    };
    print(&bench::run(&mut backend, model.vocabulary.size(), options.threads, &measured)?)
}

fn compute_perplexity(arguments: &Perplexity) -> Result<(), Box<dyn Error>> {
    let model = Model::open(&arguments.model.model)?;
    let text = std::fs::read_to_string(&arguments.text)?;
    let tokens = model.tokenizer.encode(&text, false, &[])?;
    let mut backend = model.load(&arguments.model.options(), &mut |_, _| {})?;
    let windows = (arguments.window, arguments.windows);
    print(&perplexity::run(&mut backend, &model.vocabulary, &tokens, windows)?)
}

fn print(value: &impl Serialize) -> Result<(), Box<dyn Error>> {
    writeln!(io::stdout(), "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}
