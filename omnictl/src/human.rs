//! Numbers for people: ages, sizes, processor time, moments.
//!
//! Called by the commands for tables; JSON output keeps the numbers as they are. Invariant: short, the same width class
//! at every magnitude, and never more precise than useful.

use omni_config::Foreign;

/// Units of ages from the largest down, in seconds.
const AGES: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
/// Units of sizes above the byte.
const SIZES: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// An age in its largest whole unit, `"3m"`; `"<1s"` for less than a second and for what is not a time.
pub(crate) fn age(seconds: f64) -> String {
    // `as` saturates, and takes NaN to 0: whatever the daemon says, this is a number.
    let whole = seconds as u64;
    let unit = AGES.iter().find(|(_, length)| whole >= *length);
    unit.map_or_else(|| "<1s".to_owned(), |(name, length)| format!("{}{name}", whole / length))
}

/// A size in IEC units with three digits at most before the point, `"1.5GiB"`.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.0.
    while value >= 1023.95 && unit + 1 < SIZES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = SIZES[unit];
    if (value - value.round()).abs() < 0.05 { format!("{value:.0}{name}") } else { format!("{value:.1}{name}") }
}

/// Processor time: seconds with one decimal below a minute, then as `"4m10s"`, `"2h05m"`.
pub(crate) fn cpu_time(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    match seconds {
        0..60 => format!("{}.{}s", seconds, microseconds % 1_000_000 / 100_000),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600.. => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A moment in UTC as RFC 3339 with milliseconds: `2026-11-21T09:17:44.123Z`.
pub(crate) fn moment(unix_ms: u64) -> String {
    let (days, milliseconds) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (seconds, fraction) = (milliseconds / 1000, milliseconds % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Counts from 0000-03-01, so that the leap day is the last of its year and months follow one linear rule:
/// the five months from March (and again from August) have 153 days.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_EPOCH: u64 = 719_468;
    const DAYS_PER_ERA: u64 = 146_097;
    let day = days + DAYS_TO_EPOCH;
    let (era, in_era) = (day / DAYS_PER_ERA, day % DAYS_PER_ERA);
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day_of_month = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day_of_month)
}

/// Text from a model or a client on one line that is safe for a terminal: [`Foreign`], with line ends escaped too.
///
/// A log line is foreign text; printed unescaped it could rewrite the screen of its reader. Tabs stay.
pub(crate) fn printable(text: &str) -> String {
    Foreign(text).to_string().replace('\n', "\\n")
}

/// The most useful line of a text, cut to `width` characters with an ellipsis: the first, or with a Python traceback the
/// last, which has the exception.
pub(crate) fn gist(text: &str, width: usize) -> String {
    let text = text.trim();
    // A syntax error comes without the headline.
    let is_traceback = |line: &str| line.starts_with("Traceback ") || line.starts_with("  File \"");
    let mut lines = text.lines();
    let line = if text.lines().any(is_traceback) { lines.next_back() } else { lines.next() }.unwrap_or_default();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0.0, "<1s"),
            (0.99, "<1s"),
            (1.0, "1s"),
            (59.9, "59s"),
            (60.0, "1m"),
            (3599.0, "59m"),
            (3600.0, "1h"),
            (86_399.0, "23h"),
            (86_400.0, "1d"),
            (1e9, "11574d"),
            (-5.0, "<1s"),
            (f64::NAN, "<1s"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn sizes_are_iec() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (1024 * 1024 - 1, "1MiB"),
            (7 << 30, "7GiB"),
            ((7 << 30) + (700 << 20), "7.7GiB"),
            (u64::MAX, "16384PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn processor_time_grows_in_units() {
        for (microseconds, text) in [
            (0, "0.0s"),
            (1_250_000, "1.2s"),
            (59_999_999, "59.9s"),
            (60_000_000, "1m00s"),
            (250_000_000, "4m10s"),
            (7_500_000_000, "2h05m"),
        ] {
            assert_eq!(cpu_time(microseconds), text);
        }
    }

    #[test]
    fn moments_follow_the_calendar() {
        // From `date -u -d @SECONDS`.
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(moment(unix_ms), text);
        }
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\tb \u{1b}[2J\u{7}é\u{9b}"), "a\tb \\u{1b}[2J\\u{7}é\\u{9b}");
        assert_eq!(printable("dlrow \u{202e}olleh"), "dlrow \\u{202e}olleh");
        assert_eq!(printable("a\r\nb"), "a\\r\\nb");
    }

    #[test]
    fn the_most_useful_line_of_a_text_is_found() {
        for (text, width, line) in [
            ("  one\ntwo", 10, "one"),
            ("exactly ten", 11, "exactly ten"),
            ("a longer line", 9, "a longer…"),
            ("Traceback (most recent call last):\n  File \"model.py\"\nKeyError: 'x'\n", 20, "KeyError: 'x'"),
            (
                "import failed:\nTraceback (most recent call last):\n  File \"model.py\"\nKeyError: 'x'\n",
                20,
                "KeyError: 'x'",
            ),
            ("import failed:\n  File \"model.py\", line 1\n    (\nSyntaxError: x", 20, "SyntaxError: x"),
            ("", 5, ""),
        ] {
            assert_eq!(gist(text, width), line);
        }
    }
}
