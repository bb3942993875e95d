//! The program against a server with faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod server;
mod world;

use omni_weights::{Digest, FETCHED, Fetched, FetchedFile, Order, Report};
use server::{Ranges, Served, Server, content};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use world::World;

const MIB: usize = 1 << 20;

fn order(source: String) -> Order {
    world::order(source, "127.0.0.1")
}

fn digest(content: &[u8]) -> Digest {
    Digest::of(Sha256::new_with_prefix(content))
}

/// Asserts that no progress is beyond the whole, and that it is told from its beginning on.
fn assert_progress(reports: &str) {
    let (mut whole, mut is_begun) = (0, true);
    for report in reports.lines().filter_map(Report::parse) {
        match report {
            Report::Listed { total, .. } => {
                assert!(is_begun, "{reports}");
                (whole, is_begun) = (total, false);
            }
            Report::Fetched { done } => {
                assert!(done <= whole, "{done} of {whole}: {reports}");
                is_begun = true;
            }
            Report::Note { .. } | Report::Failed { .. } => {}
        }
    }
}

impl World {
    fn spawn(&self, order: &Order, secret: Option<&str>) -> Child {
        fs::write(self.path("order.json"), serde_json::to_vec(order).unwrap()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_omni-weights"));
        command.args([self.path("order.json"), self.path("work"), self.path("files")]).env_clear();
        if let Some(secret) = secret {
            command.env(omni_weights::SECRET, secret);
        }
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the program: its list, or its last words.
    fn run(&self, order: &Order) -> Result<Fetched, (String, bool)> {
        self.run_with(order, None)
    }

    fn run_with(&self, order: &Order, secret: Option<&str>) -> Result<Fetched, (String, bool)> {
        let mut child = self.spawn(order, secret);
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let status = child.wait().unwrap();
        assert_progress(&text);
        let last = text.lines().last().and_then(Report::parse);
        if let Some(Report::Failed { message, permanent }) = last {
            assert!(!status.success());
            return Err((message, permanent));
        }
        assert!(status.success(), "{text}");
        Ok(serde_json::from_slice(&fs::read(self.path("work").join(FETCHED)).unwrap()).unwrap())
    }

    fn part(&self, file: &FetchedFile) -> Vec<u8> {
        fs::read(self.path("work").join(FetchedFile::part_name(file.part.unwrap()))).unwrap()
    }

    /// Fetches the one file of an order and checks its content.
    fn fetches(&self, order: &Order, expected: &[u8]) -> FetchedFile {
        let fetched = self.run(order).unwrap_or_else(|failed| panic!("{failed:?}"));
        let [file] = fetched.files.as_slice() else { panic!("{fetched:?}") };
        assert!(self.part(file) == expected, "another content");
        assert_eq!((file.size, &file.sha256), (expected.len() as u64, &digest(expected)));
        file.clone()
    }
}

#[test]
fn files_of_any_size_by_every_kind_of_server() {
    for ranges in [Ranges::Standard, Ranges::Status200, Ranges::Ignored] {
        for size in [0, 1, 5 * MIB, 16 * MIB, 50 * MIB + 7] {
            let world = World::new();
            let bytes = content(1, size);
            world.server.put("/w.bin", Served { ranges, ..Served::new(bytes.clone()) });
            let file = world.fetches(&order(world.server.url("/w.bin")), &bytes);
            assert_eq!((file.path.as_str(), file.verified), ("w.bin", false), "{ranges:?} {size}");
            let pinned = Order { sha256: Some(digest(&bytes)), ..order(world.server.url("/w.bin")) };
            assert!(world.fetches(&pinned, &bytes).verified);
        }
    }
}

#[test]
fn without_a_validator_and_a_digest_a_file_comes_in_one_piece() {
    let world = World::new();
    let bytes = content(1, 40 * MIB);
    world.server.put("/w.bin", Served { etag: None, ..Served::new(bytes.clone()) });
    world.fetches(&order(world.server.url("/w.bin")), &bytes);
    assert!(world.server.requests().iter().any(|head| !head.to_lowercase().contains("range:")));
    let dated = Served {
        etag: None,
        fields: "last-modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n".to_owned(),
        ..Served::new(bytes.clone())
    };
    world.server.put("/dated.bin", dated);
    world.fetches(&order(world.server.url("/dated.bin")), &bytes);
    let whole = |head: &&String| head.contains("/dated") && !head.to_lowercase().contains("range:");
    assert_eq!(world.server.requests().iter().filter(whole).count(), 0, "a date is a validator");
}

#[test]
fn bodies_that_are_cut_off_go_on_where_they_ended() {
    for (etag, ranges) in [(true, Ranges::Standard), (true, Ranges::Ignored), (false, Ranges::Standard)] {
        let world = World::new();
        let bytes = content(1, 40 * MIB);
        let served = Served { cut: 4, ranges, ..Served::new(bytes.clone()) };
        let etag = served.etag.clone().filter(|_| etag);
        world.server.put("/w.bin", Served { etag, ..served });
        world.fetches(&order(world.server.url("/w.bin")), &bytes);
    }
}

#[test]
fn a_server_that_is_busy_is_asked_again() {
    let world = World::new();
    let bytes = content(1, MIB);
    let well = Served::new(bytes.clone());
    world.server.put("/w.bin", well.clone());
    let busy = Served {
        status: Some(503),
        fields: "retry-after: 1\r\n".to_owned(),
        then: Some((2, Box::new(well.clone()))),
        ..well.clone()
    };
    world.server.put("/w.bin", Served { then: Some((1, Box::new(busy))), ..well });
    world.fetches(&order(world.server.url("/w.bin")), &bytes);
}

#[test]
fn hard_errors_are_named_and_end_it() {
    let world = World::new();
    let bytes = content(1, MIB);
    let well = Served::new(bytes.clone());
    for (path, status) in [("/401", 401), ("/403", 403), ("/500", 500)] {
        world.server.put(path, Served { status: Some(status), ..well.clone() });
    }
    world.server.put("/encoded", Served { fields: "content-encoding: gzip\r\n".to_owned(), ..well.clone() });
    world.server.put("/w", well);
    let plain = |path: &str| order(world.server.url(path));
    let table = [
        (plain("/401"), "answers 401", true),
        (plain("/403"), "answers 403", true),
        (plain("/absent"), "there is no", true),
        (plain("/500"), "answers 500", false),
        (plain("/encoded"), "makes no sense", true),
        (Order { sha256: Some(digest(b"other")), ..plain("/w") }, "has another content than it should", true),
        (Order { most_bytes: 1000, ..plain("/w") }, "raise `cache`", true),
        (Order { private_hosts: Vec::new(), ..plain("/w") }, "private network", true),
        (order("http://127.0.0.1:1/w".to_owned()), "does not answer", false),
    ];
    for (order, why, permanent) in table {
        let (message, is_permanent) = world.run(&order).unwrap_err();
        assert!(message.contains(why) && is_permanent == permanent, "{message} {is_permanent}");
    }
}

#[test]
fn a_refused_credential_is_named_and_a_missing_one_too() {
    let (world, other) = (World::new(), Server::start());
    let refused = Served { status: Some(401), ..Served::new(Vec::new()) };
    world.server.put("/w", refused.clone());
    other.put("/w", refused);
    world.server.put("/moved", Served { redirect: Some(other.url("/w")), ..Served::new(Vec::new()) });
    let named = |path: &str| Order {
        credential: Some("hub-token".to_owned()),
        redirects: vec!["127.0.0.1".to_owned()],
        ..order(world.server.url(path))
    };
    let table = [
        (named("/w"), Some("my-token"), "refuses the credential `hub-token`"),
        (order(world.server.url("/w")), None, "names no `credential`"),
        (named("/moved"), Some("my-token"), "which the source's own server redirects to"),
    ];
    for (order, secret, why) in table {
        let (message, permanent) = world.run_with(&order, secret).unwrap_err();
        assert!(message.contains(why) && message.contains("answers 401") && permanent, "{message}");
        assert!(!message.contains("my-token"), "{message}");
    }
}

#[test]
fn a_file_that_changes_on_the_way_is_refused_and_never_mixed() {
    for ranges in [Ranges::Standard, Ranges::Status200] {
        let world = World::new();
        let (old, new) = (content(1, 60 * MIB), content(2, 60 * MIB));
        let then = Served { ranges, ..Served::new(new.clone()) };
        world.server.put("/w", Served { ranges, then: Some((3, Box::new(then))), ..Served::new(old) });
        let plain = order(world.server.url("/w"));
        let (message, permanent) = world.run(&plain).unwrap_err();
        assert!(message.contains("has changed") && !permanent, "{message}");
        world.fetches(&plain, &new);
    }
}

/// Starts the program and kills it once it has fetched something, but not all.
fn kill_in_the_middle(world: &World, order: &Order) -> u64 {
    let mut child = world.spawn(order, None);
    let journal = world.path("work").join("0.journal");
    for _ in 0..600 {
        thread::sleep(Duration::from_millis(50));
        let ranges = fs::read_to_string(&journal).unwrap_or_default().matches("range ").count();
        if ranges >= 2 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = fs::read_to_string(journal).unwrap().matches("range ").count() as u64;
    assert!((2..8).contains(&lines), "{lines} of 8 ranges");
    lines
}

/// A file that the server gives a part of, and then nothing.
fn half(bytes: &[u8], etag: Option<String>) -> Served {
    let stuck = Served { status: Some(500), ..Served::new(bytes.to_vec()) };
    Served { etag, then: Some((5, Box::new(stuck))), ..Served::new(bytes.to_vec()) }
}

#[test]
fn a_killed_download_resumes() {
    let world = World::new();
    let bytes = content(1, 64 * MIB);
    let well = Served::new(bytes.clone());
    world.server.put("/w", half(&bytes, well.etag.clone()));
    let plain = order(world.server.url("/w"));
    let ranges = kill_in_the_middle(&world, &plain);
    let before = world.server.bytes();
    world.server.put("/w", well);
    world.fetches(&plain, &bytes);
    let fetched = world.server.bytes() - before;
    let missing = bytes.len() as u64 - ranges * 8 * MIB as u64;
    // The first byte, which tells the size, is asked for too.
    assert!(fetched <= missing + MIB as u64, "{fetched} bytes for the missing {missing}");
    assert!(world.server.requests().last().is_some_and(|head| head.to_lowercase().contains("if-match:")));
}

#[test]
fn a_file_that_changed_meanwhile_is_not_resumed() {
    for same_etag in [false, true] {
        let world = World::new();
        let (old, new) = (content(1, 64 * MIB), content(2, 64 * MIB));
        let etag = Some("\"e\"".to_owned());
        world.server.put("/w", half(&old, etag.clone()));
        let plain = order(world.server.url("/w"));
        let pinned = Order { sha256: Some(digest(&new)), ..plain };
        kill_in_the_middle(&world, &pinned);
        let etag = if same_etag { etag } else { Some("\"f\"".to_owned()) };
        world.server.put("/w", Served { etag, ..Served::new(new.clone()) });
        // Where the server lies, the digest tells.
        world.fetches(&pinned, &new);
    }
}

#[test]
fn redirects_are_followed_only_where_the_rules_allow() {
    let world = World::new();
    let other = Server::start();
    let bytes = content(1, 20 * MIB);
    other.put("/content?signed=1", Served::new(bytes.clone()));
    other.put("/admin", Served::new(b"secret".to_vec()));
    let redirect = |to: &str| Served { redirect: Some(to.to_owned()), ..Served::new(Vec::new()) };
    world.server.put("/w", redirect(&other.url("/content?signed=1")));
    let plain = order(world.server.url("/w"));
    let (message, permanent) = world.run(&plain).unwrap_err();
    assert!(message.contains("not listed as `redirects`") && permanent, "{message}");
    assert_eq!(other.requests().len(), 0);

    let listed = Order { redirects: vec!["127.0.0.1".to_owned()], ..plain.clone() };
    let fetched = world.run_with(&listed, Some("token")).unwrap();
    assert_eq!(world.part(&fetched.files[0]), bytes);
    let has_token = |head: &String| head.contains("Bearer token");
    assert!(world.server.requests().iter().any(has_token) && !other.requests().iter().any(has_token));

    for to in [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:9090/metrics",
        "http://[::1]/x",
        "http://10.0.0.1/x",
        "https://evil.example/x",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
    ] {
        world.server.put("/w", redirect(to));
        let (message, permanent) = world.run(&listed).unwrap_err();
        assert!(permanent, "{to}: {message}");
    }
    world.server.put("/w", redirect("/w"));
    assert!(world.run(&listed).unwrap_err().0.contains("more than 5 redirects"));
}

#[test]
fn what_the_node_has_is_not_fetched() {
    let world = World::new();
    let bytes = content(1, MIB);
    world.server.put("/w", Served::new(bytes.clone()));
    fs::write(world.path("files").join(digest(&bytes).as_str()), &bytes).unwrap();
    let pinned = Order { sha256: Some(digest(&bytes)), ..order(world.server.url("/w")) };
    let fetched = world.run(&pinned).unwrap();
    assert_eq!((fetched.files[0].part, fetched.files[0].verified), (None, true));
    assert!(world.server.bytes() <= 1, "{}", world.server.bytes());
}

#[test]
fn a_full_disk_is_known_before_the_first_byte() {
    let world = World::new();
    let statuses = Served {
        status: Some(206),
        fields: format!("content-range: bytes 0-0/{}\r\n", 1_u64 << 50),
        ..Served::new(vec![0])
    };
    world.server.put("/w", statuses);
    let plain = Order { most_bytes: u64::MAX, ..order(world.server.url("/w")) };
    fs::write(world.path("work").join("1.part"), "left").unwrap();
    let (message, permanent) = world.run(&plain).unwrap_err();
    assert!(message.contains("the disk is full: 1125899906842624 bytes") && !permanent, "{message}");
    assert_eq!(world.server.requests().len(), 1);
    // Files of an earlier attempt make room for others.
    assert_eq!(fs::read_dir(world.path("work")).unwrap().count(), 0);

    // The node's reserve is no room.
    world.server.put("/small", Served::new(content(1, MIB)));
    let small = Order { reserve: u64::MAX, ..order(world.server.url("/small")) };
    assert!(world.run(&small).unwrap_err().0.contains("the disk is full"));
    world.fetches(&Order { reserve: 0, ..small }, &content(1, MIB));
}
