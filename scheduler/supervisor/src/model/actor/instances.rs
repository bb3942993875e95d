//! The instances of a model, each from its request for capacity until all of it is gone.
//!
//! There are few of them, and they are found in several ways: by number for the policies, by id for launcher and workers, by
//! key for the decisions of capacity and residency.

use super::instance::Instance;
use omni_node_protocol::id::InstanceId;
use omni_policy::capacity::ReservationId;
use omni_policy::residency::InstanceKey;
use omni_policy::{Generation, InstanceNumber, Moment};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Bound;
use std::task::Poll;

#[derive(Debug, Default)]
pub(super) struct Instances {
    by_number: BTreeMap<InstanceNumber, Instance>,
}

impl Instances {
    /// Adds an instance and returns it.
    pub(super) fn insert(&mut self, instance: Instance) -> &mut Instance {
        self.by_number.entry(instance.number).or_insert(instance)
    }

    pub(super) fn remove(&mut self, number: InstanceNumber) -> Option<Instance> {
        self.by_number.remove(&number)
    }

    pub(super) fn get(&self, number: InstanceNumber) -> Option<&Instance> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: InstanceNumber) -> Option<&mut Instance> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Instance> {
        self.by_number.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.by_number.values_mut()
    }

    /// The first instance after `last`: for a walk during which instances come and go.
    pub(super) fn next_after(&self, last: Option<InstanceNumber>) -> Option<InstanceNumber> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_number.range((after, Bound::Unbounded)).next().map(|(number, _)| *number)
    }

    pub(super) fn find(&self, id: &InstanceId) -> Option<&Instance> {
        self.iter().find(|instance| instance.id == *id)
    }

    pub(super) fn find_mut(&mut self, id: &InstanceId) -> Option<&mut Instance> {
        self.iter_mut().find(|instance| instance.id == *id)
    }

    /// The holder of a reservation.
    pub(super) fn find_reservation(&mut self, key: ReservationId) -> Option<&mut Instance> {
        self.iter_mut()
            .find(|instance| instance.reservation.as_ref().is_some_and(|reservation| reservation.id() == key))
    }

    /// The holder of a place on a card.
    pub(super) fn find_placement(&mut self, key: InstanceKey) -> Option<&mut Instance> {
        self.iter_mut().find(|instance| instance.lease.as_ref().is_some_and(|lease| lease.placement().key() == key))
    }

    /// Returns whether a generation has an instance.
    pub(super) fn has_any_of(&self, generation: Generation) -> bool {
        self.iter().any(|instance| instance.generation == generation)
    }

    /// Earliest moment at which an instance has to be looked at.
    pub(super) fn wakes_at(&self, now: Moment) -> Option<Moment> {
        self.iter().filter_map(|instance| instance.wakes_at(now)).min()
    }

    /// Waits until a data connection can be read or written.
    pub(super) async fn ready(&self, now: Moment) {
        poll_fn(|context| {
            let mut any = Poll::Pending;
            for engine in self.iter().filter_map(Instance::engine) {
                let Some(connection) = &engine.connection else { continue };
                // All are polled, so that each of them wakes the actor.
                if connection.poll_ready(context, engine.intake.resumes_at(now).is_none()).is_ready() {
                    any = Poll::Ready(());
                }
            }
            any
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::content::Content;
    use omni_config::name::ModelName;
    use omni_config::node::NodeConfig;
    use omni_node_protocol::id::SnapshotDigest;
    use std::sync::Arc;

    fn instance(number: u32, generation: u32) -> Instance {
        let name = ModelName::try_from("m".to_owned()).unwrap();
        let snapshot = SnapshotDigest::parse(&"1".repeat(64)).unwrap();
        let content = Content::parse(&name, snapshot, None, &NodeConfig::default()).unwrap();
        let id = InstanceId::parse(&format!("{number:012x}")).unwrap();
        Instance::new(InstanceNumber(number), id, (Generation(generation), Arc::new(content)), Moment::ZERO)
    }

    #[test]
    fn instances_are_found_by_number_id_and_generation() {
        let mut instances = Instances::default();
        let id = instances.insert(instance(3, 1)).id.clone();
        instances.insert(instance(5, 2));
        assert_eq!(instances.find(&id).unwrap().number, InstanceNumber(3));
        assert!(instances.has_any_of(Generation(2)) && !instances.has_any_of(Generation(3)));
        assert!(instances.remove(InstanceNumber(3)).is_some() && instances.find(&id).is_none());
        assert_eq!(instances.wakes_at(Moment::ZERO), None, "there is no process to look at");
    }

    #[test]
    fn a_walk_goes_on_after_an_instance_that_is_gone() {
        let mut instances = Instances::default();
        for number in [1, 2, 4] {
            instances.insert(instance(number, 1));
        }
        let first = instances.next_after(None);
        assert_eq!(first, Some(InstanceNumber(1)));
        instances.remove(InstanceNumber(1));
        instances.remove(InstanceNumber(2));
        assert_eq!(instances.next_after(first), Some(InstanceNumber(4)));
        assert_eq!(instances.next_after(Some(InstanceNumber(4))), None);
    }
}
