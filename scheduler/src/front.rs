//! The two listeners as the node's configuration and the machine bound them.
//!
//! Made by [`crate::serve`] before the first connection is accepted.

use crate::http::admin;
use crate::http::run;
use omni_body::BodyBudget;
use omni_config::node::NodeConfig;
use omni_ingress::{Bounds, Door, HttpMetrics, Names, Rules};
use std::net::SocketAddr;
use std::sync::Arc;

/// What both have.
#[derive(Debug)]
pub struct Front {
    /// Of the data listener.
    pub data: Rules,
    /// Of the admin listener.
    pub admin: Rules,
}

impl Front {
    /// Of listeners at these addresses, with so many connections at a time: the data listener's first.
    #[must_use]
    pub fn new(
        config: &NodeConfig,
        (connections, few): (usize, usize),
        (listen, admin_listen): (SocketAddr, SocketAddr),
        budget: &Arc<BodyBudget>,
        metrics: &HttpMetrics,
    ) -> Self {
        let server = &config.server;
        metrics.limit.set(i64::try_from(connections).unwrap_or(i64::MAX));
        let bounds = Bounds {
            connections,
            connections_per_address: server.connections_per_address,
            header_timeout: server.header_timeout,
        };
        let names = |address: SocketAddr, token, tls| Names::new(address.ip(), server.hosts.clone(), token, tls);
        let door = Door {
            names: names(listen, server.tokens.is_some(), config.tls.files().is_some()),
            room: budget.share(),
            metrics: metrics.clone(),
            refuse: run::refuse,
        };
        let admin_door = Door {
            names: names(admin_listen, false, false),
            metrics: metrics.without_connections(),
            refuse: admin::refuse,
            ..door.clone()
        };
        let few = Bounds { connections: few, connections_per_address: None, ..bounds };
        Self { data: Rules::new(bounds, door), admin: Rules::new(few, admin_door) }
    }
}
