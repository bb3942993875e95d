//! Host names of a listener, and refusal of cross-site requests.
//!
//! A browser on the node's machine reaches listeners on loopback. By DNS rebinding a page calls them under its own name and reads their
//! responses; without rebinding, a form or a simple `fetch` of any page still runs a model. Invariant of browsers: a page can choose
//! neither the `Host` nor the `Origin` header; a client that is no browser sends no `Origin`.

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, Uri, Version};
use omni_config::host::HostName;
use omni_request_error::Failure;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Header in which a browser states the relation of the page to the node.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Host names of one listener.
#[derive(Debug, Clone)]
pub struct HostNames {
    /// Only this machine reaches the listener.
    is_loopback: bool,
    /// Names of the configuration.
    listed: BTreeSet<HostName>,
    /// Every name is accepted.
    accepts_any: bool,
    /// A token is required, which no page of another site has.
    requires_token: bool,
}

impl HostNames {
    /// Names of a listener at this address. With TLS, a name that was made to lead here has no certificate.
    #[must_use]
    pub fn new(listener: IpAddr, listed: BTreeSet<HostName>, requires_token: bool, has_tls: bool) -> Self {
        let is_loopback = listener.to_canonical().is_loopback();
        let needs_known_name = is_loopback && !has_tls;
        let accepts_any = listed.iter().any(HostName::is_any) || (!needs_known_name && listed.is_empty());
        Self { is_loopback, listed, accepts_any, requires_token }
    }

