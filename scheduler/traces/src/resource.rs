//! Description of the process that its spans come from.

use crate::names::{HOST_NAME, SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION};
use crate::span::Value;

/// Description of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Version of the program.
    pub version: &'static str,
    /// Name of the machine.
    pub host: Option<String>,
    /// Unique id of the process.
    pub instance: String,
}

impl Resource {
    pub(crate) fn attributes(&self) -> Vec<(&'static str, Value)> {
        let mut attributes = vec![
            (SERVICE_NAME, Value::from("omni")),
            (SERVICE_VERSION, self.version.into()),
            (SERVICE_INSTANCE_ID, self.instance.clone().into()),
        ];
        attributes.extend(self.host.iter().map(|host| (HOST_NAME, host.clone().into())));
        attributes
    }
}
