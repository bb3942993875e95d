//! Announcement of the serving process and its addresses in `<runtime-dir>/control/node.json`, with the links to it and to the control
//! socket.

use crate::args::Directories;
use omni_admin::control::Addresses;
use omni_dir::runtime::{CONTROL_SOCKET, LOCK_FILE, NODE_FILE};
use omni_dir::{Dir, runtime};
use std::fs::{self, File};
use std::io::{self, Write};

/// Writes the announcement to a new file and renames that, so that readers see all or nothing.
///
/// # Errors
/// The folder is not writable.
pub(crate) fn announce(directories: &Directories, addresses: &Addresses) -> io::Result<()> {
    let text = serde_json::json!({
        "pid": std::process::id(),
        "listen": addresses.listen,
        "admin_listen": addresses.admin_listen,
    });
    let own = directories.own_runtime();
    let fresh = own.join(".node.json");
    // An existing file, which may be a FIFO, is not written to.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => File::create_new(&fresh)?.write_all(format!("{text}\n").as_bytes())?,
    }
    fs::rename(&fresh, own.join(NODE_FILE))?;
    // Made by root, except in a runtime directory that an earlier release has left to this user.
    let _ = Dir::open(&directories.runtime).and_then(|dir| runtime::link(&dir));
    Ok(())
}

/// Removes the files of a node that has ended. The next scheduler would replace them, too.
pub(crate) fn withdraw(directories: &Directories) {
    for name in [NODE_FILE, CONTROL_SOCKET, LOCK_FILE] {
        let _ = fs::remove_file(directories.own_runtime().join(name));
    }
}