    /// Checks `Host` and `Origin` of a request.
    ///
    /// # Errors
    /// No host or several, an unknown host, or a cross-site request.
    pub(crate) fn check(
        &self,
        method: &Method,
        uri: &Uri,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<(), Failure> {
        let Some(authority) = authority(uri, version, headers)? else { return Ok(()) };
        if !self.serves(authority.host()) {
            return Err(Failure::UnknownHost { host: authority.host().to_owned() });
        }
        if self.requires_token || method.is_safe() || is_own_site(headers, &authority) {
            return Ok(());
        }
        Err(Failure::OtherSite)
    }

    fn serves(&self, host: &str) -> bool {
        if self.accepts_any {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        // An address needs no DNS, so rebinding gains nothing there.
        if let Ok(address) = bare.parse::<IpAddr>() {
            return !self.is_loopback || address.to_canonical().is_loopback() || self.is_listed(host);
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_local = name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("localhost"));
        is_local || self.is_listed(name)
    }

    fn is_listed(&self, host: &str) -> bool {
        host.parse::<HostName>().is_ok_and(|host| self.listed.contains(&host))
    }
}

/// The only host of a request; `None` for HTTP/1.0 without a host, which no browser sends.
fn authority(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<Option<Authority>, Failure> {
    let mut hosts = headers.get_all(HOST).iter();
    let (first, further) = (hosts.next(), hosts.next());
    let host = first.map(|host| parsed(host).ok_or(Failure::NoHost)).transpose()?;
    let of_target = uri.authority().filter(|target| !target.as_str().contains('@'));
    let is_one = match version {
        _ if further.is_some() || (uri.authority().is_some() && of_target.is_none()) => false,
        Version::HTTP_09 | Version::HTTP_10 => true,
        Version::HTTP_11 => host.is_some(),
        _ => match (of_target, &host) {
            (Some(target), Some(host)) => target == host,
            (target, host) => target.is_some() || host.is_some(),
        },
    };
    if is_one { Ok(of_target.cloned().or(host)) } else { Err(Failure::NoHost) }
}

fn parsed(host: &HeaderValue) -> Option<Authority> {
    Authority::try_from(host.as_bytes()).ok().filter(|authority| !authority.as_str().contains('@'))
}

/// Returns true if the request comes from a page of the same site, or from no page at all.
fn is_own_site(headers: &HeaderMap, authority: &Authority) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return site == "same-origin" || site == "none";
    }
    // Browsers send `sec-fetch-site` to `https` and to loopback only.
    headers.get_all(ORIGIN).iter().all(|origin| {
        let host = origin.to_str().ok().and_then(|text| text.split_once("://")).map(|(_, host)| host);
        host.is_some_and(|host| host.eq_ignore_ascii_case(authority.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn names(listener: &str, listed: &[&str], requires_token: bool) -> HostNames {
        let listed = listed.iter().map(|name| name.parse().unwrap()).collect();
        HostNames::new(listener.parse().unwrap(), listed, requires_token, false)
    }

    fn checked(names: &HostNames, target: &str, version: Version, headers: &[(&str, &str)]) -> Result<(), Failure> {
        let mut request = Request::post(target).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        names.check(&parts.method, &parts.uri, parts.version, &parts.headers)
    }

    fn status_of(host: &str, names: &HostNames) -> u16 {
        match checked(names, "/", Version::HTTP_11, &[("host", host)]) {
            Ok(()) => 200,
            Err(Failure::NoHost) => 400,
            Err(Failure::UnknownHost { .. }) => 421,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_listener_serves_its_own_names() {
        let loopback = names("127.0.0.1", &["models.example", "10.0.0.7"], false);
        let beyond = names("0.0.0.0", &["models.example"], false);
        for (host, at_loopback, at_beyond) in [
            ("localhost:8080", 200, 200),
            ("LocalHost", 200, 200),
            ("a.localhost.", 200, 200),
            ("127.0.0.1:8080", 200, 200),
            ("127.8.9.1", 200, 200),
            ("[::1]:8080", 200, 200),
            ("[::ffff:127.0.0.1]", 200, 200),
            ("models.example:80", 200, 200),
            ("MODELS.example.", 200, 200),
            ("10.0.0.7", 200, 200),
            ("10.0.0.8", 421, 200),
            ("0.0.0.0", 421, 200),
            ("attacker.example:8080", 421, 421),
            ("models.example.attacker.example", 421, 421),
            ("localhost.attacker.example", 421, 421),
            ("notlocalhost", 421, 421),
            ("127.0.0.1.attacker.example", 421, 421),
            ("", 400, 400),
            ("a b", 400, 400),
            ("user@localhost", 400, 400),
            ("localhost, attacker.example", 400, 400),
        ] {
            assert_eq!((status_of(host, &loopback), status_of(host, &beyond)), (at_loopback, at_beyond), "{host}");
        }
        assert_eq!(status_of("any.example", &names("127.0.0.1", &["*"], false)), 200);
        assert_eq!(status_of("any.example", &names("10.0.0.1", &[], false)), 200, "no names are configured");
        let tls = |listed: &[&str]| {
            HostNames::new(
                [127, 0, 0, 1].into(),
                listed.iter().map(|name| name.parse().unwrap()).collect(),
                false,
                true,
            )
        };
        assert_eq!(status_of("any.example", &tls(&[])), 200, "the certificate vouches for the name");
        assert_eq!(status_of("any.example", &tls(&["models.example"])), 421);
        assert_eq!(status_of("any.example", &names("127.0.0.1", &[], true)), 421, "a token does not replace the name");
    }

    #[test]
    fn a_request_needs_exactly_one_host() {
        let names = names("127.0.0.1", &[], false);
        let one = ("host", "localhost");
        for (target, version, headers, is_served) in [
            ("/", Version::HTTP_11, &[one][..], true),
            ("/", Version::HTTP_11, &[], false),
            ("/", Version::HTTP_11, &[one, one], false),
            ("http://localhost/", Version::HTTP_11, &[("host", "elsewhere")], true),
            ("http://elsewhere/", Version::HTTP_11, &[one], false),
            ("http://a@localhost/", Version::HTTP_11, &[one], false),
            ("/", Version::HTTP_10, &[], true),
            ("/", Version::HTTP_10, &[("host", "elsewhere")], false),
            ("http://localhost/", Version::HTTP_2, &[], true),
            ("http://localhost/", Version::HTTP_2, &[one], true),
            ("http://localhost/", Version::HTTP_2, &[("host", "127.0.0.1")], false),
            ("http://elsewhere/", Version::HTTP_2, &[], false),
            ("/", Version::HTTP_2, &[one], true),
            ("/", Version::HTTP_2, &[], false),
        ] {
            assert_eq!(
                checked(&names, target, version, headers).is_ok(),
                is_served,
                "{target} {version:?} {headers:?}"
            );
        }
    }

    #[test]
    fn cross_site_requests_are_refused_unless_a_token_is_required() {
        let (open, closed) = (names("127.0.0.1", &[], false), names("127.0.0.1", &[], true));
        let own = "http://127.0.0.1:8080";
        for (headers, is_served) in [
            (&[][..], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-origin"), ("origin", own)], true),
            (&[("sec-fetch-site", "cross-site"), ("origin", own)], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("origin", own)], true),
            (&[("origin", "HTTP://127.0.0.1:8080")], true),
            (&[("origin", "http://127.0.0.1:3000")], false),
            (&[("origin", "http://attacker.example")], false),
            (&[("origin", "null")], false),
            (&[("origin", own), ("origin", "http://attacker.example")], false),
        ] {
            let headers: Vec<_> = [("host", "127.0.0.1:8080")].into_iter().chain(headers.iter().copied()).collect();
            let served = |names| checked(names, "/", Version::HTTP_11, &headers);
            assert_eq!(served(&open).is_ok(), is_served, "{headers:?}");
            assert!(served(&closed).is_ok());
        }
        let get =
            Request::get("/").header("host", "localhost").header("sec-fetch-site", "cross-site").body(()).unwrap();
        let (parts, ()) = get.into_parts();
        let checked = open.check(&parts.method, &parts.uri, parts.version, &parts.headers);
        assert_eq!(checked, Ok(()), "a link may lead there; its page cannot read the response");
    }
}
