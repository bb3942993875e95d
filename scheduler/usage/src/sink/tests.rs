//! Tests of the hand-over, with a server that refuses and forgets.

use super::*;
use crate::record::tests::record;
use crate::recorder::{UsageRecorder, UsageSettings, WhenFull};
use omni_sink::testing::receive;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use uuid::Uuid;

fn lines(numbers: std::ops::Range<u64>) -> Vec<u8> {
    let mut lines = Vec::new();
    numbers.for_each(|number| record(number).write_line(&mut lines));
    lines
}

fn log(dir: &Path, name: &str, text: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A server that answers its requests with these statuses in turn, and what it got.
fn server(statuses: Vec<&'static str>) -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::sync_channel(1000);
    thread::spawn(move || {
        let mut statuses = statuses.into_iter().cycle();
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let Some(request) = receive(&connection) else { continue };
            let status = statuses.next().unwrap();
            let answer = format!(
                "HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            let _ = connection.write_all(answer.as_bytes());
            if status.starts_with('2') && sender.send(request).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}/usage"), received)
}

#[test]
fn a_file_that_cannot_be_written_is_known_before_there_are_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.jsonl");
    UsageSink::File(path.clone()).check().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    let error = UsageSink::File(dir.path().join("none/usage.jsonl")).check().unwrap_err();
    assert!(error.contains("none/usage.jsonl: No such file"), "{error}");
}

#[test]
fn a_batch_has_whole_records_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = lines(0..2);
    text.extend_from_slice(b"{\"id\":1}\n\0\0\n");
    text.extend_from_slice(&lines(2..3));
    let whole = text.len() as u64;
    text.extend_from_slice(b"{\"id\":\"tor");
    let path = log(dir.path(), "1.jsonl", &text);
    let batch = Batch::read(&path, 0).unwrap().unwrap();
    let numbers = |batch: &Batch| -> Vec<u64> {
        let lines = batch.lines.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| serde_json::from_slice::<UsageRecord<'_>>(line).unwrap().units.bytes_in).collect()
    };
    assert_eq!((numbers(&batch), batch.end), (vec![0, 1, 2], whole));
    let rest = Batch::read(&path, whole).unwrap().unwrap();
    assert_eq!((rest.lines.len(), rest.end), (0, text.len() as u64), "nobody will end the last line");
    assert_eq!(Batch::read(&path, rest.end).unwrap(), None);
    assert_eq!(Batch::read(&dir.path().join("gone.jsonl"), 0).unwrap(), None);
}

#[test]
fn pauses_double_up_to_a_minute() {
    let seconds: Vec<u64> = (1..10).map(|failures| pause(failures).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
}

#[test]
fn a_server_acknowledges_by_its_status_and_gets_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "secret\n").unwrap();
    let (url, received) = server(vec!["500 No", "302 Found", "204 Fine"]);
    let sink = HttpSink::new(url, Some(token), None).unwrap();
    for status in ["500", "302"] {
        let error = sink.post(b"{}\n").unwrap_err();
        assert!(error.contains(status), "{error}");
    }
    sink.post(b"{}\n").unwrap();
    let (head, body) = received.recv().unwrap();
    assert_eq!(body, b"{}\n");
    assert!(head.contains("authorization: bearer secret\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
}

#[test]
fn a_sink_that_fails_half_of_the_time_gets_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let (url, received) = server(vec!["503 Busy", "200 OK"]);
    let sink = UsageSink::Http(HttpSink::new(url, None, None).unwrap());
    let (spool, log) = (dir.path().join("spool"), dir.path().join("log"));
    let settings = UsageSettings { spool, log, keep: 1 << 30, when_full: WhenFull::Refuse, sink: Some(sink) };
    let recorder = UsageRecorder::open(settings).unwrap();
    (0..3000).for_each(|number| recorder.record(&record(number)));
    let mut found: BTreeMap<Uuid, u64> = BTreeMap::new();
    while found.len() < 3000 {
        let (_, body) = received.recv_timeout(Duration::from_secs(20)).unwrap();
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let record: UsageRecord<'_> = serde_json::from_slice(line).unwrap();
            found.insert(record.id, record.units.bytes_in);
        }
    }
    assert!(found.values().copied().eq(0..3000), "ids are in the order of time here");
    assert!(recorder.counts().sink_failures > 0);
}

#[test]
fn an_acknowledged_batch_ends_a_row_of_failures() {
    let dir = tempfile::tempdir().unwrap();
    let (url, _received) = server(vec!["200 OK", "503 Busy"]);
    let sink = UsageSink::Http(HttpSink::new(url, None, None).unwrap());
    let hand_over = HandOver { dir: dir.path().to_owned(), sink, more: Arc::default(), failures: Arc::default() };
    for name in ["1.jsonl", "2.jsonl"] {
        log(dir.path(), name, &lines(0..2));
    }
    let (mut cursors, mut in_a_row) = (Cursors::load(dir.path()), 7);
    hand_over.all(&mut cursors, &mut in_a_row).unwrap_err();
    assert_eq!(in_a_row, 0, "the first of the two files was taken");
}

#[test]
fn one_process_hands_over_at_a_time_and_the_next_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("records");
    let hand_over = |more: &Arc<MoreRecords>| {
        let sink = UsageSink::File(to.clone());
        HandOver { dir: dir.path().to_owned(), sink, more: Arc::clone(more), failures: Arc::default() }
    };
    let text = lines(0..5);
    log(dir.path(), "1.jsonl", &text);
    fs::write(&to, "{\"half\":").unwrap();
    let (first, second) = (Arc::new(MoreRecords::default()), Arc::new(MoreRecords::default()));
    let run = |more: &Arc<MoreRecords>| {
        let hand_over = hand_over(more);
        thread::spawn(move || hand_over.run())
    };
    let wait_for = |expected: &[u8]| {
        let began = Instant::now();
        while !fs::read(&to).unwrap().ends_with(expected) {
            assert!(began.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
    };
    let old = run(&first);
    wait_for(&text);
    let new = run(&second);
    let more = lines(5..8);
    log(dir.path(), "2.jsonl", &more);
    second.notify(); // it has no lock
    first.end();
    old.join().unwrap();
    wait_for(&more);
    second.end();
    new.join().unwrap();
    let expected = [b"{\"half\":\n".to_vec(), text, more].concat();
    assert!(fs::read(&to).unwrap() == expected, "each record once, after half a line");
}
