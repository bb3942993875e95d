//! Bounds of the parameters that all APIs of generated text have.

use crate::bounds::{count, length, positive, within};
use omni_generation::Sampling;
use omni_request_error::InvalidRequest;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// Most answers to one prompt.
pub const MOST_CHOICES: u32 = 16;
/// Most stop strings.
const MOST_STOPS: usize = 16;
/// Longest stop string, in bytes.
const LONGEST_STOP: usize = 1024;
/// Most tokens with a bias.
const MOST_BIASES: usize = 1024;
/// Longest name of a session, in bytes.
const LONGEST_SESSION: usize = 512;
/// Efforts of reasoning that templates know.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Checks sampling parameters. A `top_k` of 0 must be left out before.
///
/// # Errors
/// The first value out of its bounds.
pub fn check(sampling: &Sampling) -> Result<(), InvalidRequest> {
    within("max_tokens", sampling.max_tokens, 1..=u32::MAX)?;
    within("temperature", sampling.temperature, 0.0..=2.0)?;
    positive("top_p", sampling.top_p, 1.0)?;
    within("min_p", sampling.min_p, 0.0..=1.0)?;
    within("frequency_penalty", sampling.frequency_penalty, -2.0..=2.0)?;
    within("presence_penalty", sampling.presence_penalty, -2.0..=2.0)?;
    positive("repetition_penalty", sampling.repetition_penalty, 10.0)?;
    let most = sampling.max_tokens.unwrap_or(u32::MAX);
    if let Some(least) = sampling.min_tokens.filter(|least| *least > most) {
        let message = format!("`min_tokens` is {least}, more than `max_tokens`, which is {most}");
        return Err(InvalidRequest::new("min_tokens", message));
    }
    count("logit_bias", sampling.logit_bias.len(), 0..=MOST_BIASES)?;
    for (token, bias) in &sampling.logit_bias {
        within(&format!("logit_bias.{token}"), Some(*bias), -100.0..=100.0)?;
    }
    Ok(())
}

/// The number of most probable tokens that is sampled from; 0 and -1 stand for all of them.
///
/// # Errors
/// Another negative number.
pub fn top_k(value: Option<i64>) -> Result<Option<u32>, InvalidRequest> {
    match within("top_k", value, -1..=i64::from(u32::MAX))? {
        Some(top_k) if top_k > 0 => Ok(u32::try_from(top_k).ok()),
        _ => Ok(None),
    }
}

/// Checks stop strings.
///
/// # Errors
/// Too many, an empty one or one that is too long.
pub fn stop(parameter: &str, stop: Vec<String>) -> Result<Vec<String>, InvalidRequest> {
    count(parameter, stop.len(), 0..=MOST_STOPS)?;
    for text in &stop {
        length(parameter, text, LONGEST_STOP)?;
    }
    Ok(stop)
}

/// The session of a request: the first of these names that the client sent.
///
/// # Errors
/// A name that is too long.
pub fn session(names: [(&str, Option<String>); 2]) -> Result<Option<String>, InvalidRequest> {
    for (parameter, name) in names {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            length(parameter, &name, LONGEST_SESSION)?;
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The effort of reasoning.
///
/// # Errors
/// None that templates know.
pub fn effort(parameter: &str, effort: Option<String>) -> Result<Option<String>, InvalidRequest> {
    match effort {
        Some(effort) if !EFFORTS.contains(&effort.as_str()) => {
            let message = format!("`{parameter}` has to be one of `{}`", EFFORTS.join("`, `"));
            Err(InvalidRequest::new(parameter, message))
        }
        effort => Ok(effort),
    }
}

/// `logit_bias`: an object from token ids to numbers.
#[derive(Debug, Clone, Default)]
pub struct LogitBias(pub Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BiasVisitor)
    }
}

struct BiasVisitor;

impl<'de> Visitor<'de> for BiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object from token ids to numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
        let (mut biases, mut seen) = (Vec::new(), HashSet::new());
        while let Some(token) = map.next_key::<String>()? {
            let token = token_id(&token).ok_or_else(|| A::Error::custom("its keys have to be token ids"))?;
            if !seen.insert(token) {
                return Err(A::Error::custom(format_args!("token {token} appears twice")));
            }
            biases.push((token, map.next_value()?));
            if biases.len() > MOST_BIASES {
                return Err(A::Error::custom(format_args!("it has more than {MOST_BIASES} tokens")));
            }
        }
        Ok(LogitBias(biases))
    }
}

