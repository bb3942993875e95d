//! Serves one control group's memory at an existing file until standard input ends. For benchmarks and for trying out.
//!
//! `serve DIR TARGET`: DIR is a group's directory of cgroup v1's memory hierarchy or of v2. Prints "serving" when
//! readers are answered, and leaves nothing behind.

use std::env;
use std::error::Error;
use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::mount::umount;
use omni_meminfo_fs::{CgroupV1, CgroupV2, MemorySource, prepare};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [dir, target] = &arguments[..] else {
        return Err("usage: serve DIR TARGET".into());
    };
    let dir = PathBuf::from(dir);
    let source: Box<dyn MemorySource> = if dir.join("memory.limit_in_bytes").exists() {
        Box::new(CgroupV1::open(&dir, None)?)
    } else {
        Box::new(CgroupV2::open(&dir, None)?)
    };
    let target = CString::new(target.as_bytes())?;

    let (mount, connection) = prepare()?;
    let server = connection.serve(source)?;
    mount.attach(&target)?;
    drop(mount);
    println!("serving");
    io::stdin().read_to_end(&mut Vec::new())?;
    umount(target.as_c_str())?;
    server.join()?;
    Ok(())
}
