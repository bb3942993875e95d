//! Files of a folder that the node itself reads: opened, and never read here.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use omni_dir::retry;
use omni_node_protocol::launcher::{GGUF, NODE_FILES};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Entries of a folder that are looked through for a GGUF file.
const MOST_ENTRIES: usize = 1 << 16;

/// File that is open for the node, under its name.
pub(crate) type NodeFile = (String, OwnedFd);

/// Opens the files of a folder that the node itself reads, as far as they are there. Links are followed as long as they stay
/// in the folder; a file that not everybody may read is none that a model has.
pub(crate) fn open_node_files(folder: impl AsFd) -> Vec<NodeFile> {
    let gguf = only_gguf(&folder);
    let names = NODE_FILES.into_iter().map(str::to_owned).chain(gguf);
    names.filter_map(|name| Some((name.clone(), open_file(&folder, Path::new(&name)).ok()?))).collect()
}

/// Opens a regular file. A pipe or a device is never opened: that could wait, or have an effect.
fn open_file(folder: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    let found = retry(|| openat2(folder.as_fd(), path, how))?;
    let mode = fstat(&found)?.st_mode;
    let is_file = SFlag::from_bits_truncate(mode) & SFlag::S_IFMT == SFlag::S_IFREG;
    if !is_file || !Mode::from_bits_truncate(mode).contains(Mode::S_IROTH) {
        return Err(Errno::EACCES);
    }
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    open(same.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Name of the GGUF file that holds the weights of a folder, as the native engine finds it: the only one, without
/// safetensors beside it.
fn only_gguf(folder: impl AsFd) -> Option<String> {
    let mut dir = Dir::openat(folder, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let mut only = None;
    for (number, entry) in dir.iter().enumerate() {
        let name = OsStr::from_bytes(entry.ok()?.file_name().to_bytes()).to_owned();
        if number >= MOST_ENTRIES {
            return None;
        }
        match Path::new(&name).extension().and_then(OsStr::to_str) {
            Some("safetensors") => return None,
            Some(GGUF) if only.is_some() => return None,
            Some(GGUF) => only = Some(name.into_string().ok()?),
            Some(_) | None => {}
        }
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, Permissions};
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let folder = File::open(folder).unwrap();
        open_node_files(&folder).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn files_are_opened_by_their_names_and_read_only() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("chat_template.jinja", "t"), ("m.gguf", "GGUF"), ("notes.txt", "")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let opened = open_node_files(File::open(folder.path()).unwrap());
        let texts = opened.into_iter().map(|(name, file)| {
            let mut text = String::new();
            let mut file = File::from(file);
            file.read_to_string(&mut text).unwrap();
            assert!(std::io::Write::write(&mut file, b"x").is_err());
            (name, text)
        });
        let expected = [("chat_template.jinja", "t"), ("m.gguf", "GGUF")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_gguf_file_is_opened_where_it_holds_the_weights() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), "").unwrap();
        write("README");
        assert!(names(folder.path()).is_empty());
        write("a.gguf");
        assert_eq!(names(folder.path()), ["a.gguf"]);
        write("b.gguf");
        assert!(names(folder.path()).is_empty(), "which one is meant is not known");
        fs::remove_file(folder.path().join("b.gguf")).unwrap();
        write("model.safetensors");
        write("tokenizer_config.json");
        assert_eq!(names(folder.path()), ["tokenizer_config.json"]);
    }

    #[test]
    fn links_out_of_the_folder_and_files_that_are_none_of_the_models_stay_closed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("weights");
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::write(dir.path().join("secret"), "s").unwrap();
        fs::write(folder.join("blobs/1"), "t").unwrap();
        let place = folder.join("chat_template.jinja");
        for (target, is_opened) in [("blobs/1", true), ("../secret", false), ("/etc/passwd", false), ("blobs", false)] {
            symlink(target, &place).unwrap();
            assert_eq!(!names(&folder).is_empty(), is_opened, "{target}");
            fs::remove_file(&place).unwrap();
        }
        nix::unistd::mkfifo(&place, Mode::from_bits_truncate(0o666)).unwrap();
        assert!(names(&folder).is_empty(), "a pipe");
        fs::remove_file(&place).unwrap();
        fs::write(&place, "t").unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o640)).unwrap();
        assert!(names(&folder).is_empty(), "a file that a model's user may not read");
    }
}
