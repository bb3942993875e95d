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
        let cache = Cache::open(dir.path(), Uid::current().as_raw(), most, "boot", &BTreeSet::new()).unwrap();
        Self { dir, cache }
    }

    fn order(source: &str) -> Order {
        let text = "[weights.sources.\"https://host\"]\n";
        let config = omni_config::NodeConfig::parse(text).unwrap().weights;
        let request = WeightsRequest { source: source.to_owned(), sha256: None, files: BTreeMap::new() };
        Order::new(&request, &config, 0, "boot").unwrap()
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

    /// Plays a downloader that fetched files, whose user has them.
    fn begin(&self, order: &Order, files: &[(&str, &str)]) -> Work {
        let work = self.cache.begin(&order.key(), order).unwrap();
        let owned = |name: &str, content: &[u8]| {
            fs::write(work.folder.join(name), content).unwrap();
            chown(&work.folder.join(name), Some(Uid::from_raw(self.cache.uid)), None).unwrap();
        };
        let mut fetched = Fetched::default();
        for (part, (path, content)) in (0..).zip(files) {
            owned(&FetchedFile::part_name(part), content.as_bytes());
            let (path, size, sha256) = ((*path).to_owned(), content.len() as u64, digest_of(content));
            fetched.files.push(FetchedFile { path, size, sha256, verified: true, etag: None, part: Some(part) });
        }
        owned(FETCHED, &serde_json::to_vec(&fetched).unwrap());
        work
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
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Odd(_))));
    // A list that is a link, and one that is a folder.
    let work = world.cache.begin(&order.key(), &order).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", work.folder.join(FETCHED)).unwrap();
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Odd(_))));
    let work = world.cache.begin(&order.key(), &order).unwrap();
    fs::create_dir(work.folder.join(FETCHED)).unwrap();
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Odd(_))));
    assert!(!work.folder.exists());
}

#[test]
fn a_content_that_left_the_cache_meanwhile_costs_no_other_download() {
    let world = World::new(1 << 20);
    let gone = world.fetch("https://host/a", &[("new", "fetched", true), ("known", "evicted", false)]);
    assert!(matches!(gone, Err(CacheError::Gone(_))), "{gone:?}");
    let order = World::order("https://host/a");
    let work = world.cache.begin(&order.key(), &order).unwrap();
    assert_eq!(names(&work.folder), [FetchedFile::part_name(0)]);
}

#[test]
fn a_missing_part_is_not_taken_for_a_content_of_another_size() {
    let world = World::new(1 << 20);
    world.fetch("https://host/a", &[("x", "weights", true)]).unwrap();
    for (size, part, is_gone) in [(7, Some(0), false), (8, Some(0), false), (8, None, true)] {
        let order = World::order("https://host/b");
        let work = world.cache.begin(&order.key(), &order).unwrap();
        let (path, sha256) = ("x".to_owned(), digest_of("weights"));
        let file = FetchedFile { path, size, sha256, verified: true, etag: None, part };
        fs::write(work.folder.join(FETCHED), serde_json::to_vec(&Fetched { files: vec![file] }).unwrap()).unwrap();
        let refused = world.cache.complete(&order.key(), &order);
        let is_right =
            matches!((&refused, is_gone), (Err(CacheError::Odd(_)), false) | (Err(CacheError::Gone(_)), true));
        assert!(is_right, "{size} {part:?}: {refused:?}");
    }
}

#[test]
fn what_an_end_in_the_middle_leaves_is_completed_or_leaves_the_folder() {
    for ends in ["seal", "take over", "link"] {
        let mut world = World::new(1 << 20);
        world.cache.uid = 12345;
        let order = World::order("https://host/a");
        let work = world.begin(&order, &[("a", "one"), ("b", "two")]);
        let fetched = read_list(&work.folder.join(FETCHED)).unwrap();
        for file in &fetched.files {
            world.cache.seal(&work.folder, file).unwrap();
        }
        if ends != "seal" {
            fetched.files.iter().for_each(|file| world.cache.take_over(&work.folder, file).unwrap());
        }
        if ends == "link" {
            world.cache.link_all(&world.cache.sets().join(".unfinished"), &fetched).unwrap();
        }
        let cache = Cache::open(world.dir.path(), 12345, 1 << 20, "boot", &BTreeSet::new()).unwrap();
        assert!(cache.is_fetched(&order.key()), "{ends}");
        let set = cache.complete(&order.key(), &order).unwrap();
        assert_eq!((names(&cache.sets()), cache.find(&order.key())), (vec![set.to_string()], Some(set)), "{ends}");
        assert!(!work.folder.exists() && cache.bytes() == 6, "{ends}");

        // Without its list, nothing that is root's is given to the downloader.
        let order = World::order("https://host/b");
        let work = world.begin(&order, &[("a", "three")]);
        let fetched = read_list(&work.folder.join(FETCHED)).unwrap();
        world.cache.seal(&work.folder, &fetched.files[0]).unwrap();
        world.cache.begin(&order.key(), &order).unwrap();
        assert_eq!(names(&work.folder), [FETCHED], "{ends}");
    }
}

