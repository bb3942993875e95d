//! Chat templates of Hugging Face models: rendering within bounds, normalised conversations, lint.
#![forbid(unsafe_code)]
