//! `[python]` of a manifest: use and size of a zygote, and where hashes are required.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use omni_config::{ByteSize, Manifest, Problem};

#[test]
fn use_and_size_of_a_zygote() {
    let table = [
        ("", None),
        ("[python]\nzygote = true", Some((64 << 20) + (512 << 10))),
        ("[python]\nzygote = true\n[resources]\nmemory = \"48MiB\"", Some(48 << 20)),
        ("[python]\npreload = [\"numpy\"]", Some(2 << 30)),
        ("[python]\npreload = [\"numpy\", \"safetensors.numpy\"]\nzygote = \"auto\"", Some(2 << 30)),
        ("[python]\npreload = [\"numpy\"]\nzygote = false", None),
        ("[resources]\ngpu-memory = \"1GiB\"", None),
        ("[scaling]\nmax-instances = 2", Some(65 << 20)),
    ];
    for (text, expected) in table {
        assert_eq!(Manifest::parse(text).unwrap().zygote_memory().map(ByteSize::bytes), expected, "{text}");
    }
    for key in ["zygote = true", "preload = [\"numpy\"]"] {
        let error = Manifest::parse(&format!("[resources]\ngpu-memory = \"1GiB\"\n[python]\n{key}")).unwrap_err();
        assert!(matches!(error.0.listed(), [Problem::Refused { line: 4, .. }]), "{error}");
    }
    for key in ["zygote = \"yes\"", "zygote = 1", "preload = [\"a-b\"]", "preload = [\"\"]", "preload = \"numpy\""] {
        let error = Manifest::parse(&format!("[python]\n{key}")).unwrap_err();
        assert!(matches!(error.0.listed(), [Problem::Value { line: 2, .. }]), "{error}");
    }
}

#[test]
fn hashes_are_required_of_what_is_installed() {
    let asks = |text: &str| Manifest::parse(text).unwrap().python.require_hashes;
    assert!(asks("[python]\nrequire-hashes = true") && !asks("[python]\nrequire-hashes = false") && !asks(""));
    // Required hashes mean nothing where nothing is installed.
    let error = Manifest::parse("[runtime]\ninterpreter = \"/opt/x/bin/python\"\n[python]\nrequire-hashes = true");
    assert!(matches!(error.unwrap_err().0.listed(), [Problem::Refused { line: 4, .. }]));
}
