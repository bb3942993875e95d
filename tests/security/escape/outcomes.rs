//! Outcomes of probes, as `probes/attempt.py` reports them, and the required ones.

use crate::places::probes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// By the probe's name: an object with `succeeded`, `refused` or `broken`.
pub(crate) type Outcomes = BTreeMap<String, Value>;

const SEEN_BY_ALL: &str = "files of the system are one for all, and whoever reads them may lock them";

/// Probes that succeed in some places by design, and why. Each must succeed there, or it does not belong here.
const BY_DESIGN: &[(&str, &str, &str)] = &[
    ("networked", "connect_by_port", "the node's configuration gives it the host's network"),
    ("build", "connect_by_port", "a build fetches packages"),
    ("build", "signal_everybody", "uv, which runs the build step, is the step's own user"),
    ("alone", "lock_a_file_that_others_see", SEEN_BY_ALL),
    ("forked", "lock_a_file_that_others_see", SEEN_BY_ALL),
    ("networked", "lock_a_file_that_others_see", SEEN_BY_ALL),
    ("build", "lock_a_file_that_others_see", SEEN_BY_ALL),
    ("forked", "signal_everybody", "instances of one zygote are one user, and so is the zygote"),
];

/// Landlock protects abstract sockets from Linux 6.12 on. Before, a model with the host's network reaches these as
/// well, as the threat model says.
const BY_KERNEL: (&str, &str) = ("networked", "connect_by_abstract_name");

/// No probe was left out.
pub(crate) fn assert_all_tried(found: &Outcomes) {
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), probes());
}

/// Where nothing stands in the way.
pub(crate) fn assert_all_succeeded(control: &Outcomes) {
    let failed: Vec<_> = control.iter().filter(|(_, outcome)| outcome.get("succeeded").is_none()).collect();
    assert!(failed.is_empty(), "probes that can do nothing even without a sandbox: {failed:#?}");
}

/// In a sandbox. Says how every probe ended when one ended otherwise.
pub(crate) fn assert_all_refused(place: &str, found: &Outcomes) {
    let expected = |probe: &str| {
        let open = BY_DESIGN.iter().any(|(at, name, _)| *at == place && *name == probe)
            || (BY_KERNEL == (place, probe) && is_before((6, 12)));
        if open { "succeeded" } else { "refused" }
    };
    let wrong = found.iter().filter(|(probe, outcome)| outcome.get(expected(probe)).is_none()).collect::<Vec<_>>();
    let all: Vec<String> = found.iter().map(|(probe, outcome)| format!("{probe:<44} {outcome}")).collect();
    assert!(wrong.is_empty(), "in {place}: {wrong:#?}\nall of them:\n{}", all.join("\n"));
    println!("in {place}:\n{}", all.join("\n"));
}

/// Returns true if the running kernel is older.
fn is_before(release: (u32, u32)) -> bool {
    let uname = nix::sys::utsname::uname().unwrap();
    let text = uname.release().to_str().unwrap();
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap()) < release
}
