//! Configuration of the two HTTP listeners, from the node's configuration and the limits of the machine.

use omni_body::BodyBudget;
use omni_config::node::NodeConfig;
use omni_ingress::{ConnectionConfig, ConnectionLimits, HostNames, HttpMetrics, RequestCheck};
use std::net::SocketAddr;
use std::sync::Arc;

/// Configurations of both listeners.
#[derive(Debug)]
pub(crate) struct ListenerConfigs {
    /// Data listener.
    pub data: ConnectionConfig,
    /// Admin listener.
    pub admin: ConnectionConfig,
}

impl ListenerConfigs {
    /// Configures listeners at these addresses, with limits of connections. The first value of each pair is for the data listener.
    #[must_use]
    pub(crate) fn new(
        config: &NodeConfig,
        (connections, admin_connections): (usize, usize),
        (listen, admin_listen): (SocketAddr, SocketAddr),
        budget: &Arc<BodyBudget>,
        metrics: &HttpMetrics,
    ) -> Self {
        let server = &config.server;
        metrics.limit.set(i64::try_from(connections).unwrap_or(i64::MAX));
        let limits = ConnectionLimits {
            connections,
            connections_per_address: server.connections_per_address,
            header_timeout: server.header_timeout,
        };
        let names = |address: SocketAddr, token, tls| HostNames::new(address.ip(), server.hosts.clone(), token, tls);
        let check = RequestCheck {
            names: names(listen, server.tokens.is_some(), config.tls.files().is_some()),
            heads_budget: budget.share(),
            metrics: metrics.clone(),
            render: omni_inference::refuse,
        };
        let admin_check = RequestCheck {
            names: names(admin_listen, false, false),
            metrics: metrics.without_connections(),
            render: omni_admin::monitoring::refuse,
            ..check.clone()
        };
        let admin_limits = ConnectionLimits { connections: admin_connections, connections_per_address: None, ..limits };
        Self { data: ConnectionConfig::new(limits, check), admin: ConnectionConfig::new(admin_limits, admin_check) }
    }
}
