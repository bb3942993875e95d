//! Roles of callers of the control API, by the user and groups that the kernel reports for their connection.
//!
//! Invariant: each role includes those before it, so a caller who may change the node may also read it.

use std::fmt::{self, Display, Formatter};

/// Most groups of a caller that are shown in a message.
const SHOWN_GROUPS: usize = 16;

/// Permissions of a caller; each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reading: state, logs, metrics, history.
    Read,
    /// Changing the node, starting and stopping its models, sending them requests.
    Write,
}

/// Credentials of a caller, as of the moment at which it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Effective user.
    pub uid: u32,
    /// Effective group first, then the supplementary ones.
    pub groups: Vec<u32>,
}

/// Users and groups with a role on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The scheduler's own user, which may do everything: a process of that user could as well be the scheduler.
    pub uid: u32,
    /// Group of that user, whose members may read.
    pub gid: u32,
    /// Group whose members may do everything, and its name.
    pub admins: Option<(u32, String)>,
}

impl Owners {
    /// The role of a caller; `None`: it has none.
    #[must_use]
    pub fn role(&self, peer: &Peer) -> Option<Role> {
        let is_admin = self.admins.as_ref().is_some_and(|(gid, _)| peer.groups.contains(gid));
        if peer.uid == 0 || peer.uid == self.uid || is_admin {
            Some(Role::Write)
        } else {
            peer.groups.contains(&self.gid).then_some(Role::Read)
        }
    }

    /// Callers that have this role, as text for a refusal.
    #[must_use]
    pub fn describe(&self, role: Role) -> String {
        let own = self.uid;
        let admins = match &self.admins {
            Some((_, name)) => format!("root, user {own} or group `{name}`"),
            None => format!("root or user {own} (there is no group `omni-admin` here)"),
        };
        match role {
            Role::Write => admins,
            Role::Read => format!("{admins}, or group {}", self.gid),
        }
    }
}

impl Display for Peer {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.groups.iter().take(SHOWN_GROUPS).map(u32::to_string).collect();
        let more = if self.groups.len() > SHOWN_GROUPS { " and more" } else { "" };
        write!(out, "user {} in the groups {}{more}", self.uid, shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, groups: groups.to_vec() }
    }

    #[test]
    fn user_and_groups_give_the_role() {
        let packaged = Owners { uid: 990, gid: 991, admins: Some((992, "omni-admin".to_owned())) };
        let by_hand = Owners { admins: None, ..packaged.clone() };
        for (who, with_group, without) in [
            (peer(0, &[0]), Some(Role::Write), Some(Role::Write)),
            (peer(990, &[991]), Some(Role::Write), Some(Role::Write)),
            (peer(990, &[4]), Some(Role::Write), Some(Role::Write)),
            (peer(1000, &[1000, 991]), Some(Role::Read), Some(Role::Read)),
            (peer(1000, &[991]), Some(Role::Read), Some(Role::Read)),
            (peer(1000, &[1000, 992]), Some(Role::Write), None),
            (peer(1000, &[1000, 991, 992]), Some(Role::Write), Some(Role::Read)),
            (peer(1000, &[1000]), None, None),
            (peer(1000, &[0]), None, None),  // root's group is not root
            (peer(991, &[990]), None, None), // numbers of users are not those of groups
            (peer(1000, &[]), None, None),
        ] {
            assert_eq!((packaged.role(&who), by_hand.role(&who)), (with_group, without), "{who}");
        }
    }

    #[test]
    fn owners_and_caller_are_described() {
        let owners = Owners { uid: 990, gid: 991, admins: Some((992, "omni-admin".to_owned())) };
        assert_eq!(owners.describe(Role::Write), "root, user 990 or group `omni-admin`");
        assert_eq!(owners.describe(Role::Read), "root, user 990 or group `omni-admin`, or group 991");
        let by_hand = Owners { admins: None, ..owners };
        assert_eq!(by_hand.describe(Role::Write), "root or user 990 (there is no group `omni-admin` here)");
        assert_eq!(peer(7, &[8, 9]).to_string(), "user 7 in the groups 8, 9");
        let many: Vec<u32> = (0..100).collect();
        assert!(peer(7, &many).to_string().ends_with("14, 15 and more"));
    }
}
