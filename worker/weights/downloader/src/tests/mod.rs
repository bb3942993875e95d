//! Hosts whose addresses change, and sources of several files.

#[path = "../../tests/server/mod.rs"]
mod server;
#[path = "../../tests/world/mod.rs"]
mod world;

use crate::client::{Access, Client, Connections, Traffic};
use crate::download::{Folders, Sink};
use crate::failure::Failure;
use crate::pace::{Pace, TooSlow, WINDOW};
use crate::part::Part;
use crate::resolver::{Addresses, Resolver};
use crate::rules::Rules;
use crate::source::RemoteFile;
use crate::url::Url;
use crate::{fetch, range, tls, transfer};
use omni_weights::{Digest, FETCHED, Fetched, Order};
use server::{Ranges, Served, content};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::World;

/// Resolver that gives one list of addresses after the other; the last one again and again.
struct Changing(Mutex<VecDeque<Vec<IpAddr>>>);

impl Changing {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        Arc::new(Self(Mutex::new(answers.iter().map(parsed).collect())))
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Resolver for Changing {
    fn resolve<'a>(&'a self, _: &'a str) -> Addresses<'a> {
        let mut answers = self.0.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(async move { Ok(next.unwrap_or_default()) })
    }
}

fn order(source: &str) -> Order {
    world::order(source.to_owned(), "store.test")
}

impl World {
    fn fetch(&self, order: &Order, secret: Option<&str>, resolver: Arc<dyn Resolver>) -> Result<Fetched, Failure> {
        self.fetch_at(Pace::new(WINDOW), order, secret, resolver)
    }

