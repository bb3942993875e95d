//! Client: a program that uses the driver on the test's commands, a command a line, an answer a line.
//!
//! | command | what it does | its answer |
//! | --- | --- | --- |
//! | `begin` | the driver, a context of device 0 | the context |
//! | `context N` | makes a context current | `0` |
//! | `destroy N` | destroys a context | `0` |
//! | `take N` | allocates, and fills all of it on the device | the address |
//! | `free N` | frees | `0` |
//! | `churn N` | N rounds of allocating and freeing in each of 8 threads | `0` |
//! | `capture` / `captured` | begins and ends the capture of a stream | `0` |
//! | `fork` | the child goes on with the commands, the parent waits for its end | the child's number |
//! | `orphan` | leaves a child that does nothing, until its standard input ends | the child's number |
//! | `replace` | puts sockets of its own in the places of those it did not open | how many |
//! | `heard` | how many bytes were sent to those | the number |
//! | `exit` | ends as a program ends | - |

use crate::calls::{self, cuCtxCreate_v2, cuCtxDestroy_v2, cuCtxSetCurrent, cuInit, cuMemAlloc_v2, cuMemFree_v2};
use crate::calls::{cuMemsetD8_v2, cuStreamBeginCapture_v2, cuStreamCreate, cuStreamEndCapture};
use crate::instance::say;
use std::fs;
use std::io::{BufRead, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: an unsafe call of any thread spoils the capture.
const GLOBAL: i32 = 0;

#[derive(Default)]
struct Client {
    context: u64,
    stream: u64,
    /// Descriptors it was started with.
    inherited: Vec<PathBuf>,
    /// Other ends of the sockets that replaced descriptors.
    replaced: Vec<UnixStream>,
}

pub(crate) fn run() {
    let mut client = Client { inherited: descriptors(), ..Client::default() };
    while let Some(command) = command() {
        let answer = client.obey(&command);
        say(&answer.to_string());
    }
    calls::end_now();
}

/// Next command. A forked child would read again any line that the parent has read ahead: the test waits for every
/// answer.
fn command() -> Option<String> {
    let mut line = String::new();
    let length = std::io::stdin().lock().read_line(&mut line).unwrap();
    (length > 0).then(|| line.trim_end().to_owned())
}

impl Client {
    fn obey(&mut self, command: &str) -> u64 {
        let mut words = command.split(' ');
        let (verb, number) = (words.next().unwrap(), words.next().map_or(0, |number| number.parse().unwrap()));
        match verb {
            "begin" => {
                assert_eq!((cuInit(0), cuCtxCreate_v2(&raw mut self.context, 0, 0)), (0, 0));
                self.context
            }
            "context" => code(cuCtxSetCurrent(number)),
            "destroy" => code(cuCtxDestroy_v2(number)),
            "take" => take(number),
            "free" => code(cuMemFree_v2(number)),
            "churn" => self.churn(number),
            "capture" => {
                assert_eq!(cuStreamCreate(&raw mut self.stream, 1), 0);
                code(cuStreamBeginCapture_v2(self.stream, GLOBAL))
            }
            "captured" => code(cuStreamEndCapture(self.stream, &raw mut self.context)),
            "fork" => match calls::fork() {
                0 => u64::from(std::process::id()),
                child => {
                    while fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z")) {
                        thread::yield_now();
                    }
                    calls::end_now()
                }
            },
            "orphan" => match calls::fork() {
                0 => {
                    let _ = std::io::stdin().read(&mut [0; 1]);
                    calls::end_now()
                }
                child => u64::try_from(child).unwrap(),
            },
            "replace" => self.replace(),
            "heard" => self.replaced.iter_mut().map(heard).sum(),
            "exit" => std::process::exit(0),
            unknown => panic!("{unknown} is no command"),
        }
    }

    /// Allocates and frees in several threads, each with a few ranges at a time, freed in another order.
    fn churn(&self, rounds: u64) -> u64 {
        let threads: Vec<_> = (1..9)
            .map(|thread| {
                let context = self.context;
                thread::spawn(move || {
                    assert_eq!(cuCtxSetCurrent(context), 0);
                    let mut held = Vec::new();
                    for round in 0..rounds {
                        held.push(take((round * thread * 77_777) % (3 << 20) + 1));
                        if held.len() > 5 {
                            let place = usize::try_from(round).unwrap() % held.len();
                            assert_eq!(cuMemFree_v2(held.swap_remove(place)), 0);
                        }
                    }
                    held.into_iter().for_each(|address| assert_eq!(cuMemFree_v2(address), 0));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        0
    }

    fn replace(&mut self) -> u64 {
        for path in descriptors().into_iter().filter(|path| !self.inherited.contains(path)) {
            if fs::read_link(&path).unwrap_or_default().to_string_lossy().starts_with("socket:") {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let descriptor = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
                calls::replace(descriptor, theirs.as_raw_fd());
                self.replaced.push(ours);
            }
        }
        u64::try_from(self.replaced.len()).unwrap()
    }
}

fn descriptors() -> Vec<PathBuf> {
    fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn take(bytes: u64) -> u64 {
    let (mut address, bytes) = (0, usize::try_from(bytes).unwrap());
    assert_eq!(cuMemAlloc_v2(&raw mut address, bytes), 0);
    assert_eq!(cuMemsetD8_v2(address, 1, bytes), 0);
    address
}

fn heard(socket: &mut UnixStream) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    u64::try_from(bytes.len()).unwrap()
}

fn code(result: i32) -> u64 {
    u64::try_from(result).unwrap()
}
