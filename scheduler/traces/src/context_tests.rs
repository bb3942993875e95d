//! Cases of the W3C's own test suite (w3c/trace-context, `test/test.py`), and properties of what comes from outside.

use super::*;
use proptest::prelude::*;

const TRACE: &str = "12345678901234567890123456789012";
const SPAN: &str = "1234567890123456";

fn context(parents: &[&str], states: &[&str]) -> Option<TraceContext> {
    let bytes = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let (parents, states) = (bytes(parents), bytes(states));
    TraceContext::of_headers(parents.iter().map(Vec::as_slice), states.iter().map(Vec::as_slice))
}

/// The `tracestate` that goes on, beside a valid `traceparent`.
fn state(states: &[&str]) -> Option<String> {
    context(&[&format!("00-{TRACE}-{SPAN}-00")], states).unwrap().tracestate().map(str::to_owned)
}

#[test]
fn a_traceparent_is_passed_on_or_left_out() {
    let with = |version: &str, rest: &str| format!("{version}-{TRACE}-{SPAN}-{rest}");
    let zero_trace = format!("00-{}-{SPAN}-01", "0".repeat(32));
    let zero_span = format!("00-{TRACE}-{}-01", "0".repeat(16));
    let upper = format!("00-{}-{SPAN}-01", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB");
    let upper_span = format!("00-{TRACE}-ABCDEFABCDEFABCD-01");
    for (given, passed_on) in [
        (with("00", "00"), Some(with("00", "00"))),
        (with("00", "01"), Some(with("00", "01"))),
        (with("00", "03"), Some(with("00", "03"))), // random, of level 2
        (with("00", "ff"), Some(with("00", "03"))), // unknown flags are zero
        // Later versions: what is known of them.
        (with("cc", "01"), Some(with("00", "01"))),
        (with("cc", "02"), Some(with("00", "00"))),
        (with("cc", "01-what-the-future-will-be-like"), Some(with("00", "01"))),
        (with("cc", "01."), None),
        (with("cc", "01what"), None),
        (with("01", "01"), Some(with("00", "01"))),
        // Forbidden version, and versions that are none.
        (with("ff", "01"), None),
        (with(".0", "01"), None),
        (with("0.", "01"), None),
        (with("0", "01"), None),
        (with("000", "01"), None),
        (with("CC", "01"), None),
        // Longer than version 00 is.
        (with("00", "01-what-the-future-will-be-like"), None),
        (with("00", "01-"), None),
        (with("00", "01."), None),
        // Flags.
        (with("00", ".0"), None),
        (with("00", "0."), None),
        (with("00", "0"), None),
        (with("00", "0A"), None),
        (with("00", "001"), None),
        // Ids.
        (zero_trace, None),
        (zero_span, None),
        (upper, None),
        (upper_span, None),
        (format!("00-{}-{SPAN}-01", &TRACE[1..]), None),
        (format!("00-{TRACE}0-{SPAN}-01"), None),
        (format!("00-.{}-{SPAN}-01", &TRACE[1..]), None),
        (format!("00-{TRACE}-{}-01", &SPAN[1..]), None),
        (format!("00-{TRACE}-{SPAN}0-01"), None),
        (format!("00-{TRACE}-.{}-01", &SPAN[1..]), None),
        (format!("00-{TRACE}-{SPAN}"), None),
        (format!("00_{TRACE}_{SPAN}_01"), None),
        (format!("00-+{}-{SPAN}-01", &TRACE[1..]), None),
        (String::new(), None),
        ("-".repeat(55), None),
        ("é".repeat(40), None),
    ] {
        let found = context(&[&given], &[]);
        assert_eq!(found.as_ref().map(TraceContext::traceparent), passed_on, "{given}");
        assert_eq!(found.is_some_and(|found| found.is_sampled()), passed_on.is_some_and(|p| p.ends_with(['1', '3'])));
    }
}

#[test]
fn two_traceparents_are_none() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    assert_eq!(context(&[&parent, &parent], &["foo=1"]), None);
    assert_eq!(context(&[], &["foo=1"]), None);
}

