//! Every hooked entry with arguments that are null, wrong, too large, or stale: before `cuInit`, without a context, in
//! one, and in a destroyed one. The driver's codes come back, nothing crashes, nothing stays counted.

use crate::calls::{at, call};
use crate::instance::{Instance, say, wait};
use omni_cuda_card::Settings;
use omni_cuda_entries::{ENTRIES, Entry, Role};
use omni_gpu_protocol::account::Use;
use std::fmt::Write;
use std::thread;

/// Drivers of each kind: the first of CUDA 12, its last, the newest.
const DRIVERS: [u32; 3] = [12_000, 12_090, 13_050];
/// Limit above everything, so that the card decides. Of two errors, about a size beyond the limit and about something
/// else, the one about the size would come first.
const LIMIT: u64 = u64::MAX;

fn taken_over() -> impl Iterator<Item = &'static Entry> {
    ENTRIES.iter().filter(|entry| entry.role != Role::Other)
}

fn instance(driver: u32, mode: &'static str) -> Instance {
    Instance::with(Settings { driver, ..Settings::numbered(0) }, mode, Some(LIMIT))
}

#[test]
fn invalid_arguments_get_the_drivers_errors() {
    for driver in DRIVERS {
        let (alone, limited) = (instance(driver, "device").bare(), instance(driver, "device"));
        let mut differ = String::new();
        for entry in taken_over() {
            let case = format!("table {}", entry.symbol);
            let ((expected, _), (said, left)) = (until_done(&alone, &case), until_done(&limited, &case));
            for (expected, said) in expected.iter().zip(&said).filter(|(expected, said)| expected != said) {
                writeln!(differ, "{expected}, not {said}").unwrap();
            }
            assert_eq!(expected.len(), said.len(), "driver {driver}: after {:?} it is dead", said.last());
            assert_eq!(left, Use::default(), "driver {driver}: {} left something in the account", entry.symbol);
        }
        assert_eq!(differ, "", "driver {driver}");
    }
}

#[test]
fn converted_memory_survives_wrong_arguments_too() {
    for driver in DRIVERS {
        let instance = instance(driver, "unified");
        for entry in taken_over() {
            let (said, left) = until_done(&instance, &format!("table {}", entry.symbol));
            assert_eq!(said.last().map(String::as_str), Some("done"), "driver {driver}: dead after {:?}", said.last());
            assert_eq!(left, Use::default(), "driver {driver}: {} left something in the account", entry.symbol);
        }
    }
}

/// Output of a client, and the account when it is done and alive.
pub(crate) fn until_done(instance: &Instance, case: &str) -> (Vec<String>, Use) {
    let mut client = instance.start(case);
    let mut said = Vec::new();
    while let Some(line) = client.line() {
        let is_done = line == "done";
        said.push(line);
        if is_done {
            break;
        }
    }
    let left = instance.used();
    client.go_on();
    (said, left)
}

