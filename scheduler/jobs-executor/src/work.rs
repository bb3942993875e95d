//! Work of the store as it was read last: read again when it may have changed.

use omni_jobs::{JobError, JobStore, Work};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time of a read that may be repeated at once. After a longer one [`PAUSE`] times its time passes, so that a
/// hundred thousand lines of work take a part of a processor: meanwhile the work that is known is good enough.
const SHORT: Duration = Duration::from_millis(5);
pub(crate) const PAUSE: u32 = 9;
/// Time after which it is read in any case: the store tells of an item that is given back shortly before its commit.
const LONGEST: Duration = Duration::from_secs(1);

/// Work by the name of its model.
pub(crate) type ByModel = BTreeMap<String, Vec<Work>>;

/// Work that is known.
#[derive(Debug, Default)]
pub(crate) struct KnownWork {
    work: Arc<ByModel>,
    /// Number of changes of the store when it was read; `None`: it may be other work by now.
    version: Option<u64>,
    /// Time of the next read at the earliest, and at the latest; `None`: not read yet.
    next: Option<(Instant, Instant)>,
}

impl KnownWork {
    pub(crate) fn work(&self) -> Arc<ByModel> {
        Arc::clone(&self.work)
    }

    /// Notes that items were claimed, or have ended.
    pub(crate) fn change(&mut self) {
        self.version = None;
    }

    /// Reads the work if it may have changed, and the last read is long enough ago. Returns whether it was read.
    /// `version`: number of changes that the store tells of.
    pub(crate) async fn read(&mut self, store: &JobStore, version: u64) -> Result<bool, JobError> {
        let begun = Instant::now();
        if !self.is_due(version, begun) {
            return Ok(false);
        }
        let work = store.work().await?;
        self.next = Some(next_read(begun.elapsed(), Instant::now()));
        let mut by_model = ByModel::new();
        for work in work {
            match by_model.get_mut(&work.model) {
                Some(of_model) => of_model.push(work),
                None => drop(by_model.insert(work.model.clone(), vec![work])),
            }
        }
        (self.work, self.version) = (Arc::new(by_model), Some(version));
        Ok(true)
    }

    /// Returns true if it may have changed since it was read.
    pub(crate) fn is_behind(&self, version: u64) -> bool {
        self.version != Some(version)
    }

    fn is_due(&self, version: u64, now: Instant) -> bool {
        self.next.is_none_or(|(earliest, latest)| now >= latest || (now >= earliest && self.is_behind(version)))
    }
}

fn next_read(took: Duration, now: Instant) -> (Instant, Instant) {
    let earliest = if took > SHORT { now + took * PAUSE } else { now };
    (earliest, earliest.max(now + LONGEST))
}

/// Work that may run, with the position of its model; that of all names that are no models together.
pub(crate) fn open<'a>(
    known: &'a ByModel,
    positions: &HashMap<&str, usize>,
    is_model_paused: impl Fn(&str) -> bool,
    is_paused: impl Fn(&Work) -> bool,
) -> Vec<(Option<usize>, Vec<&'a Work>)> {
    let (mut open, mut unknown) = (Vec::new(), Vec::new());
    for (model, work) in known.iter().filter(|(model, _)| !is_model_paused(model)) {
        let work =
            work.iter().filter(|work| !work.stopping && (work.pending > 0 || work.in_flight > 0) && !is_paused(work));
        match positions.get(model.as_str()) {
            Some(at) => open.push((Some(*at), work.collect())),
            None => unknown.extend(work),
        }
    }
    open.push((None, unknown));
    open.retain(|(_, work): &(_, Vec<&Work>)| !work.is_empty());
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::now;
    use omni_jobs::{BatchId, UnixMillis};

    #[test]
    fn names_that_are_no_models_are_together() {
        let of = |model: &str, owner: &str, pending| Work {
            batch: BatchId::parse(&format!("batch_{}", "0".repeat(32))).unwrap(),
            owner: owner.to_owned(),
            model: model.to_owned(),
            pending,
            suspects: 0,
            in_flight: 0,
            created: UnixMillis(0),
            expires: UnixMillis(1000),
            stopping: false,
        };
        let mut known = ByModel::new();
        for work in [
            of("known", "a", 1),
            of("known", "killer", 1),
            of("x", "a", 9),
            of("y", "b", 9),
            of("paused", "a", 1),
            of("none", "a", 0),
        ] {
            known.entry(work.model.clone()).or_default().push(work);
        }
        let positions = HashMap::from([("known", 3), ("paused", 4)]);
        let open = open(&known, &positions, |model| model == "paused", |work| work.owner == "killer");
        let names = |(at, work): &(Option<usize>, Vec<&Work>)| {
            (*at, work.iter().map(|work| (work.model.clone(), work.owner.clone())).collect::<Vec<_>>())
        };
        let name = |model: &str, owner: &str| (model.to_owned(), owner.to_owned());
        let expected = [(Some(3), vec![name("known", "a")]), (None, vec![name("x", "a"), name("y", "b")])];
        assert_eq!(open.iter().map(names).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_long_read_is_repeated_after_a_pause() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        assert_eq!(next_read(SHORT, now), (now, now + LONGEST));
        assert_eq!(next_read(ms(80), now), (now + ms(720), now + LONGEST));
        assert_eq!(next_read(ms(800), now), (now + ms(7200), now + ms(7200)));
        let known = KnownWork { next: Some((now + ms(5), now + ms(9))), version: Some(3), ..KnownWork::default() };
        let due = |version| [0, 5, 8, 9].map(|after| known.is_due(version, now + ms(after)));
        assert_eq!((due(3), due(4)), ([false, false, false, true], [false, true, true, true]));
    }

    #[tokio::test]
    async fn work_is_read_when_it_may_have_changed() {
        let dir = std::env::temp_dir().join(format!("omni-known-work-{}", std::process::id()));
        let store = JobStore::open(&dir, omni_jobs::Limits::default(), now()).unwrap();
        let (mut known, changes) = (KnownWork::default(), store.changes());
        let read = async |known: &mut KnownWork| {
            // As if it was read just now, and at once.
            known.next = known.next.map(|_| next_read(SHORT, Instant::now()));
            known.read(&store, *changes.borrow()).await.unwrap()
        };
        assert!(read(&mut known).await && known.work().is_empty());
        assert!(!read(&mut known).await);
        store.queue("", "m", vec![b"{}".to_vec()], now()).await.unwrap();
        store.tend(now()).await.unwrap();
        assert!(read(&mut known).await);
        assert_eq!(known.work()["m"].len(), 1);
        assert!(!read(&mut known).await);
        known.change();
        assert!(read(&mut known).await);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
