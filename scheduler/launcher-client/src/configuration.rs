//! Models and configuration that the launcher was started with, compared with the scheduler's own.

use crate::handle::LauncherHandle;
use omni_node_protocol::launcher::Serves;
use std::path::Path;

/// Result of the comparison.
#[derive(Debug, PartialEq, Eq)]
enum Check {
    /// The launcher serves the same models with the same configuration.
    Same,
    /// The configuration differs: the launcher has to read it again.
    Renew,
    /// The configuration still differs in these sections: the launcher reads another file, or the file has changed since
    /// this scheduler read it.
    Differs(Vec<String>),
    /// The launcher serves other models.
    Foreign,
}

/// Use of a launcher, by what it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Requests are sent to it.
    Serves,
    /// Restarts with the newer configuration: until then it refuses what only that one allows.
    Renew,
    /// Serves other models, and is not used.
    Foreign,
}

/// Number of times that a launcher is asked to read one configuration again: a request may be lost with its connection.
const RENEWALS: u32 = 3;

/// Compares what is expected with what is served. `renewed`: the launcher was asked to read the configuration again, and
/// has restarted since.
fn check(expected: &Serves, served: &Serves, renewed: bool) -> Check {
    if !expected.models.is_empty() && Path::new(&expected.models) != Path::new(&served.models) {
        return Check::Foreign;
    }
    if expected.config == served.config {
        return Check::Same;
    }
    if !renewed {
        return Check::Renew;
    }
    let sections = [&expected.config, &served.config].into_iter().filter_map(|config| config.as_object());
    let mut names: Vec<String> = sections.flat_map(|sections| sections.keys().cloned()).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| expected.config.get(name) != served.config.get(name));
    Check::Differs(names)
}

impl LauncherHandle {
    /// Notes that the launcher does not restart: it is used as it is.
    pub(crate) fn not_renewed(&self) {
        self.routes().renewals = RENEWALS;
    }

    /// Compares what the launcher serves with what it must serve.
    pub(crate) fn compare(&self, served: &Serves) -> Use {
        let mut routes = self.routes();
        let Some(expected) = &routes.expected else { return Use::Serves };
        match check(expected, served, routes.renewals >= RENEWALS) {
            Check::Same => {
                (routes.renewals, routes.foreign) = (0, false);
                Use::Serves
            }
            Check::Renew => {
                tracing::info!("the launcher was started with another configuration: it restarts with this one");
                (routes.renewals, routes.foreign) = (routes.renewals + 1, false);
                Use::Renew
            }
            Check::Differs(sections) => {
                let sections = sections.join(", ");
                tracing::error!(
                    sections,
                    "the launcher reads another configuration file, or an older one: restart the node"
                );
                Use::Serves
            }
            Check::Foreign => {
                let (serves, wanted) = (&served.models, &expected.models);
                if !routes.foreign {
                    let what = "the launcher that runs serves other models: nothing can be started; restart it, or give both \
                                the same --models";
                    tracing::error!(models = serves, wanted, "{what}");
                }
                routes.foreign = true;
                Use::Foreign
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_launcher_is_renewed_for_another_configuration_and_not_used_for_other_models() {
        let serves = |models: &str, access: &str| Serves {
            models: models.to_owned(),
            config: json!({"network": {"host-access": [access]}, "node": {}}),
        };
        let own = serves("/m", "a");
        assert_eq!(check(&own, &serves("/m/", "a"), false), Check::Same);
        assert_eq!(check(&own, &serves("/m", "b"), false), Check::Renew);
        assert_eq!(check(&own, &serves("/m", "b"), true), Check::Differs(vec!["network".to_owned()]));
        assert_eq!(check(&own, &serves("/other", "b"), true), Check::Foreign);
        let single = Serves { models: String::new(), ..own.clone() };
        assert_eq!(check(&single, &own, false), Check::Same);
        let less = Serves { config: json!({"network": {"host-access": ["a"]}}), ..own.clone() };
        assert_eq!(check(&own, &less, true), Check::Differs(vec!["node".to_owned()]));
    }
}