    fn fetch_at(
        &self,
        pace: Pace,
        order: &Order,
        secret: Option<&str>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Fetched, Failure> {
        let folders = Folders { work: self.path("work"), files: self.path("files") };
        let sink: Sink = Arc::new(|_| ());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(fetch(order, secret, resolver, &folders, &sink, pace))?;
        Ok(serde_json::from_slice(&fs::read(folders.work.join(FETCHED)).unwrap()).unwrap())
    }

    fn host(&self) -> String {
        format!("http://store.test:{}", self.server.address.port())
    }

    /// A file of the server, and connections to it.
    fn part(&self, url: Url, size: u64) -> (Part, Connections) {
        let own = url.origin.clone();
        let remote = RemoteFile { path: "w".to_owned(), url, size, sha256: None, etag: None };
        let part = Part::open(&self.path("work"), 0, remote, "boot", &own).unwrap();
        let rules = Rules { own, redirects: Vec::new(), private_hosts: vec!["store.test".to_owned()] };
        let (tls, resolver) = (tls::connector(None).unwrap(), Changing::new(&[&["127.0.0.1"]]));
        let (access, credential, traffic) = (Access::Anyone, None, Traffic::default());
        (part, Connections::new(Arc::new(Client { rules, tls, resolver, access, credential, traffic })))
    }
}

#[test]
fn the_address_that_is_connected_is_the_one_that_was_checked() {
    let world = World::new();
    let bytes = content(1, 40 << 20);
    // Each answer ends its connection, so that the host is looked up anew.
    world.server.put("/w", Served { closes: true, ..Served::new(bytes) });
    let source = format!("{}/w", world.host());
    let good: &[&str] = &["127.0.0.1"];
    let table: &[(&[&[&str]], &str)] = &[
        (&[good, &["169.254.169.254"]], "never fetched from"),
        (&[good, good, &["fd00:ec2::254"]], "never fetched from"),
        (&[good, &["127.0.0.1", "169.254.169.254"]], "never fetched from"),
        (&[&["169.254.169.254"]], "never fetched from"),
    ];
    for (answers, why) in table {
        let resolver = Changing::new(answers);
        let failure = world.fetch(&order(&source), None, resolver).unwrap_err();
        assert!(matches!(failure, Failure::Refused(_)) && failure.to_string().contains(why), "{failure}");
    }
    // A host that is not listed may not become this machine.
    let rebound = Order { private_hosts: Vec::new(), ..order(&source) };
    let failure = world.fetch(&rebound, None, Changing::new(&[good])).unwrap_err();
    assert!(failure.to_string().contains("`private-hosts`"), "{failure}");
    let fine = Changing::new(&[good]);
    assert_eq!(world.fetch(&order(&source), None, fine).unwrap().files.len(), 1);
}

#[test]
fn a_connection_asks_for_its_host_once() {
    let world = World::new();
    world.server.put("/w", Served::new(content(1, 1 << 20)));
    let resolver = Changing::new(&[&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.1"], &["169.254.169.254"]]);
    world.fetch(&order(&format!("{}/w", world.host())), None, resolver.clone()).unwrap();
    // A connection for the size, and one for the content.
    assert_eq!(resolver.left(), 2);
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_others() {
    let world = World::new();
    world.server.put("/w", Served::new(content(1, 1000)));
    // The queue of its connections is full.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    let address = std::net::SocketAddr::new("127.0.0.2".parse().unwrap(), world.server.address.port());
    silent.bind(address).unwrap();
    let _silent = silent.listen(0).unwrap();
    let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let _queued: Vec<_> = (0..4).map(connect).collect();
    let resolver = Changing::new(&[&["127.0.0.2", "127.0.0.1"]]);
    world.fetch(&order(&format!("{}/w", world.host())), None, resolver).unwrap();
}

#[test]
fn a_range_that_takes_too_long_is_cut_off_and_goes_on() {
    let world = World::new();
    let slow = Some(Duration::from_millis(150));
    world.server.put("/w", Served { slow, ..Served::new(content(1, 16 << 20)) });
    world.fetch(&order(&format!("{}/w", world.host())), None, Changing::new(&[&["127.0.0.1"]])).unwrap();
    // The first byte, which tells the size; the range; its rest.
    assert!(world.server.requests().len() >= 3, "{:?}", world.server.requests());
}

#[test]
fn a_server_that_sends_too_slowly_is_given_up_for_now_and_what_is_complete_stays() {
    let world = World::new();
    let bytes = content(1, 40 << 20);
    let well = Served::new(bytes.clone());
    // Five connections with 256 KiB in three seconds each, as ranges and as a whole.
    let slow = Served { slow: Some(Duration::from_secs(3)), ..well.clone() };
    let fetch = |path: &str| {
        let order = order(&format!("{}{path}", world.host()));
        world.fetch_at(Pace::new(Duration::from_secs(1)), &order, None, Changing::new(&[&["127.0.0.1"]]))
    };
    let refused = |path: &str| {
        let failure = fetch(path).unwrap_err();
        assert!(
            matches!(failure, Failure::TooSlow(TooSlow { received: 0..0x10_0000, .. })) && !failure.is_permanent(),
            "{failure}"
        );
    };
    world.server.put("/whole", Served { ranges: Ranges::Ignored, ..slow.clone() });
    refused("/whole");
    // The size and two requests at once; the others slowly.
    world.server.put("/w", Served { then: Some((3, Box::new(slow))), ..well.clone() });
    refused("/w");
    let before = world.server.bytes();
    world.server.put("/w", well);
    assert_eq!(fetch("/w").unwrap().files.len(), 1);
    assert!(world.server.bytes() - before < 30 << 20, "ranges that were complete are fetched again");
}

#[test]
fn a_list_that_comes_too_slowly_is_given_up_for_now() {
    let world = World::new();
    let mut bucket = order("s3://bucket/m");
    bucket.endpoint = Some(world.host());
    let list = Served { slow: Some(Duration::from_secs(4)), ..page("", &[("m/a", b"1")]) };
    world.server.put("/bucket/?encoding-type=url&list-type=2&prefix=m", list);
    let pace = Pace::new(Duration::from_millis(500));
    let failure = world.fetch_at(pace, &bucket, None, Changing::new(&[&["127.0.0.1"]])).unwrap_err();
    assert!(matches!(failure, Failure::TooSlow(TooSlow { received: 0, .. })), "{failure}");
}

#[test]
fn a_request_that_fails_leaves_the_ranges_that_were_complete() {
    let world = World::new();
    let bytes = content(1, 40 << 20);
    let size = bytes.len() as u64;
    // Half of what is asked for, three ranges, and then the server has no such file.
    let then = Some((1, Box::new(Served { status: Some(404), ..Served::new(bytes.clone()) })));
    world.server.put("/w", Served { cut: 2, then, ..Served::new(bytes) });
    let (part, mut connections) = world.part(Url::parse(&format!("{}/w", world.host())).unwrap(), size);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failure = runtime.block_on(transfer::ranges(&mut connections, &part, 1..4)).unwrap_err();
    assert!(failure.is_permanent(), "{failure}");
    assert_eq!((part.missing(), part.fetched()), (vec![0, 2, 3, 4], 3 * range::RANGE / 2));
}

#[test]
fn ranges_that_are_there_are_not_counted_again_when_the_server_sends_the_whole_file() {
    let world = World::new();
    let bytes = content(1, 40 << 20);
    let (size, whole) = (bytes.len() as u64, Served { ranges: Ranges::Ignored, ..Served::new(bytes.clone()) });
    // Two ranges as asked for; all of it, cut off in the middle; all of it.
    let then = Some((2, Box::new(Served { cut: 2, ..whole })));
    world.server.put("/w", Served { then, ..Served::new(bytes) });
    let url = Url::parse(&format!("{}/w", world.host())).unwrap();
    let (part, mut connections) = world.part(url, size);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (number, expected) in [(0, range::RANGE), (1, 2 * range::RANGE), (2, 2 * range::RANGE)] {
            transfer::ranges(&mut connections, &part, number..number + 1).await.unwrap();
            assert_eq!(part.fetched(), expected, "range {number}");
        }
        assert!(part.is_whole());
        transfer::whole(&mut connections, &part).await.unwrap();
        assert_eq!(part.fetched(), size);
    });
}

/// A page of a bucket: `(key, content)`.
fn page(next: &str, objects: &[(&str, &[u8])]) -> Served {
    let object = |(key, bytes): &(&str, &[u8])| {
        let etag = Served::new(bytes.to_vec()).etag.unwrap();
        format!("<Contents><Key>{key}</Key><Size>{}</Size><ETag>{etag}</ETag></Contents>", bytes.len())
    };
    let objects: String = objects.iter().map(object).collect();
    let more = !next.is_empty();
    let text = format!(
        "<ListBucketResult><IsTruncated>{more}</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>\
         {objects}</ListBucketResult>"
    );
    Served::new(text.into_bytes())
}

#[test]
fn lists_that_cannot_be_used_are_refused_before_anything_is_fetched() {
    let world = World::new();
    let mut bucket = order("s3://bucket/m");
    bucket.endpoint = Some(world.host());
    let refused = |why: &str| {
        let failure = world.fetch(&bucket, None, Changing::new(&[&["127.0.0.1"]])).unwrap_err();
        assert!(failure.is_permanent() && failure.to_string().contains(why), "{failure}");
    };
    let list = "/bucket/?encoding-type=url&list-type=2&prefix=m";
    world.server.put(list, page("", &[("m/p/a", b"1"), ("m/p/a/b", b"2"), ("m/p/a.c", b"3")]));
    refused("`p/a` and `p/a/b`");
    let nested = format!("<ListBucketResult>{}{}</ListBucketResult>", "<a>".repeat(10_000), "</a>".repeat(10_000));
    world.server.put(list, Served::new(nested.into_bytes()));
    refused("no list of objects");
    world.server.put(list, Served::new(vec![b' '; (8 << 20) + 1]));
    refused("more than 8 MiB");
    let many: Vec<String> = (0..=8000).map(|number| format!("m/{number}")).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|key| (key.as_str(), &b"1"[..])).collect();
    world.server.put(list, page("", &many));
    refused("more than 8000 files");
    // A list without an end, and without a file.
    world.server.put(list, page("t", &[]));
    world.server.put("/bucket/?continuation-token=t&encoding-type=url&list-type=2&prefix=m", page("t", &[]));
    refused("more than 256 pages");
    assert!(world.server.requests().iter().all(|head| head.contains("list-type=2")));
}

#[test]
fn a_list_of_a_hub_is_followed_to_its_end_or_refused() {
    let world = World::new();
    let mut hub = order("hf://org/model");
    hub.endpoint = Some(world.host());
    let run = |hub: &Order| world.fetch(hub, None, Changing::new(&[&["127.0.0.1"]]));
    world.server.put("/api/models/org/model/revision/main", Served::new(b"{\"sha\":\"0123456789\"}".to_vec()));
    let tree = "/api/models/org/model/tree/0123456789?recursive=true";
    let page = |name: &str, next: &str| {
        let text = format!("[{{\"type\":\"file\",\"path\":\"{name}\",\"size\":1}}]");
        let fields = if next.is_empty() { String::new() } else { format!("link: <{next}>; rel=\"next\"\r\n") };
        Served { fields, ..Served::new(text.into_bytes()) }
    };
    for name in ["a", "b"] {
        world.server.put(&format!("/org/model/resolve/0123456789/{name}"), Served::new(b"x".to_vec()));
    }
    world.server.put("/more", page("b", ""));
    world.server.put(tree, page("a", "/more"));
    assert_eq!(run(&hub).unwrap().files.len(), 2);
    for (next, why) in [("https://elsewhere/more", "the next page"), ("more", "the next page"), (tree, "64 pages")] {
        world.server.put(tree, page("a", next));
        let failure = run(&hub).unwrap_err();
        assert!(failure.is_permanent() && failure.to_string().contains(why), "{failure}");
    }
    // Files that the order lists are all that is looked for.
    hub.files = BTreeMap::from([("a".to_owned(), None)]);
    assert_eq!(run(&hub).unwrap().files.len(), 1);
}

#[test]
fn a_bucket_is_listed_and_its_objects_are_fetched() {
    let world = World::new();
    let (one, two) = (content(1, 100), content(2, 20 << 20));
    let list = "/bucket/?encoding-type=url&list-type=2&prefix=m";
    world.server.put(list, page("t", &[("m/a%20b", &one), ("m2/x", &one)]));
    let next = "/bucket/?continuation-token=t&encoding-type=url&list-type=2&prefix=m";
    world.server.put(next, page("", &[("m/sub/w.bin", &two), ("m/", b"")]));
    world.server.put("/bucket/m/a%20b", Served::new(one.clone()));
    world.server.put("/bucket/m/sub/w.bin", Served::new(two.clone()));
    let mut bucket = order("s3://bucket/m");
    bucket.endpoint = Some(world.host());
    let here = || Changing::new(&[&["127.0.0.1"]]);
    let fetched = world.fetch(&bucket, Some("key\nsecret"), here()).unwrap();
    let found: Vec<_> = fetched.files.iter().map(|file| (file.path.as_str(), file.size, file.verified)).collect();
    assert_eq!(found, [("a b", 100, false), ("sub/w.bin", 20 << 20, false)]);
    let signed = |head: &String| head.contains("AWS4-HMAC-SHA256 Credential=key/") && head.contains("x-amz-date");
    assert!(world.server.requests().iter().all(signed));

    let digest = Digest::of(Sha256::new_with_prefix(&two));
    bucket.files = BTreeMap::from([("sub/w.bin".to_owned(), Some(digest))]);
    let fetched = world.fetch(&bucket, Some("key\nsecret"), here()).unwrap();
    assert_eq!((fetched.files.len(), fetched.files[0].verified), (1, true));
}
