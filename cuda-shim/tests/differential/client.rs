//! Scenarios of a client: the first word of `OMNI_TEST_CLIENT` names one, the rest are its arguments.

use crate::{sequences, surroundings, table};

pub(crate) fn run() {
    let scenario = std::env::var("OMNI_TEST_CLIENT").expect("started by a test of this program");
    let words: Vec<&str> = scenario.split_whitespace().collect();
    match *words.first().expect("a scenario") {
        "table" => table::client(words[1]),
        "sequence" => sequences::client(&words[1..], None),
        "tight" => sequences::client(&words[1..], Some(sequences::TIGHT)),
        "python" => surroundings::python(words[1]),
        "small-stack" => surroundings::small_stack(),
        "many-threads" => surroundings::many_threads(),
        "hold" => surroundings::hold(),
        unknown => panic!("{unknown} is no scenario"),
    }
    std::process::exit(0); // without what the test program would say
}
