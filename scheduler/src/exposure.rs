//! What a node's listeners let everybody do who reaches them, for its operator.
//!
//! [`crate::serve`] says it at the start, the control API for as long as it is so. What always holds: a listener that only
//! this machine reaches is none of it.

use std::net::SocketAddr;

/// A line for each listener that is open to more than this machine.
#[must_use]
pub fn exposure(data: SocketAddr, wants_token: bool, admin: SocketAddr) -> Vec<String> {
    let beyond = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut lines = Vec::new();
    if beyond(data) {
        lines.push(match wants_token {
            false => format!("anyone who reaches {data} may ask any model: set [server] tokens, or listen on loopback"),
            true => format!("tokens and requests to {data} can be read on their way: put TLS before it"),
        });
    }
    if beyond(admin) {
        lines.push(format!("anyone who reaches {admin} may read the names, state and metrics of all models"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_machine_reaches_is_not_told() {
        let lines = |data: &str, token, admin: &str| exposure(data.parse().unwrap(), token, admin.parse().unwrap());
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(lines(loopback, false, loopback), Vec::<String>::new());
        }
        for beyond in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80"] {
            assert!(lines(beyond, false, "127.0.0.1:1")[0].contains(&format!("{beyond} may ask any model")));
            assert!(lines(beyond, true, "127.0.0.1:1")[0].contains("can be read on their way"));
            assert_eq!((lines(beyond, true, beyond).len(), lines("[::1]:1", true, beyond).len()), (2, 1));
        }
    }
}
