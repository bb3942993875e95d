//! Serves one control group's files at an existing directory until standard input ends. For benchmarks and for trying out.
//!
//! `serve DIR TARGET`: DIR is a group's directory of cgroup v1's memory hierarchy or of v2. Prints "serving" when
//! readers are answered, and leaves nothing behind. The processor time is that of the whole machine, of which one
//! processor is shown.

use std::env;
use std::error::Error;
use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::mount::umount;
use omni_meminfo_fs::{CgroupV1, CgroupV2, Groups, MemorySource, Processors, Shown, View, prepare};

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
    let accounting = Path::new("/sys/fs/cgroup/cpuacct");
    let processors = if accounting.exists() {
        Processors::open_v1(accounting, Shown::by_limit(1000)?, 0)?
    } else {
        Processors::open_v2(Path::new("/sys/fs/cgroup"), Shown::by_limit(1000)?, 0)?
    };
    let target = CString::new(target.as_bytes())?;

    let (mount, connection) = prepare()?;
    let server = connection.serve(Groups::new(View::new(source, processors)))?;
    mount.attach(&target)?;
    drop(mount);
    println!("serving");
    io::stdin().read_to_end(&mut Vec::new())?;
    umount(target.as_c_str())?;
    server.join()?;
    Ok(())
}