#[test]
fn a_tracestate_is_passed_on_whole_or_left_out() {
    let key = |length: usize| "z".repeat(length) + "=1";
    let tenant = |tenant: usize, system: usize| format!("{}@{}=1", "t".repeat(tenant), "v".repeat(system));
    let members = |count: usize| (0..count).map(|at| format!("bar{at:02}={at:02}")).collect::<Vec<_>>().join(",");
    for (given, passed_on) in [
        (vec!["foo=1"], Some("foo=1")),
        (vec!["foo=1,bar=2"], Some("foo=1,bar=2")),
        (vec!["foo=1", "bar=2", "rojo=1,congo=2"], Some("foo=1,bar=2,rojo=1,congo=2")),
        (vec!["foo=1 \t , \t bar=2, \t baz=3"], Some("foo=1,bar=2,baz=3")),
        (vec!["foo=1,", ",,bar=2"], Some("foo=1,bar=2")),
        (vec!["", " "], None),
        (vec!["foo=1 2"], Some("foo=1 2")),
        (vec!["a0_-*/=1"], Some("a0_-*/=1")),
        (vec!["0tenant@system=1"], Some("0tenant@system=1")),
        // Keys that are none.
        (vec!["foo =1"], None),
        (vec!["FOO=1"], None),
        (vec!["foo.bar=1"], None),
        (vec!["0foo=1"], None),
        (vec!["foo@=1,bar=2"], None),
        (vec!["@foo=1,bar=2"], None),
        (vec!["foo@@bar=1,bar=2"], None),
        (vec!["foo@bar@baz=1,bar=2"], None),
        (vec!["foo@0bar=1"], None),
        (vec!["foo,bar=3"], None),
        // Values that are none.
        (vec!["foo="], None),
        (vec!["foo=bar=baz"], None),
        (vec!["foo=,bar=3"], None),
        (vec!["foo=\u{e9}"], None),
        (vec!["foo=\u{7f}"], None),
        // Twice the same key.
        (vec!["foo=1,foo=1"], None),
        (vec!["foo=1", "foo=2"], None),
    ] {
        assert_eq!(state(&given).as_deref(), passed_on, "{given:?}");
    }
    for (valid, given) in [
        (true, tenant(241, 14)),
        (false, tenant(242, 14)),
        (false, tenant(241, 15)),
        (true, key(256)),
        (false, key(257)),
        (true, members(32)),
        (false, members(33)),
        (true, format!("foo={}", "1".repeat(256))),
        (false, format!("foo={}", "1".repeat(257))),
    ] {
        assert_eq!(state(&[&given]).is_some(), valid, "{given}");
    }
}

#[test]
fn a_long_tracestate_loses_long_members_first_and_then_the_oldest() {
    let (long, short) = (format!("long={}", "1".repeat(200)), format!("short={}", "2".repeat(100)));
    let given = format!("a=1,{long},b={long_value},{short},c=3", long_value = "3".repeat(220));
    assert_eq!(state(&[&given]), Some(format!("a=1,{short},c=3")));
    let many: Vec<String> = (0..10).map(|at| format!("m{at}={}", "4".repeat(97))).collect();
    assert_eq!(state(&[&many.join(",")]), Some(many[..5].join(",")));
}

proptest! {
    #[test]
    fn whatever_comes_is_valid_when_it_goes_on(
        parent in prop_oneof![any::<Vec<u8>>(), "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-x)?".prop_map(String::into_bytes)],
        states in prop::collection::vec(prop_oneof![any::<Vec<u8>>(), "([a-z@]{1,3}=[ -~]{0,9},){0,9}".prop_map(String::into_bytes)], 0..4),
    ) {
        if let Some(found) = TraceContext::of_headers([parent.as_slice()], states.iter().map(Vec::as_slice)) {
            prop_assert_eq!(found.traceparent().len(), LENGTH);
            let (parent, state) = (found.traceparent(), found.tracestate().map(str::to_owned));
            let again = context(&[&parent], &state.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(again, Some(found));
        }
    }
}
