//! `<runtime-dir>/control/node.json`: which process serves where. With the links to it and to the control socket.

use crate::args::Directories;
use crate::control_socket;
use crate::http::control::Addresses;
use omni_dir::{Dir, runtime};
use std::fs::{self, File};
use std::io::{self, Write};

const NAME: &str = "node.json";

/// Writes the file, beside and renamed, so that a reader sees all or nothing.
///
/// # Errors
/// The folder cannot be written.
pub fn announce(directories: &Directories, addresses: &Addresses) -> io::Result<()> {
    let text = serde_json::json!({
        "pid": std::process::id(),
        "listen": addresses.listen,
        "admin_listen": addresses.admin_listen,
    });
    let own = directories.own_runtime();
    let fresh = own.join(".node.json");
    // Whatever lies there, which may be a FIFO, is not written to.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => File::create_new(&fresh)?.write_all(format!("{text}\n").as_bytes())?,
    }
    fs::rename(&fresh, own.join(NAME))?;
    // The links are root's to make, but in a runtime directory that a release before them has left to this user.
    let _ = Dir::open(&directories.runtime).and_then(|dir| runtime::link(&dir));
    Ok(())
}

/// Removes what a node that has ended has no use for. Who comes next would replace it.
pub fn withdraw(directories: &Directories) {
    for name in [NAME, control_socket::NAME, "scheduler.lock"] {
        let _ = fs::remove_file(directories.own_runtime().join(name));
    }
}