/// Placeholder for an argument.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// The number itself.
    Is(u64),
    /// Place for an answer.
    Out,
    /// Device memory, freed after the call if it is still there.
    Live,
    /// Address inside that memory.
    Inside,
    /// Pages of the host.
    Pages,
    Stream,
    Pool,
    Graph,
    /// Description with these words; the rest of it is zeros.
    Text(&'static [u64]),
    /// Description full of ones.
    Ones,
    /// Array of two pointers to places for answers.
    Outs,
    Name(&'static std::ffi::CStr),
}
use Value::{Graph, Inside, Is, Live, Name, Ones, Out, Outs, Pages, Pool, Stream, Text};

type Values = &'static [Value];
const OUT: Values = &[Out, Is(0)];
const SIZE: Values = &[Is(4096), Is(0), Is(1), Is(4097), Is(2 << 20), Is(1 << 50), Is(u64::MAX), Is(u64::MAX - 4095)];
const SHORT: Values = &[Is(4096), Is(0), Is(1), Is(0xffff_ffff)];
const HANDLE: Values = &[Is(0), Is(12_345), Is(u64::MAX), Live, Inside, Stream, Pool, Graph];
const DEVICE: Values = &[Is(0), Is(99), Is(0xffff_ffff), Is(0x8000_0000)];
const STREAM: Values = &[Stream, Is(0), Is(1), Is(2), Is(12_345)];
const POOL: Values = &[Pool, Is(0), Is(12_345)];
const GRAPH: Values = &[Graph, Is(0), Is(12_345)];
const FLAGS: Values = &[Is(0), Is(1), Is(2), Is(4), Is(0xffff_ffff)];
const COUNT: Values = &[Is(0), Is(1), Is(2)];
const NOWHERE: Values = &[Is(0)];
/// Descriptions of pools and handles: pinned, not shared, device 0; then another device, the host, no type.
const PLACE: Values = &[Text(&[1, 1]), Text(&[1, 1 | 99 << 32]), Text(&[1, 2]), Text(&[]), Ones, Is(0)];
/// Width, height, format and channels; then an unknown format. Sizes too large for a card are not beyond an array's
/// bounds here: of two errors the shim's comes first.
const FLAT: Values = &[Text(&[64, 64, 0x20 | 4 << 32]), Text(&[64, 64, 77]), Text(&[]), Ones, Is(0)];
const SHORT_FLAT: Values =
    &[Text(&[64 | 64 << 32, 0x20 | 4 << 32]), Text(&[64 | 64 << 32, 77]), Text(&[]), Ones, Is(0)];
const SOLID: Values = &[
    Text(&[64, 64, 2, 0x20 | 4 << 32, 0]),
    Text(&[16_384, 16_384, 16_384, 0x20 | 4 << 32, 0]),
    Text(&[64, 64, 2, 0x20 | 4 << 32, 0xffff]),
    Text(&[64, 64, 2, 77, 0]),
    Text(&[]),
    Ones,
    Is(0),
];
const SHORT_SOLID: Values = &[Text(&[64 | 64 << 32, 2 | 0x20 << 32, 4]), Text(&[64, 77 << 32]), Text(&[]), Ones, Is(0)];
/// Properties of a pool (11 words), two of access, and a size.
const NODE: Values = &[
    Text(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 20]),
    Text(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 50]),
    Text(&[1, 1 | 99 << 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 20]),
    Text(&[]),
    Ones,
    Is(0),
];
const ANY_NODE: Values = &[
    Text(&[10, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 20]),
    Text(&[10, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 50]),
    Text(&[77]),
    Text(&[5]),
    Ones,
    Is(0),
];
const EXTERNAL: Values =
    &[Text(&[1, u64::MAX, 0, 4096]), Text(&[1, 0, 0, 1 << 50]), Text(&[77]), Text(&[]), Ones, Is(0)];
const NAME: Values = &[Name(c"cuMemAlloc"), Name(c"cuNothing"), Name(c""), Is(0)];

