//! Metrics of an engine's own, from engines that have some: the payload of a `Metrics` frame.
//!
//! The latest ones replace all earlier ones of the engine. The node shows them among its own, below a prefix, with the
//! model and the instance as labels.

use serde::{Deserialize, Serialize};

/// Most series of an engine.
pub const MAX_SERIES: usize = 256;
/// Most labels of a series.
pub const MAX_LABELS: usize = 8;
/// Longest name of a metric or a label, and longest value of a label, in bytes.
pub const MAX_METRIC_TEXT: usize = 128;

/// A series and its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineMetric {
    /// Name: small letters, digits and underscores.
    pub name: String,
    /// Type of its family.
    pub kind: MetricKind,
    /// Labels, by names of the same characters. None of them is `model` or `instance`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
    /// Value; finite.
    pub value: f64,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// Only grows; its name is without `_total`.
    Counter,
    /// Goes up and down. A part of a histogram has this type, too, under its own name.
    Gauge,
}

/// Metrics that are not as they have to be.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMetrics {
    /// No list of series.
    #[error("malformed metrics: {0}")]
    Malformed(#[from] serde_json::Error),
    /// More of something than its bound.
    #[error("{what} of the metrics of an engine are over their bound of {bound}")]
    TooMany {
        /// The part that is over its bound.
        what: &'static str,
        /// The bound.
        bound: usize,
    },
    /// A name that cannot be that of a metric, or not of one of an engine.
    #[error("a metric of an engine has a name or a label with other characters, or one that is the node's")]
    Name,
}

/// Reads the payload of a frame, whose length the frame bounds.
///
/// # Errors
/// [`InvalidMetrics`].
///
/// ```
/// use omni_engine_protocol::metrics::{MetricKind, parse};
///
/// let found = parse(br#"[{"name":"vllm_requests","kind":"gauge","labels":[["engine","0"]],"value":2.0}]"#).unwrap();
/// assert_eq!((found[0].kind, found[0].value), (MetricKind::Gauge, 2.0));
/// ```
pub fn parse(payload: &[u8]) -> Result<Vec<EngineMetric>, InvalidMetrics> {
    let metrics: Vec<EngineMetric> = serde_json::from_slice(payload)?;
    let within = |what, count: usize, bound| {
        if count > bound { Err(InvalidMetrics::TooMany { what, bound }) } else { Ok(()) }
    };
    within("the series", metrics.len(), MAX_SERIES)?;
    for EngineMetric { name, labels, value, .. } in &metrics {
        within("the labels of a series", labels.len(), MAX_LABELS)?;
        for text in labels.iter().map(|(_, value)| value) {
            within("the bytes of a label", text.len(), MAX_METRIC_TEXT)?;
        }
        let mut names: Vec<&str> = labels.iter().map(|(name, _)| name.as_str()).collect();
        let of_node = names.iter().any(|name| matches!(*name, "model" | "instance"));
        names.sort_unstable();
        let twice = names.windows(2).any(|pair| pair.first() == pair.last());
        if of_node || twice || !value.is_finite() || !names.into_iter().chain([name.as_str()]).all(is_name) {
            return Err(InvalidMetrics::Name);
        }
    }
    Ok(metrics)
}

fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.len() <= MAX_METRIC_TEXT
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn metric(name: &str, labels: &[(&str, &str)]) -> EngineMetric {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        EngineMetric { name: name.to_owned(), kind: MetricKind::Counter, labels, value: 1.0 }
    }

    fn is_accepted(metrics: &[EngineMetric]) -> bool {
        parse(&serde_json::to_vec(metrics).unwrap()).is_ok()
    }

    #[test]
    fn metrics_beyond_their_bounds_and_names_are_refused() {
        assert!(is_accepted(&vec![metric("a", &[("le", "+Inf"), ("engine", "0")]); MAX_SERIES]));
        assert!(!is_accepted(&vec![metric("a", &[]); MAX_SERIES + 1]));
        assert!(!is_accepted(&[metric("a", &[("b", "c"); MAX_LABELS + 1])]));
        let long = "x".repeat(MAX_METRIC_TEXT + 1);
        for (name, labels) in [
            ("", &[][..]),
            ("vllm:requests", &[]),
            ("Requests", &[]),
            ("9lives", &[]),
            ("a\nb", &[]),
            (long.as_str(), &[]),
            ("a", &[("model", "x")]),
            ("a", &[("instance", "x")]),
            ("a", &[("le", "1"), ("le", "2")]),
            ("a", &[("le", long.as_str())]),
            ("a", &[("l\"e", "1")]),
        ] {
            assert!(!is_accepted(&[metric(name, labels)]), "{name:?} {labels:?}");
        }
        assert!(parse(br#"[{"name":"a","kind":"histogram","value":1}]"#).is_err());
        assert!(parse(br#"[{"name":"a","kind":"gauge","value":1e999}]"#).is_err());
    }

    proptest! {
        #[test]
        fn no_payload_breaks_the_reader(payload: Vec<u8>) {
            let _ = parse(&payload);
        }
    }
}
