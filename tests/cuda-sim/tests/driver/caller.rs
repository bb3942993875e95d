//! Process that calls the simulated driver on command: one call a line on its standard input, one answer a line.
//!
//! The driver's state belongs to a process, and so does the environment that it reads; so every test has processes of its
//! own. They are this very program, started again with the one ignored test below.
#![allow(unsafe_code, reason = "dlopen, and calls of C functions by name")]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Marks an answer among what the test harness prints.
const ANSWER: &str = "answer ";
/// Places for what calls give back.
const CELLS: usize = 64;

/// A process that calls the driver.
pub(crate) struct Caller {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Caller {
    /// On the cards in `cards`, with more of the environment.
    pub(crate) fn start(cards: &Path, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["caller::caller_process", "--exact", "--ignored", "--nocapture"])
            .env("OMNI_CUDA_SIM", cards)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Caller with a context on its first device; the context is in cell 0.
    pub(crate) fn with_context(cards: &Path) -> Self {
        let mut caller = Self::start(cards, &[]);
        caller.ok("cuInit 0");
        caller.ok("cuCtxCreate_v2 &0 0 0");
        caller
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `name argument…`: numbers, `&3` (the address of cell 3), `$3` (what is in it), `'text`. Answers the result.
    pub(crate) fn call(&mut self, line: &str) -> u64 {
        self.send(line);
        self.answer()
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> u64 {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process has ended");
            // The harness's own words may stand before it on the line.
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.parse().unwrap();
            }
        }
    }

    pub(crate) fn ok(&mut self, line: &str) {
        assert_eq!(self.call(line), 0, "{line}");
    }

    /// Value of a cell.
    pub(crate) fn cell(&mut self, number: usize) -> u64 {
        self.call(&format!("cell {number}"))
    }

    /// Kills it where it is.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // The child may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The driver that was built with this test.
pub(crate) fn library() -> PathBuf {
    omni_cuda_card::built("libcuda_sim.so").unwrap()
}

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: a library that is open, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

extern "C" fn count_call(data: *mut c_void) {
    // SAFETY: the tests give the address of a cell.
    unsafe { *data.cast::<u64>() += 1 };
}

/// Integers and pointers are passed alike, and a function does not look at arguments that it does not have.
type Function = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

fn call(function: *mut c_void, arguments: &[u64]) -> u32 {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    // SAFETY: an exported entry; the tests write its arguments as it declares them.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function) };
    let [a, b, c, d, e, f, g, h, i, j, k] = std::array::from_fn(argument);
    function(a, b, c, d, e, f, g, h, i, j, k)
}

/// Calls in the child of a fork, and returns the result as exit status.
fn in_fork(function: *mut c_void, arguments: &[u64]) -> u64 {
    // SAFETY: the child calls one function and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = call(function, arguments);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::try_from(result).unwrap()) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    u64::try_from(libc::WEXITSTATUS(status)).unwrap()
}

/// The other end: the driver, and what its calls gave back.
struct Driver {
    library: *mut c_void,
    cells: Vec<[Cell<u64>; 32]>,
}

impl Driver {
    fn cell(&self, number: &str) -> &[Cell<u64>; 32] {
        &self.cells[number.parse::<usize>().unwrap()]
    }

    fn value(&self, word: &str, text: &CStr) -> u64 {
        match word.split_at_checked(1) {
            Some(("&", cell)) => self.cell(cell).as_ptr().expose_provenance() as u64,
            Some(("$", cell)) => self.cell(cell)[0].get(),
            Some(("'", _)) => text.as_ptr().expose_provenance() as u64,
            Some(("-", number)) => number.parse::<u64>().unwrap().wrapping_neg(),
            _ => word.parse().unwrap(),
        }
    }

    /// Words with a small letter at the beginning of a line that are no entries of the driver.
    fn answer(&self, name: &str, words: &[&str]) -> u64 {
        let number = |at: usize| self.value(words[at], c"");
        let pointer = || std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(number(0)).unwrap());
        match name {
            // Value of a cell.
            "cell" => return self.cell(words[0])[0].get(),
            // A part of a structure: cell, word, value.
            "set" => self.cell(words[0])[usize::try_from(number(1)).unwrap()].set(number(2)),
            // A function that counts in the cell that it is given.
            "counter" => self.cell(words[0])[0].set((count_call as *const ()).expose_provenance() as u64),
            // Compares an address with that of a symbol.
            "same" => return u64::from(number(0) == symbol(self.library, words[1]).addr() as u64),
            // Length of the text in a cell that the driver gave.
            "text" => {
                let at = usize::try_from(self.cell(words[0])[0].get()).unwrap();
                // SAFETY: an address of a text of the driver.
                return unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(at)) }.count_bytes() as u64;
            }
            // The host uses memory.
            // SAFETY: an address that the test had from the driver.
            "load" => return unsafe { pointer().read() },
            // SAFETY: as above.
            "store" => unsafe { pointer().write(number(1)) },
            "fork" => {
                let numbers: Vec<u64> = words[1..].iter().map(|word| self.value(word, c"")).collect();
                return in_fork(symbol(self.library, words[0]), &numbers);
            }
            entry => {
                let function = symbol(self.library, entry);
                assert!(!function.is_null(), "{entry} is not exported");
                let texts: Vec<CString> =
                    words.iter().map(|word| CString::new(word.trim_start_matches('\'')).unwrap()).collect();
                let arguments = words.iter().zip(&texts).map(|(word, text)| self.value(word, text));
                return u64::from(call(function, &arguments.collect::<Vec<_>>()));
            }
        }
        0
    }
}

#[test]
#[ignore = "not a test: the process that the others start"]
fn caller_process() {
    let path = CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: a C string; the library runs nothing when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    let cells = (0..CELLS).map(|_| std::array::from_fn(|_| Cell::new(0))).collect();
    let driver = Driver { library, cells };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        println!("{ANSWER}{}", driver.answer(words[0], &words[1..]));
    }
}