/// Values for each argument of an entry, and the call that undoes a success: it gets the first answer.
fn arguments(symbol: &str) -> (Vec<Values>, &'static str) {
    let stem = symbol.strip_suffix("_ptsz").unwrap_or(symbol);
    match stem {
        "cuMemAlloc" => (vec![OUT, SHORT], "cuMemFree"),
        "cuMemAlloc_v2" => (vec![OUT, SIZE], "cuMemFree_v2"),
        "cuMemAllocManaged" => (vec![OUT, SIZE, FLAGS], "cuMemFree_v2"),
        "cuMemAllocPitch" => (vec![OUT, OUT, SHORT, SHORT, FLAGS], "cuMemFree"),
        "cuMemAllocPitch_v2" => (vec![OUT, OUT, SIZE, SIZE, FLAGS], "cuMemFree_v2"),
        "cuMemAllocHost" => (vec![OUT, SHORT], "cuMemFreeHost"),
        "cuMemAllocHost_v2" => (vec![OUT, SIZE], "cuMemFreeHost"),
        "cuMemHostAlloc" => (vec![OUT, SIZE, FLAGS], "cuMemFreeHost"),
        "cuMemHostRegister" | "cuMemHostRegister_v2" => {
            (vec![&[Pages, Is(0), Is(12_345), Live], SIZE, FLAGS], "cuMemHostUnregister")
        }
        "cuMemAllocAsync" => (vec![OUT, SIZE, STREAM], "cuMemFree_v2"),
        "cuMemAllocFromPoolAsync" => (vec![OUT, SIZE, POOL, STREAM], "cuMemFree_v2"),
        "cuMemFreeAsync" => (vec![HANDLE, STREAM], ""),
        "cuMemCreate" => (vec![OUT, SIZE, PLACE, &[Is(0), Is(1)]], "cuMemRelease"),
        "cuMemImportFromShareableHandle" => (vec![OUT, &[Is(0xffff_ffff), Is(0), Is(2)], FLAGS], "cuMemRelease"),
        "cuMemRetainAllocationHandle" => (vec![OUT, HANDLE], "cuMemRelease"),
        "cuMemMap" => (vec![HANDLE, SIZE, COUNT, HANDLE, &[Is(0), Is(1)]], ""),
        "cuMemUnmap" => (vec![HANDLE, SIZE], ""),
        "cuArrayCreate" => (vec![OUT, SHORT_FLAT], "cuArrayDestroy"),
        "cuArrayCreate_v2" => (vec![OUT, FLAT], "cuArrayDestroy"),
        "cuArray3DCreate" => (vec![OUT, SHORT_SOLID], "cuArrayDestroy"),
        "cuArray3DCreate_v2" => (vec![OUT, SOLID], "cuArrayDestroy"),
        "cuMipmappedArrayCreate" => {
            (vec![OUT, SOLID, &[Is(1), Is(0), Is(2), Is(0xffff_ffff)]], "cuMipmappedArrayDestroy")
        }
        "cuImportExternalMemory" => (vec![OUT, EXTERNAL], "cuDestroyExternalMemory"),
        "cuIpcOpenMemHandle" | "cuIpcOpenMemHandle_v2" => (vec![OUT, FLAGS, NOWHERE, NOWHERE, NOWHERE, NOWHERE], ""),
        "cuMemPoolCreate" => (vec![OUT, PLACE], "cuMemPoolDestroy"),
        "cuMemPoolTrimTo" => (vec![POOL, SIZE], ""),
        "cuMemPoolImportPointer" => (vec![OUT, POOL, &[Text(&[]), Ones, Is(0)]], "cuMemFree_v2"),
        "cuMemPoolGetAttribute" | "cuMemPoolSetAttribute" => {
            (vec![POOL, &[Is(0), Is(4), Is(7), Is(8), Is(99)], OUT], "")
        }
        "cuMemPoolSetAccess" => (vec![POOL, &[Text(&[1, 3]), Text(&[1 | 99 << 32, 3]), Is(0)], COUNT], ""),
        "cuCtxSetLimit" => (vec![&[Is(0), Is(2), Is(99)], SIZE], ""),
        "cuDeviceTotalMem" | "cuDeviceTotalMem_v2" => (vec![OUT, DEVICE], ""),
        "cuMemGetInfo" | "cuMemGetInfo_v2" => (vec![OUT, OUT], ""),
        "cuPointerGetAttribute" => (vec![OUT, COUNT, HANDLE], ""),
        "cuPointerGetAttributes" => (vec![COUNT, &[Text(&[2 | 8 << 32]), Is(0)], &[Outs, Is(0)], HANDLE], ""),
        "cuDeviceGraphMemTrim" | "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxRelease_v2" => (vec![DEVICE], ""),
        "cuDevicePrimaryCtxReset" | "cuDevicePrimaryCtxReset_v2" => (vec![DEVICE], ""),
        "cuCtxSynchronize" => (vec![NOWHERE], ""),
        "cuStreamSynchronize" => (vec![STREAM], ""),
        "cuGraphAddMemAllocNode" => (vec![OUT, GRAPH, NOWHERE, COUNT, NODE], "cuGraphDestroyNode"),
        "cuGraphAddNode" if symbol == stem => (vec![OUT, GRAPH, NOWHERE, COUNT, ANY_NODE], "cuGraphDestroyNode"),
        "cuGraphAddNode_v2" | "cuGraphAddNode_v3" => {
            (vec![OUT, GRAPH, NOWHERE, NOWHERE, COUNT, ANY_NODE], "cuGraphDestroyNode")
        }
        "cuGraphInstantiate" | "cuGraphInstantiate_v2" => {
            (vec![OUT, GRAPH, NOWHERE, NOWHERE, NOWHERE], "cuGraphExecDestroy")
        }
        "cuGraphInstantiateWithFlags" => (vec![OUT, GRAPH, FLAGS], "cuGraphExecDestroy"),
        "cuGraphInstantiateWithParams" => (vec![OUT, GRAPH, &[Text(&[]), Is(0)]], "cuGraphExecDestroy"),
        "cuGraphLaunch" | "cuGraphUpload" => (vec![HANDLE, STREAM], ""),
        "cuGetProcAddress" => (vec![NAME, OUT, &[Is(12_000), Is(0), Is(0xffff_ffff)], FLAGS], ""),
        "cuGetProcAddress_v2" => (vec![NAME, OUT, &[Is(12_000), Is(0), Is(0xffff_ffff)], FLAGS, OUT], ""),
        // Frees, waits and destroys take a handle of some kind.
        _ => (vec![HANDLE], ""),
    }
}

