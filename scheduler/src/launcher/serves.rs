//! What the launcher was started with, beside what it is to serve: the same, or read anew, or not used.

use super::LauncherHandle;
use omni_node_protocol::launcher::{Serves, ToLauncher};
use std::path::Path;

/// What is to be done about a launcher.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Same,
    /// It is to read the configuration anew.
    Renew,
    /// It has done that and reads another file, or the file has changed since this scheduler read it.
    Differs(Vec<String>),
    /// It serves other models.
    Foreign,
}

/// Times that a launcher is asked to begin anew for one configuration: a request may be lost with its connection.
const RENEWALS: u32 = 3;

/// `renewed`: it was asked to read the configuration anew, and has begun anew since.
fn verdict(expected: &Serves, told: &Serves, renewed: bool) -> Verdict {
    if !expected.models.is_empty() && Path::new(&expected.models) != Path::new(&told.models) {
        return Verdict::Foreign;
    }
    if expected.config == told.config {
        return Verdict::Same;
    }
    if !renewed {
        return Verdict::Renew;
    }
    let sections = [&expected.config, &told.config].into_iter().filter_map(|config| config.as_object());
    let mut names: Vec<String> = sections.flat_map(|sections| sections.keys().cloned()).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| expected.config.get(name) != told.config.get(name));
    Verdict::Differs(names)
}

impl LauncherHandle {
    /// Acts on what the launcher says of itself.
    pub(super) fn compare(&self, told: &Serves) {
        let mut routes = self.routes();
        let Some(expected) = &routes.expected else { return };
        match verdict(expected, told, routes.renewals >= RENEWALS) {
            Verdict::Same => (routes.renewals, routes.foreign) = (0, false),
            Verdict::Renew => {
                tracing::info!("the launcher was started with another configuration: it begins anew with this one");
                (routes.renewals, routes.foreign) = (routes.renewals + 1, false);
                let _ = self.outbox.try_send(ToLauncher::Renew); // full: it is compared again at the next connection
            }
            Verdict::Differs(sections) => {
                let sections = sections.join(", ");
                tracing::error!(
                    sections,
                    "the launcher reads another configuration file, or an older one: restart the node"
                );
            }
            Verdict::Foreign => {
                let (serves, wanted) = (&told.models, &expected.models);
                if !routes.foreign {
                    let what = "the launcher that runs serves other models: nothing can be started; restart it, or give both \
                                the same --models";
                    tracing::error!(models = serves, wanted, "{what}");
                }
                routes.foreign = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_launcher_is_renewed_once_and_never_used_for_other_models() {
        let serves = |models: &str, access: &str| Serves {
            models: models.to_owned(),
            config: json!({"network": {"host-access": [access]}, "node": {}}),
        };
        let own = serves("/m", "a");
        assert_eq!(verdict(&own, &serves("/m/", "a"), false), Verdict::Same);
        assert_eq!(verdict(&own, &serves("/m", "b"), false), Verdict::Renew);
        assert_eq!(verdict(&own, &serves("/m", "b"), true), Verdict::Differs(vec!["network".to_owned()]));
        assert_eq!(verdict(&own, &serves("/other", "b"), true), Verdict::Foreign);
        let single = Serves { models: String::new(), ..own.clone() };
        assert_eq!(verdict(&single, &own, false), Verdict::Same);
        let less = Serves { config: json!({"network": {"host-access": ["a"]}}), ..own.clone() };
        assert_eq!(verdict(&own, &less, true), Verdict::Differs(vec!["node".to_owned()]));
    }
}
