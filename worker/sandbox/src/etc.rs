//! The files of `/etc` that a model sees: written for it, never the host's own users and hosts. Pure.

use crate::spec::SandboxSpec;

/// Name of the instance's user and group inside. It has no password and owns nothing outside.
pub const USER: &str = "model";

/// Content of the host's files that a sandbox in the host's network needs.
#[derive(Debug, Default)]
pub(super) struct HostNetwork {
    pub(super) hosts: String,
    pub(super) resolv_conf: String,
}

/// Name below `/etc` and content of each file. `host` is there when the sandbox stays in the host's network.
pub(super) fn files(spec: &SandboxSpec, host: Option<HostNetwork>) -> Vec<(&'static str, String)> {
    let SandboxSpec { uid, gid, hostname, .. } = spec;
    let home = home(spec);
    let own_hosts = || format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{hostname}\n");
    let mut files = vec![
        (
            "passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{uid}:{gid}:{USER}:{home}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("group", format!("root:x:0:\n{USER}:x:{gid}:\nnogroup:x:65534:\n")),
        ("hostname", format!("{hostname}\n")),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".into()),
    ];
    match host {
        None => files.push(("hosts", own_hosts())),
        Some(HostNetwork { hosts, resolv_conf }) => {
            files.push(("hosts", hosts));
            files.push(("resolv.conf", resolv_conf));
        }
    }
    files
}

/// The home directory: what `HOME` says, else `/tmp`.
pub(super) fn home(spec: &SandboxSpec) -> &str {
    spec.env.iter().find(|(name, _)| name == "HOME").map_or("/tmp", |(_, home)| home)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(env: &[(&str, &str)]) -> SandboxSpec {
        SandboxSpec {
            hostname: "cowsay".into(),
            uid: 200_001,
            gid: 200_002,
            binds: vec![],
            devices: vec![],
            cache: None,
            weights: None,
            tmp_bytes: 0,
            host_network: false,
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            argv: vec![],
            cwd: "/".into(),
        }
    }

    fn content(files: &[(&str, String)], name: &str) -> String {
        files.iter().find(|(n, _)| *n == name).map(|(_, c)| c.clone()).unwrap_or_default()
    }

    #[test]
    fn the_user_has_a_name_and_a_home() {
        let passwd = content(&files(&spec(&[("HOME", "/tmp/home")]), None), "passwd");
        assert!(passwd.contains("\nmodel:x:200001:200002:model:/tmp/home:/bin/sh\n"), "{passwd}");
        assert_eq!(home(&spec(&[])), "/tmp");
    }

    #[test]
    fn resolv_conf_is_there_only_with_the_hosts_network() {
        let own = files(&spec(&[]), None);
        assert!(own.iter().all(|(name, _)| *name != "resolv.conf"));
        assert!(content(&own, "hosts").contains("127.0.1.1\tcowsay"));
        let host = HostNetwork { hosts: "10.0.0.1 db\n".into(), resolv_conf: "nameserver 9.9.9.9\n".into() };
        let shared = files(&spec(&[]), Some(host));
        assert_eq!(content(&shared, "hosts"), "10.0.0.1 db\n");
        assert_eq!(content(&shared, "resolv.conf"), "nameserver 9.9.9.9\n");
    }
}
