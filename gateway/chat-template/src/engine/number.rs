//! Numbers as Python writes them.

use minijinja::value::Value;
use std::fmt::Write;

/// Float of a number that is no integer.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    let float = value.is_number() && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// Appends a float as Python's `repr` does: `1.0`, `1e+16`, `1e-05`, `inf`, `nan`.
pub(crate) fn write_float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("nan");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "inf" } else { "-inf" });
        return;
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let start = out.len();
    if (-4..16).contains(&exponent) {
        let _ = write!(out, "{value}");
        if !out.get(start..).is_some_and(|text| text.contains('.')) {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e100, "1e+100"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (value, expected) in cases {
            let mut text = String::new();
            write_float(&mut text, value);
            assert_eq!(text, expected);
        }
    }
}
