//! The cache with the files that a downloader leaves, and with those that one never would.

use super::*;
use crate::report::Fetched;
use omni_node_protocol::launcher::WeightsRequest;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

struct World {
    dir: TempDir,
    cache: Cache,
}

fn digest_of(content: &str) -> Digest {
    Digest::of(Sha256::new_with_prefix(content))
}

impl World {
    fn new(most: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), Uid::current().as_raw(), most, "boot").unwrap();
        Self { dir, cache }
    }

    fn order(source: &str) -> Order {
        let text = "[weights.sources.\"https://host\"]\n";
        let config = omni_config::NodeConfig::parse(text).unwrap().weights;
        let request = WeightsRequest { source: source.to_owned(), sha256: None, files: BTreeMap::new() };
        Order::new(&request, &config, "boot").unwrap()
    }

    /// Plays the downloader: `(path, content, is fetched)`.
    fn fetch(&self, source: &str, files: &[(&str, &str, bool)]) -> Result<Digest, CacheError> {
        let order = Self::order(source);
        let work = self.cache.begin(&order.key(), &order).unwrap();
        let mut fetched = Fetched::default();
        for (number, (path, content, is_fetched)) in files.iter().enumerate() {
            let part = u32::try_from(number).ok().filter(|_| *is_fetched);
            if let Some(part) = part {
                fs::write(work.folder.join(FetchedFile::part_name(part)), content).unwrap();
            }
            fetched.files.push(FetchedFile {
                path: (*path).to_owned(),
                size: content.len() as u64,
                sha256: digest_of(content),
                verified: true,
                etag: None,
                part,
            });
        }
        fs::write(work.folder.join(FETCHED), serde_json::to_vec(&fetched).unwrap()).unwrap();
        self.cache.complete(&order.key(), &order)
    }

    fn inode(&self, set: &Digest, path: &str) -> u64 {
        fs::metadata(self.cache.sets().join(set.as_str()).join(path)).unwrap().ino()
    }
}

fn snapshot(number: u32) -> SnapshotDigest {
    SnapshotDigest::parse(&format!("{number:064x}")).unwrap()
}

#[test]
fn equal_contents_of_two_sources_are_one_read_only_file_of_root() {
    let world = World::new(1 << 20);
    let one = world.fetch("https://host/a", &[("w/x.bin", "weights", true), ("y", "other", true)]).unwrap();
    let two = world.fetch("https://host/b", &[("z.bin", "weights", true)]).unwrap();
    let three = world.fetch("https://host/c", &[("known", "weights", false)]).unwrap();
    assert_eq!(world.inode(&one, "w/x.bin"), world.inode(&two, "z.bin"));
    assert_eq!(world.inode(&one, "w/x.bin"), world.inode(&three, "known"));
    let found = fs::metadata(world.cache.sets().join(two.as_str()).join("z.bin")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o444, 0));
    assert_eq!(world.cache.find(&World::order("https://host/a").key()), Some(one.clone()));
    assert_eq!(world.cache.bytes(), 12);
    // The same files of another source are the same set.
    let again = world.fetch("https://host/d", &[("y", "other", true), ("w/x.bin", "weights", true)]).unwrap();
    assert_eq!(again, one);
    assert_eq!(names(&world.dir.path().join("weights/work")), Vec::<String>::new());
}

#[test]
fn lists_that_lead_elsewhere_are_refused() {
    let world = World::new(1 << 20);
    let bad: &[&[(&str, &str, bool)]] = &[
        &[],
        &[("../x", "a", true)],
        &[("/etc/x", "a", true)],
        &[("x", "a", true), ("x", "b", true)],
        &[("x", "a", true), ("x/y", "b", true)],
        &[("unknown", "never fetched", false)],
    ];
    for files in bad {
        assert!(matches!(world.fetch("https://host/a", files), Err(CacheError::Odd(_))), "{files:?}");
    }
    // A link in the place of a part.
    let order = World::order("https://host/link");
    let work = world.cache.begin(&order.key(), &order).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", work.folder.join("0.part")).unwrap();
    let size = fs::metadata("/etc/passwd").unwrap().len();
    let file =
        FetchedFile { path: "x".to_owned(), size, sha256: digest_of("x"), verified: true, etag: None, part: Some(0) };
    let list = serde_json::to_vec(&Fetched { files: vec![file] }).unwrap();
    fs::write(work.folder.join(FETCHED), list).unwrap();
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Io { .. })));
}

#[test]
fn sets_go_by_their_last_use_and_their_contents_with_them() {
    let world = World::new(20);
    let one = world.fetch("https://host/1", &[("x", "12345678", true)]).unwrap();
    let two = world.fetch("https://host/2", &[("x", "abcdefgh", true)]).unwrap();
    for (number, set) in [(1, &one), (2, &two)] {
        world.cache.use_for(&snapshot(number), set).unwrap();
    }
    world.cache.use_for(&snapshot(1), &one).unwrap();
    let (none, two_in_use) = (BTreeSet::new(), BTreeSet::from([two.clone()]));
    world.cache.make_room(4, &none, &none).unwrap();
    assert!(world.cache.set_of(&snapshot(1)).is_some() && world.cache.set_of(&snapshot(2)).is_some());
    assert!(matches!(world.cache.make_room(13, &two_in_use, &none), Err(CacheError::Shortage(_))));
    world.cache.make_room(12, &two_in_use, &none).unwrap();
    assert_eq!((world.cache.set_of(&snapshot(1)), world.cache.set_of(&snapshot(2))), (None, Some(two)));
    assert_eq!(world.cache.bytes(), 8);
    world.cache.remove_unused_files();
    assert_eq!(world.cache.find(&World::order("https://host/1").key()), None);
}

#[test]
fn a_start_keeps_what_is_complete_and_work_of_the_same_boot() {
    let world = World::new(1 << 20);
    let set = world.fetch("https://host/1", &[("x", "12345678", true)]).unwrap();
    let order = World::order("https://host/2");
    let work = world.cache.begin(&order.key(), &order).unwrap();
    fs::create_dir(world.cache.sets().join(".unfinished")).unwrap();
    fs::write(world.cache.files().join(digest_of("unused").as_str()), "unused").unwrap();
    let reopen = |boot: &str| Cache::open(world.dir.path(), 0, 1 << 20, boot).unwrap();
    reopen("boot");
    assert!(work.folder.is_dir());
    assert_eq!((names(&world.cache.sets()), names(&world.cache.files()).len()), (vec![set.to_string()], 1));
    reopen("another");
    assert!(!work.folder.exists());
}
