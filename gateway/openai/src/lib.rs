//! OpenAI API: routes, requests, answers, server-sent events, errors.
#![forbid(unsafe_code)]
