//! The node's own uv: its path, and the environment variables it gets.

use crate::command;
use omni_config::node::Python;
use std::fs;
use std::path::{Path, PathBuf};

/// Variables of the launcher's own environment that a build gets, beside those that begin with `UV_`.
const PASSED_ON: [&str; 10] = [
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
];
/// Variables that begin with `UV_` and are passed on: where packages come from and how they are fetched.
const UV_PASSED_ON: [&str; 11] = [
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_HTTP_RETRIES",
    "UV_HTTP_TIMEOUT",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
];

/// The node's own uv: named, beside this program, or in PATH.
pub fn find(python: &Python, beside: Option<&Path>) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places = beside.map(Path::to_owned).into_iter().chain(std::env::split_paths(&search)).map(|dir| dir.join("uv"));
    let candidate = python.uv.clone().or_else(|| places.into_iter().find(|path| path.is_file()))?;
    fs::canonicalize(candidate).ok()
}

/// Version line of the program, "uv 0.13.8".
pub fn version(program: &Path) -> Option<String> {
    let mut ask = std::process::Command::new(program);
    ask.arg("--version").env_clear().current_dir("/");
    let finished = command::ask(ask, std::time::Duration::from_secs(10)).ok()?;
    finished.tail.lines().next().map(str::to_owned)
}

/// Environment variables for uv. The node's configuration wins over the launcher's own.
pub(super) fn settings(python: &Python, own: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let passed_on = |name: &str| PASSED_ON.contains(&name) || UV_PASSED_ON.contains(&name);
    let mut settings: Vec<(String, String)> = own.filter(|(name, _)| passed_on(name)).collect();
    settings.sort_unstable();
    let mut set = |names: &[&str], value: String| {
        if !value.is_empty() {
            settings.retain(|(name, _)| !names.contains(&name.as_str()));
            settings.push((names[0].to_owned(), value));
        }
    };
    set(&["UV_DEFAULT_INDEX", "UV_INDEX_URL"], python.index_url.clone().unwrap_or_default());
    set(&["UV_INDEX", "UV_EXTRA_INDEX_URL"], python.extra_index_url.join(" "));
    set(&["UV_FIND_LINKS"], python.find_links.join(","));
    settings.push(("UV_PYTHON_DOWNLOADS".to_owned(), "never".to_owned()));
    settings
}

/// Selects the settings that decide what is installed.
pub(super) fn index(settings: &[(String, String)]) -> Vec<String> {
    let decides = |name: &str| name.contains("INDEX") || name == "UV_FIND_LINKS";
    settings.iter().filter(|(name, _)| decides(name)).map(|(name, value)| format!("{name}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fetching_needs_is_passed_on_and_the_configuration_wins() {
        let own = [
            "HOME=/root",
            "AWS_SECRET_ACCESS_KEY=x",
            "UV_PUBLISH_TOKEN=x",
            "HTTPS_PROXY=p",
            "UV_INDEX_URL=own",
            "UV_HTTP_TIMEOUT=9",
        ];
        let own = || {
            own.iter().filter_map(|text| text.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let shown = |python: &Python| -> Vec<String> {
            settings(python, own()).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        let plain = Python::default();
        assert_eq!(
            shown(&plain),
            ["HTTPS_PROXY=p", "UV_HTTP_TIMEOUT=9", "UV_INDEX_URL=own", "UV_PYTHON_DOWNLOADS=never"]
        );
        assert_eq!(index(&settings(&plain, own())), ["UV_INDEX_URL=own"]);
        let configured = Python {
            index_url: Some("https://mirror".into()),
            extra_index_url: vec!["https://a".into(), "https://b".into()],
            find_links: vec!["/wheels".into()],
            ..Python::default()
        };
        assert_eq!(
            index(&settings(&configured, own())),
            ["UV_DEFAULT_INDEX=https://mirror", "UV_INDEX=https://a https://b", "UV_FIND_LINKS=/wheels"]
        );
    }
}
