//! Warnings about listeners that are open to other machines: logged at start, shown by the control API, printed by `--probe`.
//!
//! Invariant: there is no warning about a listener that only this machine reaches.

use omni_config::node::NodeConfig;
use std::net::SocketAddr;

/// Warnings for a node with this configuration, before it starts.
#[must_use]
pub fn config_warnings(config: &NodeConfig) -> Vec<String> {
    let server = &config.server;
    warnings(server.listen, server.tokens.is_some(), config.tls.files().is_some(), server.admin_listen)
}

/// Warnings about addresses that other machines can reach.
#[must_use]
pub fn warnings(data: SocketAddr, has_tokens: bool, has_tls: bool, admin: SocketAddr) -> Vec<String> {
    let is_exposed = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut lines = Vec::new();
    if is_exposed(data) {
        if !has_tokens {
            lines.push(format!(
                "anyone who reaches {data} may ask any model: set [server] tokens, or listen on loopback"
            ));
        }
        if !has_tls {
            let tokens = if has_tokens { "tokens and requests" } else { "requests" };
            lines.push(format!(
                "{tokens} to {data} can be read and changed on their way: set [tls], or put TLS before it"
            ));
        }
    }
    if is_exposed(admin) {
        lines.push(format!("anyone who reaches {admin} may read the names, state and metrics of all models"));
        if has_tokens {
            lines.push(format!(
                "tokens of role admin that are used at {admin} can be read on their way: reach it by a tunnel"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_checked_before_the_node_starts() {
        let check = |toml: &str| config_warnings(&NodeConfig::parse(toml).unwrap());
        assert_eq!(check(""), Vec::<String>::new());
        let open = "[server]\nlisten = \"0.0.0.0:80\"\n";
        assert_eq!(check(open).len(), 2);
        let closed = "tokens = \"/t\"\n[tls]\ncertificate = \"/c\"\nkey = \"/k\"\n";
        assert_eq!(check(&format!("{open}{closed}")), Vec::<String>::new());
    }

    #[test]
    fn there_is_no_warning_about_loopback() {
        let lines =
            |data: &str, token, tls, admin: &str| warnings(data.parse().unwrap(), token, tls, admin.parse().unwrap());
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(lines(loopback, false, false, loopback), Vec::<String>::new());
        }
        for exposed in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80"] {
            let data_lines = |token, tls| lines(exposed, token, tls, "127.0.0.1:1");
            let asked =
                format!("anyone who reaches {exposed} may ask any model: set [server] tokens, or listen on loopback");
            let read = |what| {
                format!("{what} to {exposed} can be read and changed on their way: set [tls], or put TLS before it")
            };
            assert_eq!(data_lines(false, false), [asked.clone(), read("requests")]);
            assert_eq!(data_lines(true, false), [read("tokens and requests")]);
            assert_eq!(data_lines(false, true), [asked]);
            assert_eq!(data_lines(true, true), Vec::<String>::new());
            let admin = format!("anyone who reaches {exposed} may read the names, state and metrics of all models");
            let plain = lines("[::1]:1", false, false, exposed);
            assert_eq!(plain, std::slice::from_ref(&admin), "TLS is on the data listener only");
            let tokens = format!(
                "tokens of role admin that are used at {exposed} can be read on their way: reach it by a tunnel"
            );
            assert_eq!(lines("[::1]:1", true, true, exposed), [admin, tokens]);
        }
    }
}
