//! Status of a file: its kind, the parts that show a change, and the users who can have put it where it is.

use nix::libc;
use nix::sys::stat::{FileStat, SFlag};

/// Parts of a file's status that tell its state.
pub(crate) type Seen = [u64; 8];

pub(crate) fn seen(stat: &libc::stat) -> Seen {
    [
        stat.st_dev,
        stat.st_ino,
        u64::from(stat.st_mode),
        stat.st_size.cast_unsigned(),
        stat.st_mtime.cast_unsigned(),
        stat.st_mtime_nsec.cast_unsigned(),
        stat.st_ctime.cast_unsigned(),
        stat.st_ctime_nsec.cast_unsigned(),
    ]
}

/// The kind of a file: one of `S_IFMT`.
pub(crate) fn kind_of(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Users who can have put a file where it is. Root is none of them: root can copy all that it can read.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Writers {
    /// Owner of the directory with the file.
    owner: u32,
    /// Owner of the outermost directory that is not root's: can rename everything in it, a directory of root too.
    author: Option<u32>,
}

impl Writers {
    /// Writers of a directory of this owner in a directory of these.
    pub(crate) fn below(self, owner: u32) -> Self {
        Self { owner, author: self.author.or((owner != 0).then_some(owner)) }
    }

    /// Tests that the file has another name and another owner than its directory has: a user who can write to the
    /// directory may have linked a file there that only its owner, and root, can read (`fs.protected_hardlinks` is off
    /// by default in the kernel).
    pub(crate) fn may_have_linked(self, file: &FileStat) -> bool {
        file.st_nlink > 1 && self.owner != 0 && self.owner != file.st_uid
    }

    /// Tests that an entry is not for all users, who have no `right` to it, and may have been moved here by a user who
    /// cannot read it: a name is moved with no right to the file. The copy is for all users.
    pub(crate) fn may_have_moved(self, found: &FileStat, right: u32) -> bool {
        let others = |writer: u32| writer != 0 && writer != found.st_uid;
        found.st_mode & right == 0 && (others(self.owner) || self.author.is_some_and(others))
    }
}
