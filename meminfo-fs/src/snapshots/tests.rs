//! The table against a simple model: a map from handle to text.

use std::collections::HashMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

fn open(snapshots: &mut Snapshots, owner: Owner, write: impl FnOnce(&mut Text)) -> Option<u64> {
    let made = snapshots.open(owner, |text| {
        write(text);
        Ok::<_, Infallible>(())
    });
    made.unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Open(String),
    Read { handle: u64, offset: u64, size: u32 },
    Release(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let handle = prop_oneof![9 => 0..4_u64, 1 => any::<u64>()];
    let offset = prop_oneof![9 => 0..12_u64, 1 => any::<u64>()];
    let size = prop_oneof![9 => 0..12_u32, 1 => any::<u32>()];
    prop_oneof![
        ".{0,8}".prop_map(Step::Open),
        (handle.clone(), offset, size).prop_map(|(handle, offset, size)| Step::Read { handle, offset, size }),
        handle.prop_map(Step::Release),
    ]
}

proptest! {
    #[test]
    fn it_is_a_map(steps in prop::collection::vec(step(), 0..64)) {
        let mut snapshots = Snapshots::default();
        let mut model = HashMap::<u64, String>::new();
        for step in steps {
            match step {
                Step::Open(text) => {
                    let handle = open(&mut snapshots, 0, |out| out.fresh().extend_from_slice(text.as_bytes())).unwrap();
                    prop_assert_eq!(model.insert(handle, text), None);
                }
                Step::Read { handle, offset, size } => {
                    let expected = model.get(&handle).map(|text| {
                        text.bytes().skip(usize::try_from(offset).unwrap()).take(size as usize).collect::<Vec<_>>()
                    });
                    prop_assert_eq!(snapshots.read(handle, offset, size).map(<[u8]>::to_vec), expected);
                }
                Step::Release(handle) => {
                    snapshots.release(handle);
                    model.remove(&handle);
                }
            }
        }
    }
}

#[test]
fn open_files_are_bounded_and_a_closed_one_makes_room() {
    let mut snapshots = Snapshots::default();
    let handles: Vec<_> = (0..OPEN_FILES_MAX).map(|_| open(&mut snapshots, 0, |_| ()).unwrap()).collect();
    assert_eq!(open(&mut snapshots, 0, |_| unreachable!("nothing is made for a refused open")), None);
    snapshots.release(handles[7]);
    assert_eq!(open(&mut snapshots, 0, |_| ()), Some(handles[7]));
    assert_eq!(open(&mut snapshots, 0, |_| ()), None);
    assert!(open(&mut snapshots, 1, |_| ()).is_some(), "another one has its own share");
}

#[test]
fn a_shared_text_does_not_leak_into_the_next_open() {
    let mut snapshots = Snapshots::default();
    let handle = open(&mut snapshots, 0, |text| text.share(Arc::from(*b"shared"))).unwrap();
    assert_eq!(snapshots.read(handle, 2, 100), Some(&b"ared"[..]));
    snapshots.release(handle);
    assert_eq!(snapshots.open(0, |_| Err("unknown")), Err("unknown"), "and nothing is open after an error");
    assert_eq!(snapshots.read(handle, 0, 100), None);
    assert_eq!(open(&mut snapshots, 0, |text| text.fresh().push(b'x')), Some(handle));
    assert_eq!(snapshots.read(handle, 0, 100), Some(&b"x"[..]));
}
