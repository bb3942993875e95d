//! Who may ask what of the control API: by the user and the groups that the kernel says a caller has.
//!
//! `http::control` asks here before it does anything. What always holds: nobody may change the node who may not look at it.

use std::fmt::{self, Display, Formatter};

/// The most groups of a caller that are shown.
const SHOWN: usize = 16;

/// What one may do; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look: state, logs, metrics, history.
    Read,
    /// Change the node, start or stop its models, ask them.
    Write,
}

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Effective user when it connected.
    pub uid: u32,
    /// Its groups: the effective one first, then the supplementary ones.
    pub groups: Vec<u32>,
}

/// To whom a node belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The scheduler's own user: who is that user could as well be the scheduler.
    pub uid: u32,
    /// That user's group, whose members may look.
    pub gid: u32,
    /// The group whose members may do everything, and its name.
    pub admins: Option<(u32, String)>,
}

impl Owners {
    /// What a caller may do; `None`: nothing.
    #[must_use]
    pub fn role(&self, peer: &Peer) -> Option<Role> {
        let is_admin = self.admins.as_ref().is_some_and(|(gid, _)| peer.groups.contains(gid));
        if peer.uid == 0 || peer.uid == self.uid || is_admin {
            Some(Role::Write)
        } else {
            peer.groups.contains(&self.gid).then_some(Role::Read)
        }
    }

    /// Who may do what needs this role, for people.
    #[must_use]
    pub fn who_may(&self, role: Role) -> String {
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
        let shown: Vec<String> = self.groups.iter().take(SHOWN).map(u32::to_string).collect();
        let more = if self.groups.len() > SHOWN { " and more" } else { "" };
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
    fn who_may_do_what() {
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
    fn a_refusal_names_both_sides() {
        let owners = Owners { uid: 990, gid: 991, admins: Some((992, "omni-admin".to_owned())) };
        assert_eq!(owners.who_may(Role::Write), "root, user 990 or group `omni-admin`");
        assert_eq!(owners.who_may(Role::Read), "root, user 990 or group `omni-admin`, or group 991");
        let by_hand = Owners { admins: None, ..owners };
        assert_eq!(by_hand.who_may(Role::Write), "root or user 990 (there is no group `omni-admin` here)");
        assert_eq!(peer(7, &[8, 9]).to_string(), "user 7 in the groups 8, 9");
        let many: Vec<u32> = (0..100).collect();
        assert!(peer(7, &many).to_string().ends_with("14, 15 and more"));
    }
}
