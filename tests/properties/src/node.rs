//! The node's configuration: refused with messages about its own keys, or read as it is written.

use omni_config::NodeConfig;

/// Reads a configuration.
///
/// # Panics
/// A refusal does not say what is wrong with the text, a configuration written out reads as another, or users overlap.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match NodeConfig::parse(&text) {
        Err(error) => crate::refusal::holds(&text, error.0.listed(), &error.to_string()),
        Ok(config) => {
            let written = toml::to_string(&config).expect("what was read can be written");
            assert_eq!(NodeConfig::parse(&written).as_ref(), Ok(&config), "{written}");
            let node = &config.node;
            let instances = node.uid_base..node.uid_base.checked_add(node.uid_count).expect("uids of 32 bits");
            assert!(!instances.contains(&omni_config::node::BUILDER_UID));
            assert!(!instances.contains(&omni_config::node::FALLBACK_UID));
        }
    }
}