/// Arguments that exist in the current state.
struct Stand {
    context: u64,
    stream: u64,
    pool: u64,
    graph: u64,
    live: u64,
}

pub(crate) fn client(symbol: &str) {
    let mut stand = Stand { context: 0, stream: 12_345, pool: 12_345, graph: 12_345, live: 0x7000_0000 };
    sweep(symbol, "before cuInit", &mut stand);
    assert_eq!(call("cuInit", &[0]), 0);
    sweep(symbol, "without a context", &mut stand);
    stand.begin();
    sweep(symbol, "in a context", &mut stand);
    stand.end();
    let context = stand.begin();
    thread::spawn(move || assert_eq!(call("cuCtxDestroy_v2", &[context]), 0)).join().unwrap();
    sweep(symbol, "in a destroyed context", &mut stand);
    call("cuGraphDestroy", &[stand.graph]);
    call("cuMemPoolDestroy", &[stand.pool]);
    say("done");
    wait();
}

impl Stand {
    fn begin(&mut self) -> u64 {
        assert_eq!(call("cuCtxCreate_v2", &[at(&mut self.context), 0, 0]), 0);
        assert_eq!(call("cuStreamCreate", &[at(&mut self.stream), 0]), 0);
        assert_eq!(call("cuMemPoolCreate", &[at(&mut self.pool), at(&mut [1_u64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])]), 0);
        assert_eq!(call("cuGraphCreate", &[at(&mut self.graph), 0]), 0);
        self.context
    }

    fn end(&mut self) {
        for (name, handle) in [("cuGraphDestroy", self.graph), ("cuMemPoolDestroy", self.pool)] {
            call(name, &[handle]);
        }
        call("cuCtxDestroy_v2", &[self.context]);
    }
}

/// Calls an entry with all combinations of its values.
fn sweep(symbol: &str, state: &str, stand: &mut Stand) {
    let (values, undo) = arguments(symbol);
    let combinations: usize = values.iter().map(|values| values.len()).product();
    // All zeros first, whatever the arguments mean.
    let nothing = call(symbol, &[0; 14]);
    say(&format!("{symbol} {state}: nothing: {nothing}"));
    for number in 0..combinations {
        let mut rest = number;
        let chosen: Vec<Value> = values
            .iter()
            .map(|values| {
                let value = values[rest % values.len()];
                rest /= values.len();
                value
            })
            .collect();
        let name = format!("{symbol} {state}: {chosen:?}");
        try_one(symbol, &name, &chosen, undo, stand);
    }
}

fn try_one(symbol: &str, name: &str, chosen: &[Value], undo: &str, stand: &mut Stand) {
    #[repr(align(4096))]
    struct Page([u64; 1024]);
    let (mut outs, mut texts, mut pages) = ([[0_u64; 8]; 8], [[0_u64; 64]; 8], Page([0; 1024]));
    let needs_memory = chosen.iter().any(|value| matches!(value, Live | Inside));
    let is_live = needs_memory && call("cuMemAlloc_v2", &[at(&mut stand.live), 8192]) == 0;
    let mut numbers = [0; 14];
    for (place, value) in chosen.iter().enumerate() {
        numbers[place] = match value {
            Is(number) => *number,
            Out => at(&mut outs[place]),
            Live => stand.live,
            Inside => stand.live + 100,
            Pages => at(&mut pages.0),
            Stream => stand.stream,
            Pool => stand.pool,
            Graph => stand.graph,
            Text(words) => {
                texts[place][..words.len()].copy_from_slice(words);
                at(&mut texts[place])
            }
            Ones => {
                texts[place] = [u64::MAX; 64];
                at(&mut texts[place])
            }
            Outs => {
                let [first, second] = [6, 7].map(|number| at(&mut outs[number]));
                texts[place][..2].copy_from_slice(&[first, second]);
                at(&mut texts[place])
            }
            Name(name) => u64::try_from(name.as_ptr().expose_provenance()).unwrap(),
        };
    }
    let result = call(symbol, &numbers);
    say(&format!("{name}: {result}"));
    if result == 0 && !undo.is_empty() {
        let made = if matches!(chosen.first(), Some(Out)) { outs[0][0] } else { numbers[0] };
        call(undo, &[made]);
        call("cuCtxSynchronize", &[]);
    }
    if is_live {
        call("cuMemFree_v2", &[stand.live]);
    }
}
