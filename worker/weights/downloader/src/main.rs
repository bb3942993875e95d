//! `omni-weights ORDER WORK FILES`: fetches the weights of a model. Started by `omni-launcher` in a sandbox, with the host's
//! network and without any right; it reads one order, writes into one folder, and reports on its standard output.
//!
//! Invariants: it asks only servers that the node's rules allow, under addresses that were checked; what it leaves is listed with
//! its digest, computed from what is on the disk.
#![forbid(unsafe_code)]

mod address;
mod client;
mod download;
mod failure;
mod journal;
mod pace;
mod part;
mod range;
mod resolver;
mod retry;
mod rules;
mod signature;
mod source;
#[cfg(test)]
mod tests;
mod tls;
mod transfer;
mod url;

use client::{Client, Traffic};
use download::{Folders, Sink};
use failure::Failure;
use omni_config::Source;
use omni_weights::{Order, Report, SECRET};
use pace::{Pace, WINDOW, Watch};
use resolver::{Resolver, System};
use rules::Rules;
use source::Listing;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{fs, io};

fn main() -> ExitCode {
    let sink: Sink = Arc::new(|report| {
        // Without a launcher a report has no recipient.
        let line = serde_json::to_string(&report).unwrap_or_default();
        let _ = writeln!(io::stdout(), "{line}");
    });
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [order, work, files] = arguments.as_slice() else {
        let _ = writeln!(io::stderr(), "usage: omni-weights ORDER WORK FILES");
        return ExitCode::FAILURE;
    };
    let result = read_order(order).and_then(|order| {
        // A second thread would wait for the first: the kernel lets one at a time write to a file.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::Disk)?;
        let folders = Folders { work: work.clone(), files: files.clone() };
        let secret = std::env::var(SECRET).ok();
        let pace = Pace::new(WINDOW);
        runtime.block_on(fetch(&order, secret.as_deref(), Arc::new(System), &folders, &sink, pace))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            sink(Report::Failed { message: failure.to_string(), permanent: failure.is_permanent() });
            ExitCode::FAILURE
        }
    }
}

fn read_order(path: &Path) -> Result<Order, Failure> {
    let text = fs::read(path).map_err(|error| Failure::Order(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| Failure::Order(error.to_string()))
}

/// Fetches an order into the folders.
async fn fetch(
    order: &Order,
    secret: Option<&str>,
    resolver: Arc<dyn Resolver>,
    folders: &Folders,
    sink: &Sink,
    pace: Pace,
) -> Result<(), Failure> {
    let source: Source = order.source.parse().map_err(|error| Failure::Order(format!("{}: {error}", order.source)))?;
    let endpoint = source::endpoint(&source, order)?;
    let rules = Rules {
        own: endpoint.origin.clone(),
        redirects: order.redirects.clone(),
        private_hosts: order.private_hosts.clone(),
    };
    let access = source::access(&source, order, secret)?;
    let tls = tls::connector(order.authorities.as_deref())?;
    let (credential, traffic) = (order.credential.clone(), Traffic::default());
    let client = Arc::new(Client { rules, tls, resolver, access, credential, traffic });
    let listing = Listing { order, source: &source, endpoint };
    download::order(order, &listing, client, folders, sink, Watch::new(pace)).await
}
