//! Account over the processes of an instance: forks, programs that execute others, second copies of the library.
#![allow(unsafe_code, reason = "fork, exec, dlmopen")]

use crate::calls::cuMemAlloc_v2;
use crate::client::{allocate, begin, free};
use crate::instance::{DRIVERS, Instance, MIB, say, wait};
use omni_gpu_protocol::account::{FILE_BYTES, HEADER_BYTES, SLOT_BYTES};
use std::ffi::{CString, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[test]
fn processes_share_one_limit() {
    let instance = Instance::new(DRIVERS[0], "unified", 10 * MIB);
    let mut first = instance.start(&format!("hold {}", 6 * MIB));
    first.expect("0");
    let mut second = instance.start(&format!("hold {}", 6 * MIB));
    second.expect("2");
    second.go_on();
    second.end();
    let mut third = instance.start(&format!("hold {}", 4 * MIB));
    third.expect("0");
    assert_eq!(instance.used().managed, 10 * MIB);
    first.kill();
    assert_eq!(instance.used().managed, 4 * MIB);
    let mut fourth = instance.start(&format!("hold {}", 6 * MIB));
    fourth.expect("0");
}

/// Allocates, prints the result, and waits.
pub(crate) fn hold(bytes: u64) {
    begin();
    say(&allocate(bytes).map_or_else(|error| error, |_| 0).to_string());
    wait();
}

#[test]
fn a_child_has_an_account_of_its_own() {
    for account in [None, Some("")] {
        let instance = Instance::new(DRIVERS[0], "unified", 10 * MIB);
        let variables: Vec<(&str, &str)> = account.iter().map(|nothing| ("OMNI_GPU_ACCOUNT", *nothing)).collect();
        let mut client = instance.start_with("fork", &variables);
        client.expect("child: 0 0 2");
        if account.is_none() {
            assert_eq!(instance.slots().len(), 1);
        }
        client.expect("parent beside it: 2");
        client.expect("parent after it: 0");
        client.end();
    }
}

/// The child takes 6 of 10 MiB; memory that it does not free ends with it.
pub(crate) fn fork() {
    let (mut to_child, mut to_parent) = ([0; 2], [0; 2]);
    for pipe in [&mut to_child, &mut to_parent] {
        // SAFETY: an array of two.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    }
    // SAFETY: the child calls only what this process has never called before.
    let child = unsafe { libc::fork() };
    let pass = |pipe: [i32; 2]| {
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::write(pipe[1], b"x".as_ptr().cast(), 1) }, 1);
    };
    let await_pass = |pipe: [i32; 2]| {
        let mut byte = 0_u8;
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) }, 1);
    };
    if child == 0 {
        begin();
        let first = allocate(4 * MIB).err().unwrap_or(0);
        let second = allocate(2 * MIB).err().unwrap_or(0);
        let third = allocate(5 * MIB).err().unwrap_or(0);
        say(&format!("child: {first} {second} {third}"));
        pass(to_parent);
        await_pass(to_child);
        // SAFETY: ends the child without what the test program would do.
        unsafe { libc::_exit(0) };
    }
    await_pass(to_parent);
    begin();
    say(&format!("parent beside it: {}", allocate(5 * MIB).err().unwrap_or(0)));
    pass(to_child);
    // SAFETY: our child; nothing is written.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    say(&format!("parent after it: {}", allocate(10 * MIB).err().unwrap_or(0)));
}

#[test]
fn a_fork_after_the_driver_began_changes_nothing() {
    let instance = Instance::new(DRIVERS[0], "unified", 10 * MIB);
    let mut client = instance.start("fork-after-init");
    client.expect("child ended by itself");
    assert_eq!(instance.used().managed, 3 * MIB);
    client.go_on();
    client.expect("freed");
    assert_eq!(instance.used().limited(), 0);
    client.go_on();
    client.end();
}

/// Child of a process with GPU memory: the driver refuses it everything, and the shim lets it.
pub(crate) fn fork_after_init() {
    begin();
    let address = allocate(3 * MIB).unwrap();
    // SAFETY: the child calls the driver, which has to bear that, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut other = 0;
        let answered = cuMemAlloc_v2(&raw mut other, 1 << 20);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(answered == 0)) };
    }
    let mut status = -1;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    say(if libc::WIFEXITED(status) { "child ended by itself" } else { "child was killed" });
    wait();
    free(address);
    say("freed");
    wait();
}

#[test]
fn memory_of_a_program_is_uncounted_when_it_executes_another() {
    let instance = Instance::new(DRIVERS[0], "unified", 10 * MIB);
    let mut client = instance.start("exec");
    client.expect("7 MiB");
    assert_eq!(instance.used().managed, 7 * MIB);
    client.go_on();
    client.expect("0");
    assert_eq!(instance.used().managed, 8 * MIB, "of the new program alone");
}

