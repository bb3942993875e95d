//! Scenarios of a client: the first word of `OMNI_TEST_CLIENT` names one, the rest are its arguments.

use crate::{alike, answers, deaths, entries, graphs, imports, kinds, processes, races, settings, streams};

pub(crate) fn run() {
    let scenario = std::env::var("OMNI_TEST_CLIENT").expect("started by a test of this program");
    let words: Vec<&str> = scenario.split_whitespace().collect();
    match *words.first().expect("a scenario") {
        "entry" => entries::client(words[1], words[2].parse().unwrap(), &words[3..]),
        "offer" => imports::offer(words[1], words[2].parse().unwrap()),
        "symbols" => entries::symbols(),
        "kinds" => kinds::client(),
        "hold" => processes::hold(words[1].parse().unwrap()),
        "hold-twice" => processes::hold_twice(),
        "fork" => processes::fork(),
        "fork-after-init" => processes::fork_after_init(),
        "exec" => processes::exec(),
        "streams" => streams::client(),
        "free-later" => streams::free_later(),
        "full" => streams::full(),
        "keep" => streams::keep(),
        "pools-alike" => alike::pools(),
        "pointers-alike" => alike::pointers(),
        "outlives" => alike::outlives(),
        "elsewhere" => alike::elsewhere(),
        "again" => alike::again(),
        "take-6-and-4" => settings::take(),
        "heap" => settings::heap(),
        "small" => settings::small(),
        "without-context" => settings::without_context(),
        "capture" => graphs::capture(),
        "export" => imports::export(),
        "import" => imports::import(words[1], words[2]),
        "pool" => imports::pool(words[1], &words[2..]),
        "external" => imports::external(),
        "handles" => imports::handles(),
        "map" => imports::map(words[1], words[2], words[3]),
        "graph" => graphs::client(),
        "race" => races::client(),
        "churn" => deaths::client(words[1].parse().unwrap()),
        "answers" => answers::client(),
        "reports" => answers::reports(),
        unknown => panic!("{unknown} is no scenario"),
    }
    std::process::exit(0); // without what the test program would say
}

/// Initialises the driver and creates a context of device 0.
pub(crate) fn begin() -> u64 {
    let mut context = 0;
    assert_eq!(crate::calls::cuInit(0), 0);
    assert_eq!(crate::calls::cuCtxCreate_v2(&raw mut context, 0, 0), 0);
    context
}

/// Allocates device memory, or returns the driver's error.
pub(crate) fn allocate(bytes: u64) -> Result<u64, i32> {
    let mut address = 0;
    match crate::calls::cuMemAlloc_v2(&raw mut address, usize::try_from(bytes).unwrap()) {
        0 => Ok(address),
        error => Err(error),
    }
}

pub(crate) fn free(address: u64) {
    assert_eq!(crate::calls::cuMemFree_v2(address), 0);
}