/// The id that a key is: a decimal number without a sign and without zeros in front.
fn token_id(key: &str) -> Option<u32> {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
    key.parse().ok().filter(|_| is_plain)
}

impl schemars::JsonSchema for LogitBias {
    fn schema_name() -> Cow<'static, str> {
        "LogitBias".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "maxProperties": MOST_BIASES,
            "propertyNames": { "pattern": "^(0|[1-9][0-9]{0,8})$" },
            "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_bounds_are_refused() {
        let parameter = |change: &dyn Fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            check(&sampling).err().and_then(|error| error.parameter)
        };
        assert_eq!(parameter(&|_| {}), None);
        assert_eq!(parameter(&|sampling| sampling.max_tokens = Some(0)).as_deref(), Some("max_tokens"));
        assert_eq!(parameter(&|sampling| sampling.temperature = Some(2.1)).as_deref(), Some("temperature"));
        assert_eq!(parameter(&|sampling| sampling.top_p = Some(0.0)).as_deref(), Some("top_p"));
        assert_eq!(parameter(&|sampling| sampling.min_p = Some(1.1)).as_deref(), Some("min_p"));
        assert_eq!(
            parameter(&|sampling| sampling.frequency_penalty = Some(-3.0)).as_deref(),
            Some("frequency_penalty")
        );
        assert_eq!(parameter(&|sampling| sampling.presence_penalty = Some(3.0)).as_deref(), Some("presence_penalty"));
        assert_eq!(
            parameter(&|sampling| sampling.repetition_penalty = Some(0.0)).as_deref(),
            Some("repetition_penalty")
        );
        assert_eq!(parameter(&|sampling| sampling.logit_bias = vec![(7, 101.0)]).as_deref(), Some("logit_bias.7"));
        let more_than_most = |sampling: &mut Sampling| (sampling.min_tokens, sampling.max_tokens) = (Some(3), Some(2));
        assert_eq!(parameter(&more_than_most).as_deref(), Some("min_tokens"));
    }

    #[test]
    fn all_tokens_are_sampled_from_without_a_top_k() {
        assert_eq!(top_k(None), Ok(None));
        assert_eq!(top_k(Some(0)), Ok(None));
        assert_eq!(top_k(Some(-1)), Ok(None));
        assert_eq!(top_k(Some(40)), Ok(Some(40)));
        assert!(top_k(Some(-2)).is_err());
    }

    #[test]
    fn biases_are_read_by_token() {
        assert_eq!(
            serde_json::from_str::<LogitBias>(r#"{"50256": -100, "7": 1.5}"#).unwrap().0,
            [(50256, -100.0), (7, 1.5)]
        );
        assert_eq!(serde_json::from_str::<LogitBias>(r#"{"0": 1, "4294967295": 2}"#).unwrap().0.len(), 2);
        for (bias, expected) in [
            (r#"{"the": 1}"#, "token ids"),
            (r#"{"": 1}"#, "token ids"),
            (r#"{"+1": 1}"#, "token ids"),
            (r#"{"01": 1}"#, "token ids"),
            (r#"{"00": 1}"#, "token ids"),
            (r#"{"4294967296": 1}"#, "token ids"),
            (r#"{"1": 5, "2": 7, "1": 5}"#, "token 1 appears twice"),
        ] {
            let error = serde_json::from_str::<LogitBias>(bias).unwrap_err().to_string();
            assert!(error.contains(expected), "{bias}: {error}");
        }
    }

    #[test]
    fn the_first_name_is_the_session() {
        let of = |key: &str, user: &str| session([("prompt_cache_key", Some(key.into())), ("user", Some(user.into()))]);
        assert_eq!(of("k", "u"), Ok(Some("k".into())));
        assert_eq!(of("", "u"), Ok(Some("u".into())));
        assert_eq!(of("", &"u".repeat(513)).unwrap_err().parameter.as_deref(), Some("user"));
    }
}