pub(crate) fn exec() {
    begin();
    allocate(7 * MIB).unwrap();
    say("7 MiB");
    wait();
    let program = std::env::current_exe().unwrap();
    let arguments = ["client", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let error = Command::new(program).args(arguments).env("OMNI_TEST_CLIENT", format!("hold {}", 8 * MIB)).exec();
    panic!("{error}");
}

#[test]
fn an_empty_account_is_set_up() {
    for contents in [Vec::new(), vec![0; 100], vec![0; FILE_BYTES], vec![0xff; FILE_BYTES]] {
        let instance = Instance::new(DRIVERS[0], "device", 10 * MIB);
        fs::write(instance.account(), contents).unwrap();
        let mut client = instance.start(&format!("hold {}", 6 * MIB));
        client.expect("0");
        assert_eq!(instance.used().device, 6 * MIB);
    }
    let instance = Instance::new(DRIVERS[0], "device", 10 * MIB);
    fs::remove_file(instance.account()).unwrap();
    let mut client = instance.start(&format!("hold {}", 6 * MIB));
    client.expect("0");
    assert_eq!(instance.used().device, 6 * MIB);
}

#[test]
fn an_overwritten_account_crashes_no_process_and_allows_nothing_more() {
    let instance = Instance::new(DRIVERS[0], "device", 10 * MIB);
    let mut first = instance.start(&format!("hold {}", 6 * MIB));
    first.expect("0");
    let whole = fs::read(instance.account()).unwrap();
    for (from, to) in [(8, 16), (16, 80), (HEADER_BYTES + SLOT_BYTES, FILE_BYTES)] {
        let mut broken = whole.clone();
        broken[from..to].fill(0xff);
        fs::write(instance.account(), &broken).unwrap();
        let mut client = instance.start(&format!("hold {}", 5 * MIB));
        client.expect("2");
        client.go_on();
        client.end();
        fs::write(instance.account(), &whole).unwrap();
    }
    // Not even the true slot is left: the limit is not guaranteed then, but all processes live.
    fs::write(instance.account(), vec![0xff; FILE_BYTES]).unwrap();
    first.go_on();
    first.end();
}

#[test]
fn a_second_copy_of_the_library_counts_into_the_same_account() {
    let instance = Instance::new(DRIVERS[0], "unified", 10 * MIB);
    let mut client = instance.start("hold-twice");
    client.expect("first: 0");
    client.expect("second: 2");
    client.expect("second: 0");
    assert_eq!((instance.used().managed, instance.slots().len()), (10 * MIB, 1));
}

/// Loads the same library and driver once more, in a namespace of the loader of their own.
pub(crate) fn hold_twice() {
    begin();
    say(&format!("first: {}", allocate(6 * MIB).err().unwrap_or(0)));
    let path = CString::new(omni_cuda_card::built("libomni_cuda.so").unwrap().as_os_str().as_bytes()).unwrap();
    // SAFETY: a path that ends with a zero.
    let copy = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, path.as_ptr(), libc::RTLD_NOW) };
    assert!(!copy.is_null(), "no second copy");
    let find = |name: &std::ffi::CStr| {
        // SAFETY: an open library, a string that ends with a zero.
        let address = unsafe { libc::dlsym(copy, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    };
    let [init, create] = [c"cuInit", c"cuCtxCreate_v2"].map(|name| driver_symbol(name, copy));
    // SAFETY: the type is the header's.
    let init = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> i32>(init) };
    // SAFETY: the type is the header's.
    let create = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, u32, i32) -> i32>(create) };
    let allocate = find(c"cuMemAlloc_v2");
    // SAFETY: the type is the header's.
    let allocate =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> i32>(allocate) };
    let (mut context, mut address) = (0, 0);
    // SAFETY: no pointers.
    assert_eq!(unsafe { init(0) }, 0);
    // SAFETY: a place of ours.
    assert_eq!(unsafe { create(&raw mut context, 0, 0) }, 0);
    for mib in [5, 4] {
        // SAFETY: a place of ours.
        say(&format!("second: {}", unsafe { allocate(&raw mut address, mib << 20) }));
    }
    wait();
}

/// Symbol of the driver that the second copy uses.
fn driver_symbol(name: &std::ffi::CStr, copy: *mut c_void) -> *mut c_void {
    let mut namespace: libc::Lmid_t = 0;
    // SAFETY: an open library; the namespace is written where we say.
    assert_eq!(unsafe { libc::dlinfo(copy, libc::RTLD_DI_LMID, (&raw mut namespace).cast()) }, 0);
    // SAFETY: as above.
    let driver = unsafe { libc::dlmopen(namespace, c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!driver.is_null(), "no second driver");
    // SAFETY: an open library, a string that ends with a zero.
    unsafe { libc::dlsym(driver, name.as_ptr()) }
}
