//! The group that may change a node beside root, as it is configured, and its gid on this machine.

use nix::unistd::Group;
use serde::Serialize;
use toml::de::DeValue;

use super::user::name_or_number;
use crate::kind::Mismatch;

/// Which group it is where none is configured and this one exists.
const USUAL: &str = "omni-admin";

/// A group of people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NodeGroup {
    /// By name.
    Name(String),
    /// By number; the number need not have a name.
    Gid(u32),
}

/// The configured group is not known to this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no group `{0}` on this machine: create it, or set `[node] admin-group`")]
pub struct NoGroup(pub String);

impl NodeGroup {
    /// The gid and the name (or the number again) of the configured group; without one, of `omni-admin`, or `None` if
    /// that group does not exist.
    ///
    /// # Errors
    ///
    /// The configured name is of no group.
    pub fn find(configured: Option<&Self>) -> Result<Option<(u32, String)>, NoGroup> {
        let by_name = |name: &str| {
            let group = Group::from_name(name).ok().flatten();
            group.map(|group| (group.gid.as_raw(), name.to_owned()))
        };
        match configured {
            Some(Self::Gid(gid)) => Ok(Some((*gid, gid.to_string()))),
            Some(Self::Name(name)) => by_name(name).map(Some).ok_or_else(|| NoGroup(name.clone())),
            None => Ok(by_name(USUAL)),
        }
    }
}

pub(super) fn group(value: &DeValue<'_>) -> Result<NodeGroup, Mismatch> {
    let group = name_or_number(value, NodeGroup::Name, NodeGroup::Gid);
    group.ok_or_else(|| Mismatch::expected("a group such as \"omni-admin\", or a gid other than 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_itself_and_a_name_must_exist() {
        assert_eq!(NodeGroup::find(Some(&NodeGroup::Gid(4711))), Ok(Some((4711, "4711".to_owned()))));
        let root = NodeGroup::Name("root".to_owned()); // the one that every machine has
        assert_eq!(NodeGroup::find(Some(&root)), Ok(Some((0, "root".to_owned()))));
        let nobodys = "no-such-group-of-omni".to_owned();
        assert_eq!(NodeGroup::find(Some(&NodeGroup::Name(nobodys.clone()))), Err(NoGroup(nobodys)));
    }
}
