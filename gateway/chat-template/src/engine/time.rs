//! `strftime_now`: the time of a render in the formats of C.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Date and time in UTC.
struct Moment {
    year: i64,
    month: u32,
    day: u32,
    /// Days since the first of January.
    of_year: u32,
    /// 0 is Sunday.
    of_week: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

/// The function for a template, at a time in seconds since 1970.
pub(crate) fn strftime_now(now: i64) -> Value {
    Value::from_function(move |format: &str| strftime(now, format))
}

/// Renders a time in UTC.
pub(crate) fn strftime(now: i64, format: &str) -> Result<String, Error> {
    let moment = Moment::at(now);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (unpadded, directive) = match rest.next() {
            Some('-') => (true, rest.next()),
            other => (false, other),
        };
        let Some(directive) = directive else {
            out.push('%');
            break;
        };
        moment.write(&mut out, directive, unpadded)?;
    }
    Ok(out)
}

impl Moment {
    fn at(now: i64) -> Self {
        let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
        // Civil date from days, in eras of 400 years that begin on the first of March.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * of_march + 2) / 153;
        let day = of_march - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let months = usize::try_from(month - 1).ok().and_then(|at| before.get(at)).copied().unwrap_or(0);
        let of_year = months + day - 1 + i64::from(leap && month > 2);
        let small = |value: i64| u32::try_from(value).unwrap_or(0);
        Self {
            year,
            month: small(month),
            day: small(day),
            of_year: small(of_year),
            of_week: small((days + 4).rem_euclid(7)),
            hour: small(seconds / 3_600),
            minute: small(seconds / 60 % 60),
            second: small(seconds % 60),
        }
    }

    fn write(&self, out: &mut String, directive: char, unpadded: bool) -> Result<(), Error> {
        let name = |names: &[&'static str], at: u32| {
            usize::try_from(at).ok().and_then(|at| names.get(at)).copied().unwrap_or("")
        };
        let twelve = (self.hour + 11) % 12 + 1;
        let (number, width) = match directive {
            'd' => (self.day, 2),
            'm' => (self.month, 2),
            'H' => (self.hour, 2),
            'I' => (twelve, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'j' => (self.of_year + 1, 3),
            'y' => (u32::try_from(self.year.rem_euclid(100)).unwrap_or(0), 2),
            'w' => (self.of_week, 1),
            'u' => (if self.of_week == 0 { 7 } else { self.of_week }, 1),
            _ => return self.write_text(out, directive, name),
        };
        let width = if unpadded { 1 } else { width };
        let _ = write!(out, "{number:0width$}");
        Ok(())
    }

    fn write_text(
        &self,
        out: &mut String,
        directive: char,
        name: impl Fn(&[&'static str], u32) -> &'static str,
    ) -> Result<(), Error> {
        let short = |name: &'static str| name.get(..3).unwrap_or(name);
        let _ = match directive {
            'Y' => write!(out, "{:04}", self.year),
            'B' => write!(out, "{}", name(&MONTHS, self.month.saturating_sub(1))),
            'b' | 'h' => write!(out, "{}", short(name(&MONTHS, self.month.saturating_sub(1)))),
            'A' => write!(out, "{}", name(&DAYS, self.of_week)),
            'a' => write!(out, "{}", short(name(&DAYS, self.of_week))),
            'p' => write!(out, "{}", if self.hour < 12 { "AM" } else { "PM" }),
            'e' => write!(out, "{:2}", self.day),
            'F' => write!(out, "{:04}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'D' => write!(out, "{:02}/{:02}/{:02}", self.month, self.day, self.year.rem_euclid(100)),
            'R' => write!(out, "{:02}:{:02}", self.hour, self.minute),
            'f' => write!(out, "000000"),
            // As of Python's times without a zone.
            'Z' | 'z' => Ok(()),
            '%' => write!(out, "%"),
            other => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know %{other}")));
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rendered() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %a %j", "1970-01-01 00:00:00 Thu 001"),
            (1_732_579_200, "%d %b %Y", "26 Nov 2024"),
            (1_709_208_000, "%B %-d, %Y (%A) day %j", "February 29, 2024 (Thursday) day 060"),
            (1_735_689_599, "%F %T %I %p %y%%", "2024-12-31 23:59:59 11 PM 24%"),
            (951_782_400, "%e/%-m", "29/2"),
            (-1, "%Y", "1969"),
        ];
        for (now, format, expected) in cases {
            assert_eq!(strftime(now, format).unwrap(), expected, "{format}");
        }
        assert!(strftime(0, "%Q").is_err());
        assert_eq!(strftime(0, "a%").unwrap(), "a%");
    }
}
