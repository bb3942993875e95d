//! Version that a model is to serve: the directory's content, the target of a rollback, or, until either is proven, the
//! version that served last.
//!
//! | known | target | served meanwhile |
//! | --- | --- | --- |
//! | content that was ready before | the content | — |
//! | content that was never ready, first report | the content | the version that served last |
//! | content that a rollback was made from | the rollback's version | the version that served last, if it is another one |
//! | unreadable directory, first report | none | the version that served last |
//!
//! Invariant: nothing is served in place of a generation that serves and was ready.

/// Rollback in force while the directory has the content that it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin<'a> {
    /// Version to serve.
    pub to: &'a str,
    /// Content of the directory when it was rolled back.
    pub from: &'a str,
}

/// State of a model when its directory is reported.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Versions that were ready, the one that served last first.
    pub history: &'a [&'a str],
    /// Rollback whose version can still be served.
    pub pin: Option<Pin<'a>>,
    /// No content was reported since this scheduler started.
    pub is_first_report: bool,
    /// A generation serves that was ready.
    pub serving_was_ready: bool,
    /// The model's directory was removed and came back: it serves what it came with.
    pub came_back: bool,
}

/// Choice between directory, rollback and history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Version of the rollback to aim at; `None`: the directory's content.
    pub pinned: Option<&'a str>,
    /// The rollback is over.
    pub ends_pin: bool,
    /// Version to serve until the target is ready.
    pub fall_back: Option<&'a str>,
}

/// Chooses the version to aim at. `reported`: the directory's content; `None` if it could not be read.
#[must_use]
pub fn choose<'a>(reported: Option<&str>, known: &Known<'a>) -> Choice<'a> {
    let pinned = known.pin.filter(|pin| Some(pin.from) == reported).map(|pin| pin.to);
    let last = known.history.first().copied();
    // A rollback that was carried out served last; one that never became ready did not.
    let is_proven = match pinned {
        Some(pinned) => last == Some(pinned),
        None => reported.is_some_and(|reported| known.history.contains(&reported)),
    };
    let falls_back = known.is_first_report && !is_proven && !known.serving_was_ready && !known.came_back;
    Choice {
        pinned,
        // An unreadable directory says nothing of its content.
        ends_pin: pinned.is_none() && reported.is_some(),
        fall_back: last.filter(|_| falls_back),
    }
}

/// Version to fall back on when an instance of `adopted` is found before anything serves: the one that served last, unless
/// the instance is of that version.
#[must_use]
pub fn fall_back_at_adoption<'a>(adopted: &str, serves: bool, known: &Known<'a>) -> Option<&'a str> {
    let last = known.history.first().copied();
    last.filter(|last| !serves && *last != adopted && !known.came_back)
}

/// Reason to refuse a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollbackRefusal {
    /// No version in the history begins with these digits.
    UnknownVersion,
    /// No version but the serving one is in the history.
    NoEarlierVersion,
    /// Several versions begin with these digits.
    Ambiguous,
    /// The directory's content, which the rollback has to be bound to, is not known yet.
    DirectoryUnknown,
}

/// Version of a rollback: the one whose digest begins with `digits`, or the newest that does not serve.
///
/// # Errors
/// [`RollbackRefusal`].
pub fn rollback_target<'a>(
    history: &[&'a str],
    digits: Option<&str>,
    serving: Option<&str>,
    is_directory_known: bool,
) -> Result<&'a str, RollbackRefusal> {
    let matches = |version: &&&str| match digits {
        Some(digits) => version.starts_with(digits),
        None => Some(**version) != serving,
    };
    let mut found = history.iter().filter(matches);
    let Some(version) = found.next() else {
        return Err(match digits {
            Some(_) => RollbackRefusal::UnknownVersion,
            None => RollbackRefusal::NoEarlierVersion,
        });
    };
    if digits.is_some() && found.next().is_some() {
        return Err(RollbackRefusal::Ambiguous);
    }
    if is_directory_known { Ok(version) } else { Err(RollbackRefusal::DirectoryUnknown) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Known<'static> =
        Known { history: &[], pin: None, is_first_report: true, serving_was_ready: false, came_back: false };

    fn choice(pinned: Option<&'static str>, ends_pin: bool, fall_back: Option<&'static str>) -> Choice<'static> {
        Choice { pinned, ends_pin, fall_back }
    }

    #[test]
    fn the_directorys_content_is_chosen_and_the_last_version_serves_until_it_is_proven() {
        let known = |history: &'static [&'static str]| Known { history, ..NONE };
        for (reported, known, expected) in [
            (Some("a"), NONE, choice(None, true, None)),
            (Some("b"), known(&["a"]), choice(None, true, Some("a"))),
            (Some("a"), known(&["a"]), choice(None, true, None)),
            (Some("a"), known(&["b", "a"]), choice(None, true, None)),
            (None, known(&["a"]), choice(None, false, Some("a"))),
            (None, NONE, choice(None, false, None)),
            (Some("b"), Known { is_first_report: false, ..known(&["a"]) }, choice(None, true, None)),
            (Some("b"), Known { serving_was_ready: true, ..known(&["a"]) }, choice(None, true, None)),
            (Some("b"), Known { came_back: true, ..known(&["a"]) }, choice(None, true, None)),
        ] {
            assert_eq!(choose(reported, &known), expected, "{reported:?} {known:?}");
        }
    }

    #[test]
    fn a_rollback_holds_while_the_directory_has_the_content_it_was_made_from() {
        let pin = Some(Pin { to: "a", from: "b" });
        let known = |history: &'static [&'static str]| Known { history, pin, ..NONE };
        for (reported, known, expected) in [
            (Some("b"), known(&["a", "b"]), choice(Some("a"), false, None)),
            (Some("b"), known(&["b", "a"]), choice(Some("a"), false, Some("b"))),
            (Some("c"), known(&["a", "b"]), choice(None, true, Some("a"))),
            (None, known(&["a", "b"]), choice(None, false, Some("a"))),
        ] {
            assert_eq!(choose(reported, &known), expected, "{reported:?} {known:?}");
        }
    }

    #[test]
    fn an_adopted_instance_of_another_version_leaves_the_last_one_serving() {
        let known = Known { history: &["a", "b"], ..NONE };
        assert_eq!(fall_back_at_adoption("b", false, &known), Some("a"));
        assert_eq!(fall_back_at_adoption("a", false, &known), None);
        assert_eq!(fall_back_at_adoption("b", true, &known), None);
        assert_eq!(fall_back_at_adoption("b", false, &Known { came_back: true, ..known }), None);
        assert_eq!(fall_back_at_adoption("b", false, &NONE), None);
    }

    #[test]
    fn a_rollback_names_one_version() {
        let history = ["aa", "ab", "b"];
        let target = |digits, serving| rollback_target(&history, digits, serving, true);
        assert_eq!(target(None, Some("aa")), Ok("ab"));
        assert_eq!(target(None, None), Ok("aa"));
        assert_eq!(target(Some("b"), Some("aa")), Ok("b"));
        assert_eq!(target(Some("aa"), Some("aa")), Ok("aa"), "the serving version can be pinned");
        assert_eq!(target(Some("a"), None), Err(RollbackRefusal::Ambiguous));
        assert_eq!(target(Some("c"), None), Err(RollbackRefusal::UnknownVersion));
        assert_eq!(rollback_target(&["aa"], None, Some("aa"), true), Err(RollbackRefusal::NoEarlierVersion));
        assert_eq!(rollback_target(&history, None, None, false), Err(RollbackRefusal::DirectoryUnknown));
    }
}
