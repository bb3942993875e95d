//! Parameters that are accepted because they change nothing here, with the values for which that is so.

use omni_codec::Object;
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::Deserialize;

/// Longest `metadata`, in bytes: the API has 16 pairs of 64 and 512 characters.
const LONGEST_METADATA: usize = 64 * 1024;

/// Parameters of a request that change nothing if they have certain values.
#[derive(Debug, Default)]
pub(crate) struct Harmless<'a> {
    pub(crate) metadata: Option<&'a Object>,
    pub(crate) modalities: Option<&'a [String]>,
    pub(crate) prompt_cache_retention: Option<&'a str>,
    pub(crate) service_tier: Option<&'a str>,
    pub(crate) store: Option<bool>,
    pub(crate) verbosity: Option<&'a str>,
}

impl Harmless<'_> {
    /// Checks that no value demands what the node does not do.
    pub(crate) fn check(&self) -> Result<(), InvalidRequest> {
        let is = |value: Option<&str>, allowed: &[&str]| value.is_none_or(|value| allowed.contains(&value));
        let text_alone = |modalities: &[String]| modalities.iter().all(|modality| modality == "text");
        let demands = [
            (
                self.metadata.is_none_or(|metadata| metadata.get().len() <= LONGEST_METADATA),
                "metadata",
                "it is larger than 64 KiB",
            ),
            (self.modalities.is_none_or(text_alone), "modalities", "models answer with `text` alone"),
            (
                is(self.prompt_cache_retention, &["in_memory", "in-memory"]),
                "prompt_cache_retention",
                "only `in_memory` is supported",
            ),
            (is(self.service_tier, &["auto", "default"]), "service_tier", "only `auto` and `default` are supported"),
            (self.store != Some(true), "store", "answers are not stored: send `false`"),
            (is(self.verbosity, &["medium"]), "verbosity", "only `medium` is supported: ask for length in a message"),
        ];
        match demands.into_iter().find(|(is_harmless, ..)| !is_harmless) {
            None => Ok(()),
            Some((_, parameter, reason)) => {
                Err(InvalidRequest::unsupported(parameter, format!("`{parameter}` has an unsupported value: {reason}")))
            }
        }
    }
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Usage in the last event.
    include_usage: Option<bool>,
    /// Accepted without effect: padding against guesses from the lengths of events is not added.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
    /// Accepted if `false`: usage is in the last event alone.
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Returns true if the stream ends with its usage.
    pub(crate) fn usage(options: Option<&Self>, stream: bool) -> Result<bool, InvalidRequest> {
        let Some(options) = options else { return Ok(false) };
        if !stream {
            return Err(InvalidRequest::new("stream_options", "`stream_options` needs `stream` to be `true`"));
        }
        if options.continuous_usage_stats == Some(true) {
            let message = "usage is sent once, at the end of the stream";
            return Err(InvalidRequest::unsupported("stream_options.continuous_usage_stats", message));
        }
        Ok(options.include_usage.unwrap_or(false))
    }
}
