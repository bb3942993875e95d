//! The exit codes of `omnictl`.
//!
//! Scripts depend on the numbers (the reference is `docs/omnictl.md`): they never change their meaning. Returned by
//! every command and by [`crate::failure::Failure::exit`]; given to the system once, in `main`.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Exit {
    /// Success.
    Ok = 0,
    /// A failure without a number of its own.
    Failed = 1,
    /// The command line or its input is wrong; nothing was sent. Also what clap uses.
    Usage = 2,
    /// The model exists and does not serve requests now.
    NotReady = 3,
    /// The node has no model of that name.
    NoSuchModel = 4,
    /// The daemon cannot be reached over its socket.
    Unreachable = 5,
    /// The machine lacks something that a node needs.
    Unfit = 6,
    /// The caller may not ask the daemon for that.
    NotAllowed = 7,
    /// A time limit passed first; as `timeout(1)`.
    TimedOut = 124,
    /// Ctrl-C; as shells report SIGINT.
    Interrupted = 130,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_documented_ones() {
        let table = [
            (Exit::Ok, 0),
            (Exit::Failed, 1),
            (Exit::Usage, 2),
            (Exit::NotReady, 3),
            (Exit::NoSuchModel, 4),
            (Exit::Unreachable, 5),
            (Exit::Unfit, 6),
            (Exit::NotAllowed, 7),
            (Exit::TimedOut, 124),
            (Exit::Interrupted, 130),
        ];
        let page = include_str!("../../docs/omnictl.md");
        for (exit, code) in table {
            assert_eq!(exit as i32, code);
            assert!(page.contains(&format!("| {code} | ")), "docs/omnictl.md does not explain exit code {code}");
        }
    }
}
