//! An order from its source to the disk: what there is, what is missing, and all of that in parallel ranges.

use crate::client::{Client, Connections};
use crate::failure::Failure;
use crate::pace::{Progress, Watch};
use crate::part::Part;
use crate::range;
use crate::source::{Listing, RemoteFile};
use crate::transfer;
use nix::sys::statvfs::statvfs;
use omni_weights::{Digest, FETCHED, Fetched, FetchedFile, Order, Report, on_disk};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Threads that compute digests: each is faster than a network of ten gigabits.
const HASHERS: usize = 2;

/// Recipient of reports.
pub(crate) type Sink = Arc<dyn Fn(Report) + Send + Sync>;

/// Folders of a run.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// Where it writes.
    pub(crate) work: PathBuf,
    /// Contents that the node has, by their digests.
    pub(crate) files: PathBuf,
}

/// Parts of a run, shared by its tasks.
struct Run {
    client: Arc<Client>,
    parts: Vec<Part>,
    /// Ranges that nobody fetches yet: of which part, and their numbers.
    missing: Mutex<VecDeque<(usize, u64)>>,
    /// Bytes of the files that the node has.
    known: u64,
    /// The part whose digest is computed next.
    next_digest: AtomicUsize,
}

impl Run {
    /// Bytes that are on the disk.
    fn progress(&self) -> u64 {
        self.known + self.parts.iter().map(Part::fetched).sum::<u64>()
    }

    /// Progress that counts for the pace.
    fn pace(&self) -> Progress {
        self.client.traffic.progress(self.parts.iter().map(Part::hashed).sum())
    }
}

/// Fetches an order, and leaves the list of its files for the launcher.
pub(crate) async fn order(
    order: &Order,
    listing: &Listing<'_>,
    client: Arc<Client>,
    folders: &Folders,
    sink: &Sink,
    mut watch: Watch,
) -> Result<(), Failure> {
    let mut connections = Connections::new(Arc::clone(&client));
    let files = watch.over(|| client.traffic.progress(0), listing.files(&mut connections)).await??;
    let bytes = files.iter().map(|file| file.size).fold(0, u64::saturating_add);
    if bytes > order.most_bytes {
        return Err(Failure::TooLarge { bytes, most: order.most_bytes });
    }
    let fetched = match attempt(order, listing, &client, folders, files.clone(), sink, &mut watch).await {
        // Ranges of an earlier run are of another content: without them, all of it is of one.
        Err((Failure::Changed { path } | Failure::WrongDigest { path, .. }, true)) => {
            sink(Report::Note { text: format!("{path} has changed since an earlier attempt: it is fetched anew") });
            clear(folders).map_err(Failure::Disk)?;
            attempt(order, listing, &client, folders, files, sink, &mut watch).await
        }
        fetched => fetched,
    };
    if let Err((Failure::Changed { .. } | Failure::WrongDigest { .. } | Failure::DiskFull { .. }, _)) = &fetched {
        clear(folders).map_err(Failure::Disk)?;
    }
    let fetched = fetched.map_err(|(failure, _)| failure)?;
    let list = serde_json::to_vec(&fetched).map_err(|error| Failure::Disk(error.into()))?;
    // A list that is there is complete.
    let unfinished = folders.work.join("list");
    fs::write(&unfinished, list)
        .and_then(|()| fs::rename(unfinished, folders.work.join(FETCHED)))
        .map_err(Failure::Disk)
}

/// A failure comes with whether something of an earlier run was used.
async fn attempt(
    order: &Order,
    listing: &Listing<'_>,
    client: &Arc<Client>,
    folders: &Folders,
    files: Vec<RemoteFile>,
    sink: &Sink,
    watch: &mut Watch,
) -> Result<Fetched, (Failure, bool)> {
    let total = files.iter().map(|file| file.size).fold(0, u64::saturating_add);
    let (known, missing): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| has(folders, file));
    let missing_bytes = missing.iter().map(|file| file.size).fold(0, u64::saturating_add);
    sink(Report::Listed { total, missing: missing_bytes });
    let plain = |failure| (failure, false);
    let parts = open_all(order, listing, folders, missing).map_err(plain)?;
    let is_resumed = parts.iter().any(|part| part.is_resumed);
    let ranges = (0..).zip(&parts).flat_map(|(at, part)| part.missing().into_iter().map(move |number| (at, number)));
    let run = Arc::new(Run {
        client: Arc::clone(client),
        missing: Mutex::new(ranges.collect()),
        known: total - missing_bytes,
        next_digest: AtomicUsize::new(0),
        parts,
    });
    // Progress before anything is added: bytes of an earlier run.
    sink(Report::Fetched { done: run.progress() });
    let ticker = report_progress(Arc::clone(&run), Arc::clone(sink));
    let digests = fetch(&run, watch).await;
    ticker.abort();
    let digests = digests.map_err(|failure| (failure, is_resumed))?;
    let mut fetched = Fetched { files: known.into_iter().filter_map(known_file).collect() };
    for (part, digest) in run.parts.iter().zip(digests) {
        if let Some(expected) = part.remote.sha256.as_ref().filter(|expected| **expected != digest) {
            let (path, expected) = (part.remote.path.clone(), expected.to_string());
            return Err((Failure::WrongDigest { path, expected, found: digest.to_string() }, is_resumed));
        }
        fetched.files.push(part.fetched_file(digest));
    }
    sink(Report::Fetched { done: total });
    Ok(fetched)
}