#[test]
fn a_file_system_that_refuses_costs_no_download() {
    let world = World::new(1 << 20);
    let order = World::order("https://host/a");
    let work = world.begin(&order, &[("a", "one")]);
    let (sets, aside) = (world.cache.sets(), world.dir.path().join("aside"));
    fs::rename(&sets, &aside).unwrap();
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Io { .. })));
    assert!(work.folder.join(FetchedFile::part_name(0)).is_file());
    fs::rename(&aside, &sets).unwrap();
    world.cache.complete(&order.key(), &order).unwrap();
}

#[test]
fn a_file_is_not_named_by_a_digest_that_it_has_not() {
    let world = World::new(1 << 20);
    let order = World::order("https://host/a");
    let work = world.cache.begin(&order.key(), &order).unwrap();
    fs::write(work.folder.join(FetchedFile::part_name(0)), "poison").unwrap();
    let file = FetchedFile {
        path: "x".to_owned(),
        size: 6,
        sha256: digest_of("what others ask for"),
        verified: true,
        etag: None,
        part: Some(0),
    };
    fs::write(work.folder.join(FETCHED), serde_json::to_vec(&Fetched { files: vec![file] }).unwrap()).unwrap();
    assert!(matches!(world.cache.complete(&order.key(), &order), Err(CacheError::Odd(_))));
    assert_eq!((names(&world.cache.files()), work.folder.exists()), (Vec::new(), false), "nothing is left of it");
    world.fetch("https://host/a", &[("x", "honest", true)]).unwrap();
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
fn work_of_orders_that_do_not_run_counts_and_makes_room() {
    let world = World::new(1 << 20);
    let left: Vec<_> = ["https://host/idle", "https://host/runs"].map(World::order).into();
    let folders = left.iter().map(|order| world.cache.begin(&order.key(), order).unwrap().folder).collect::<Vec<_>>();
    folders.iter().for_each(|folder| fs::write(folder.join("0.part"), vec![1; 600 << 10]).unwrap());
    let (none, runs) = (BTreeSet::new(), BTreeSet::from([left[1].key()]));
    world.cache.make_room(100 << 10, &none, &runs).unwrap();
    assert!(folders.iter().all(|folder| folder.is_dir()));
    world.cache.make_room(500 << 10, &none, &runs).unwrap();
    assert_eq!(folders.iter().map(|folder| folder.is_dir()).collect::<Vec<_>>(), [false, true]);
    world.cache.abandon(&left[1].key());
    assert!(!folders[1].exists());
    assert_eq!(names(&world.dir.path().join("weights/orders")), [format!("{}.json", left[0].key())]);
}

#[test]
fn a_start_keeps_what_is_complete_and_work_of_the_same_boot() {
    let world = World::new(1 << 20);
    let set = world.fetch("https://host/1", &[("x", "12345678", true)]).unwrap();
    let order = World::order("https://host/2");
    let work = world.cache.begin(&order.key(), &order).unwrap();
    fs::create_dir(world.cache.sets().join(".unfinished")).unwrap();
    fs::write(world.cache.files().join(digest_of("unused").as_str()), "unused").unwrap();
    let reopen_with = |boot: &str, in_use: &[Digest]| {
        Cache::open(world.dir.path(), 0, 1 << 20, boot, &in_use.iter().cloned().collect()).unwrap()
    };
    let reopen = |boot: &str| reopen_with(boot, &[]);
    reopen("boot");
    assert!(work.folder.is_dir());
    assert_eq!((names(&world.cache.sets()), names(&world.cache.files()).len()), (vec![set.to_string()], 1));
    reopen("another");
    assert!(!work.folder.exists());

    // Records of another version of the launcher: what is not mounted is fetched again.
    fs::write(world.cache.record_path(&World::order("https://host/1").key()), "{}").unwrap();
    reopen_with("boot", std::slice::from_ref(&set));
    assert_eq!((names(&world.cache.sets()), names(&world.cache.files()).len()), (vec![set.to_string()], 1));
    reopen("boot");
    assert_eq!((names(&world.cache.sets()).len(), names(&world.cache.files()).len()), (0, 0));
}
