//! Signatures of requests to S3 (Signature Version 4), for requests without a body.

use crate::url::{Url, escape};
use omni_weights::Digest;
use ring::hmac;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SHA-256 of nothing, the body of every request here.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Keys of a store.
#[derive(Clone)]
pub(crate) struct Signer {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    /// Token of temporary keys.
    pub(crate) session: Option<String>,
    pub(crate) region: String,
}

impl Signer {
    /// Reads the keys from the text of a credential: access key, secret key and perhaps a session token, a line each.
    pub(crate) fn parse(secret: &str, region: &str) -> Option<Self> {
        let mut lines = secret.lines().map(str::trim).filter(|line| !line.is_empty());
        let (access_key, secret_key, session) = (lines.next()?, lines.next()?, lines.next());
        let is_text = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_ok = is_text(access_key) && is_text(secret_key) && session.is_none_or(is_text) && lines.next().is_none();
        is_ok.then(|| Self {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            session: session.map(str::to_owned),
            region: region.to_owned(),
        })
    }

    /// Fields of a request for this URL, now.
    pub(crate) fn fields(&self, url: &Url) -> Vec<(&'static str, String)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.fields_at(url, now.as_secs())
    }

    fn fields_at(&self, url: &Url, unix: u64) -> Vec<(&'static str, String)> {
        let (day, time) = stamp(unix);
        let mut fields = vec![
            ("host", url.origin.authority()),
            ("x-amz-content-sha256", EMPTY.to_owned()),
            ("x-amz-date", time.clone()),
        ];
        fields.extend(self.session.clone().map(|session| ("x-amz-security-token", session)));
        let names = fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let mut request = String::from("GET\n");
        let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
        let _ = write!(request, "{path}\n{}\n", canonical_query(query)); // a String takes everything
        for (name, value) in &fields {
            let _ = writeln!(request, "{name}:{value}");
        }
        let _ = write!(request, "\n{names}\n{EMPTY}");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = Digest::of(Sha256::new_with_prefix(request));
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
        let mut key = format!("AWS4{}", self.secret_key).into_bytes();
        for part in [day.as_str(), &self.region, "s3", "aws4_request"] {
            key = mac(&key, part.as_bytes());
        }
        let signature = hex(&mac(&key, text.as_bytes()));
        let credential = format!("{}/{scope}", self.access_key);
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}");
        fields.retain(|(name, _)| *name != "host"); // every request has it
        fields.push(("authorization", authorization));
        fields
    }
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

/// Parameters in the order of their names, each with an equals sign. Ours are escaped already.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    let with_sign =
        |pair: &&str| if pair.contains('=') { (*pair).to_owned() } else { format!("{}=", escape(pair, false)) };
    pairs.iter().map(with_sign).collect::<Vec<_>>().join("&")
}

/// "20130524" and "20130524T000000Z", after the civil calendar.
fn stamp(unix: u64) -> (String, String) {
    let (days, second) = (unix / 86_400, unix % 86_400);
    // Days are counted from the first of March of the year 0, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let date = format!("{year:04}{month:02}{day:02}");
    let time = format!("{date}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60);
    (date, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of Amazon's examples.
    fn signer() -> Signer {
        let secret = "AKIAIOSFODNN7EXAMPLE\nwJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n";
        Signer::parse(secret, "us-east-1").unwrap()
    }

    #[test]
    fn the_examples_of_amazons_documentation() {
        // "Signature Calculations for the Authorization Header", 24 May 2013. Its first example signs a range too,
        // which is left unsigned here; lifecycle and list have no further field.
        let table = [
            ("?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ];
        for (query, signature) in table {
            let url = Url::parse(&format!("https://examplebucket.s3.amazonaws.com/{query}")).unwrap();
            let fields = signer().fields_at(&url, 1_369_353_600);
            let authorization = &fields.iter().find(|(name, _)| *name == "authorization").unwrap().1;
            assert!(authorization.ends_with(&format!("Signature={signature}")), "{query}: {authorization}");
            assert!(authorization.contains("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"));
        }
    }

    #[test]
    fn dates() {
        let table = [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_704_067_199, "20231231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ];
        for (unix, expected) in table {
            assert_eq!(stamp(unix).1, expected);
        }
    }

    #[test]
    fn credentials_have_two_or_three_lines() {
        assert!(Signer::parse("a\nb\nc\n", "r").unwrap().session.is_some());
        for bad in ["", "a", "a\nb\nc\nd", "a b\nc"] {
            assert!(Signer::parse(bad, "r").is_none(), "{bad}");
        }
    }
}
