//! Adoption: instances and zygotes of an earlier launcher are taken over, and everything without a living worker is removed.

use super::LauncherError;
use super::instances::Instances;
use super::reap;
use super::records::InstanceRecord;
use super::runtime_dir::RuntimeDir;
use super::zygotes::{self, ZygoteRecord, Zygotes};
use omni_cgroup::Driver;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::FromLauncher;
use std::collections::BTreeSet;

/// Takes over the zygotes of an earlier launcher and removes what has no living worker.
pub(super) fn adopt_zygotes(
    found: BTreeSet<InstanceId>,
    zygote_dir: &RuntimeDir,
    instances: &mut Instances,
    driver: &dyn Driver,
) -> Zygotes {
    let mut zygotes = Zygotes::default();
    for id in found {
        match zygote_dir.read::<ZygoteRecord>(&id).and_then(|record| Some((record.worker.find()?, record))) {
            Some((running, record)) => {
                tracing::info!(zygote = %id, pid = running.pid.as_raw(), "zygote taken over");
                instances.uids.share(zygotes.adopt(id, record, running));
            }
            None => {
                let cause = reap::reap_groups(&zygotes::groups(&id), &id, None, driver, zygote_dir);
                tracing::info!(zygote = %id, %cause, "a zygote ended while no launcher was there");
            }
        }
    }
    zygotes
}

/// Takes over the instances of an earlier launcher and removes those without a living worker; returns their ends for
/// the scheduler.
pub(super) fn adopt(
    found: BTreeSet<InstanceId>,
    runtime_dir: &RuntimeDir,
    instances: &mut Instances,
    zygotes: &Zygotes,
    driver: &dyn Driver,
) -> Result<Vec<FromLauncher>, LauncherError> {
    let mut ended = Vec::new();
    let mut living: BTreeSet<String> = zygotes.running().map(|(id, ..)| zygotes::groups(id)).collect();
    for instance in found {
        let record = runtime_dir.read::<InstanceRecord>(&instance);
        match record.and_then(|record| Some((record.worker.find()?, record))) {
            Some((running, record)) => {
                tracing::info!(%instance, pid = running.pid.as_raw(), "instance taken over");
                living.insert(instance.to_string());
                instances.adopt(instance, record, running);
            }
            None => {
                let cause = reap::reap(&instance, None, driver, runtime_dir);
                tracing::info!(%instance, %cause, "an instance ended while no launcher was there");
                ended.push(FromLauncher::WorkerGone { instance, cause });
            }
        }
    }
    for name in driver.list()?.into_iter().filter(|name| !living.contains(name)) {
        // Left for the next launcher: no reason for this one not to serve.
        if let Err(error) = driver.destroy(&name) {
            tracing::error!(group = name, error = omni_log::chain(&error), "old control groups are left");
        }
    }
    Ok(ended)
}
