//! Settings from environment variables: limit and mode of a process outside a sandbox.
//!
//! A limit that is no number counts as 0 bytes: a limit that cannot be read must not be treated as absent.

use omni_gpu_protocol::account::{Mode, Settings};
use omni_gpu_protocol::env;
use std::ffi::OsStr;

/// Reads limit and mode.
pub(super) fn settings() -> Settings {
    parse(std::env::var_os(env::LIMIT_BYTES).as_deref(), std::env::var_os(env::MODE).as_deref())
}

fn parse(limit: Option<&OsStr>, mode: Option<&OsStr>) -> Settings {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mode = if mode.is_some_and(|mode| mode == "unified") { Mode::Unified } else { Mode::Device };
    Settings { limit: limit.map(number), mode }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_limit_is_0_bytes_and_an_absent_one_is_no_limit() {
        let limit = |text: Option<&str>| parse(text.map(OsStr::new), None).limit;
        assert_eq!(limit(None), None);
        assert_eq!(limit(Some("1073741824")), Some(1 << 30));
        for bad in ["", "1 GiB", "-1", "18446744073709551616"] {
            assert_eq!(limit(Some(bad)), Some(0), "{bad:?}");
        }
    }

    #[test]
    fn device_is_the_default_mode() {
        let mode = |text: Option<&str>| parse(None, text.map(OsStr::new)).mode;
        assert_eq!([mode(None), mode(Some("device")), mode(Some("managed"))], [Mode::Device; 3]);
        assert_eq!(mode(Some("unified")), Mode::Unified);
    }
}
