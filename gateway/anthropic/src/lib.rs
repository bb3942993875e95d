//! Anthropic Messages API: requests, answers, server-sent events, errors.
#![forbid(unsafe_code)]
