//! The scheduler's user, as it is configured, and its ids on this machine. Scheduler and launcher must agree.

use nix::unistd::User;
use serde::Serialize;
use toml::de::DeValue;

use super::FALLBACK_UID;
use crate::kind::{Mismatch, integer};

/// Default user, where it exists.
pub(super) const USUAL: &str = "omni";

/// The scheduler's user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NodeUser {
    /// By name.
    Name(String),
    /// By number; the number need not have a name.
    Uid(u32),
}

/// The configured user is not known to this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no user `{0}` on this machine: create it, or set `[node] user`")]
pub struct NoUser(pub String);

impl NodeUser {
    /// The uid and gid of the configured user; without one, of `omni`, or [`FALLBACK_UID`] if that user does not exist.
    ///
    /// # Errors
    ///
    /// The configured name is of no user.
    pub fn ids(configured: Option<&Self>) -> Result<(u32, u32), NoUser> {
        let by_name = |name: &str| {
            let user = User::from_name(name).ok().flatten();
            user.map(|user| (user.uid.as_raw(), user.gid.as_raw()))
        };
        match configured {
            Some(Self::Uid(uid)) => Ok((*uid, *uid)),
            Some(Self::Name(name)) => by_name(name).ok_or_else(|| NoUser(name.clone())),
            None => Ok(by_name(USUAL).unwrap_or((FALLBACK_UID, FALLBACK_UID))),
        }
    }
}

pub(super) fn user(value: &DeValue<'_>) -> Result<NodeUser, Mismatch> {
    let user = name_or_number(value, NodeUser::Name, NodeUser::Uid);
    user.ok_or_else(|| Mismatch::expected("a user such as \"omni\", or a uid other than 0"))
}

/// A user or a group by name or number, other than root, which has all rights anyway.
pub(super) fn name_or_number<T>(value: &DeValue<'_>, name: fn(String) -> T, number: fn(u32) -> T) -> Option<T> {
    if let Some(given) = integer(value) {
        return u32::try_from(given).ok().filter(|id| (1..u32::MAX - 1).contains(id)).map(number);
    }
    value.as_str().filter(|text| is_name(text)).map(|text| name(text.to_owned()))
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let first = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    first && text.len() <= 32 && text != "root" && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_itself_and_a_name_must_exist() {
        assert_eq!(NodeUser::ids(Some(&NodeUser::Uid(4711))), Ok((4711, 4711)));
        let root = NodeUser::Name("root".to_owned()); // the one that every machine has
        assert_eq!(NodeUser::ids(Some(&root)), Ok((0, 0)));
        let nobodys = "no-such-user-of-omni".to_owned();
        assert_eq!(NodeUser::ids(Some(&NodeUser::Name(nobodys.clone()))), Err(NoUser(nobodys)));
    }
}
