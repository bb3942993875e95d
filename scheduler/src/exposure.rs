//! Warnings about listeners that are open to other machines: logged at start, shown by the control API, printed by `--probe`.
//!
//! Invariant: there is no warning about a listener that only this machine reaches.

use omni_config::node::NodeConfig;
use std::net::SocketAddr;

/// Warnings for a node that is started with this configuration.
#[must_use]
pub fn configured(config: &NodeConfig) -> Vec<String> {
    let server = &config.server;
    exposure(server.listen, server.tokens.is_some(), config.tls.files().is_some(), server.admin_listen)
}

/// A warning for each listener that is open to other machines.
#[must_use]
pub fn exposure(data: SocketAddr, has_tokens: bool, has_tls: bool, admin: SocketAddr) -> Vec<String> {
    let beyond = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut lines = Vec::new();
    if beyond(data) {
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
    if beyond(admin) {
        lines.push(format!("anyone who reaches {admin} may read the names, state and metrics of all models"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_checked_before_the_node_starts() {
        let of = |toml: &str| configured(&NodeConfig::parse(toml).unwrap());
        assert_eq!(of(""), Vec::<String>::new());
        let open = "[server]\nlisten = \"0.0.0.0:80\"\n";
        assert_eq!(of(open).len(), 2);
        let closed = "tokens = \"/t\"\n[tls]\ncertificate = \"/c\"\nkey = \"/k\"\n";
        assert_eq!(of(&format!("{open}{closed}")), Vec::<String>::new());
    }

    #[test]
    fn there_is_no_warning_about_loopback() {
        let lines =
            |data: &str, token, tls, admin: &str| exposure(data.parse().unwrap(), token, tls, admin.parse().unwrap());
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(lines(loopback, false, false, loopback), Vec::<String>::new());
        }
        for beyond in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80"] {
            let told = |token, tls| lines(beyond, token, tls, "127.0.0.1:1");
            let asked =
                format!("anyone who reaches {beyond} may ask any model: set [server] tokens, or listen on loopback");
            let read = |what| {
                format!("{what} to {beyond} can be read and changed on their way: set [tls], or put TLS before it")
            };
            assert_eq!(told(false, false), [asked.clone(), read("requests")]);
            assert_eq!(told(true, false), [read("tokens and requests")]);
            assert_eq!(told(false, true), [asked]);
            assert_eq!(told(true, true), Vec::<String>::new());
            let admin = format!("anyone who reaches {beyond} may read the names, state and metrics of all models");
            assert_eq!(lines("[::1]:1", false, false, beyond), [admin], "TLS is on the data listener only");
        }
    }
}