/// Fetches all ranges, while digests are computed; returns those of all parts.
async fn fetch(run: &Arc<Run>, watch: &mut Watch) -> Result<Vec<Digest>, Failure> {
    let hashers: Vec<_> = (0..HASHERS).map(|_| spawn_blocking(hasher(Arc::clone(run)))).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        tasks.spawn(fetch_ranges(Arc::clone(run)));
    }
    let mut failure = None;
    loop {
        let ended = match watch.over(|| run.pace(), tasks.join_next()).await {
            Ok(None) => break,
            Ok(Some(ended)) => ended.unwrap_or_else(|error| Err(Failure::Disk(io::Error::other(error)))),
            Err(slow) => Err(slow.into()),
        };
        if let Err(why) = ended {
            // Aborted tasks end without a reason of their own.
            failure.get_or_insert(why);
            tasks.abort_all();
        }
    }
    let mut connections = Connections::new(Arc::clone(&run.client));
    for part in run.parts.iter().filter(|part| part.is_whole()) {
        if failure.is_none() {
            let fetched = watch.over(|| run.pace(), transfer::whole(&mut connections, part)).await;
            failure = fetched.map_err(Failure::from).and_then(|fetched| fetched).err();
        }
    }
    if failure.is_some() {
        run.parts.iter().for_each(Part::abort);
    }
    let mut digests: Vec<(usize, Digest)> = Vec::new();
    for hasher in hashers {
        match hasher.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(some) => digests.extend(some),
            Err(error) => failure = failure.or(Some(Failure::Disk(error))),
        }
    }
    if failure.is_none() {
        digests.extend(whole_digests(run).await?);
    }
    digests.sort_by_key(|(at, _)| *at);
    failure.map_or_else(|| Ok(digests.into_iter().map(|(_, digest)| digest).collect()), Err)
}

/// Digests of the parts that were fetched as a whole.
async fn whole_digests(run: &Arc<Run>) -> Result<Vec<(usize, Digest)>, Failure> {
    let run = Arc::clone(run);
    let compute = move || {
        let whole = run.parts.iter().enumerate().filter(|(_, part)| part.is_whole());
        whole.filter_map(|(at, part)| Some(part.digest().transpose()?.map(|digest| (at, digest)))).collect()
    };
    spawn_blocking(compute).await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(Failure::Disk)
}

async fn fetch_ranges(run: Arc<Run>) -> Result<(), Failure> {
    let mut connections = Connections::new(Arc::clone(&run.client));
    loop {
        let next = range::request(&mut run.missing.lock().unwrap_or_else(PoisonError::into_inner), CONNECTIONS);
        let Some((at, numbers)) = next else { return Ok(()) };
        let Some(part) = run.parts.get(at) else { continue };
        transfer::ranges(&mut connections, part, numbers).await?;
    }
}

/// Takes one part after the other, in their order, and computes its digest as its ranges come. Parts that are fetched as a
/// whole are left out.
fn hasher(run: Arc<Run>) -> impl FnOnce() -> io::Result<Vec<(usize, Digest)>> {
    move || {
        let mut digests = Vec::new();
        loop {
            let at = run.next_digest.fetch_add(1, Ordering::Relaxed);
            let Some(part) = run.parts.get(at) else { return Ok(digests) };
            match part.digest()? {
                Some(digest) => digests.push((at, digest)),
                None if part.is_whole() => {}
                None => return Ok(digests),
            }
        }
    }
}

fn report_progress(run: Arc<Run>, sink: Sink) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = run.progress();
        loop {
            ticks.tick().await;
            let done = run.progress();
            if said != done {
                said = done;
                sink(Report::Fetched { done });
            }
        }
    })
}

/// Opens the parts, and reserves the room of all of them before the first byte is fetched.
fn open_all(
    order: &Order,
    listing: &Listing<'_>,
    folders: &Folders,
    missing: Vec<RemoteFile>,
) -> Result<Vec<Part>, Failure> {
    let needed: u64 = missing.iter().map(|file| file.size).sum();
    let disk = statvfs(&folders.work).map_err(|errno| Failure::Disk(errno.into()))?;
    let free = disk.blocks_available().saturating_mul(disk.fragment_size()).saturating_sub(order.reserve);
    // Parts of an earlier run have their room.
    let free = free.saturating_add(on_disk(&folders.work));
    if needed > free {
        return Err(Failure::DiskFull { needed, free });
    }
    let own = &listing.endpoint.origin;
    let open = |(number, file)| Part::open(&folders.work, number, file, &order.boot, own);
    (0..).zip(missing).map(open).collect::<Result<_, _>>().map_err(|failure| match failure {
        Failure::DiskFull { .. } => Failure::DiskFull { needed, free },
        failure => failure,
    })
}

fn has(folders: &Folders, file: &RemoteFile) -> bool {
    let found = file.sha256.as_ref().and_then(|digest| fs::metadata(folders.files.join(digest.as_str())).ok());
    found.is_some_and(|found| found.is_file() && found.len() == file.size)
}

/// A file whose content the node has.
fn known_file(file: RemoteFile) -> Option<FetchedFile> {
    let RemoteFile { path, size, sha256, etag, .. } = file;
    Some(FetchedFile { path, size, sha256: sha256?, verified: true, etag, part: None })
}

/// Removes what is in the working folder.
fn clear(folders: &Folders) -> io::Result<()> {
    for entry in fs::read_dir(&folders.work)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}
