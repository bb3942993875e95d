//! Parameters under the name that another API has for them, and parameters of another route: what to send instead.

/// Names for the same parameter. The first of a group that a body has is the one to use.
const SAME: &[&[&str]] = &[
    &["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict"],
    &["stop", "stop_sequences"],
    &["documents", "contexts", "texts", "passages"],
    &["input", "inputs", "prompt", "text", "texts"],
    &["top_n", "top_k"],
    &["top_logprobs", "logprobs"],
    &["repetition_penalty", "repeat_penalty"],
    &["seed", "random_seed"],
    &["n", "num_images"],
    &["steps", "num_steps", "num_inference_steps"],
    &["guidance", "guidance_scale"],
    &["response_format", "format"],
];

/// Routes that have a parameter which no other name stands for.
const ROUTES: &[(&str, &str)] = &[
    ("contexts", "`/ai/run` with a model that ranks documents"),
    ("documents", "`/v1/chat/completions` and `/v1/rerank`"),
    ("input", "`/v1/responses`, `/v1/embeddings` and `/v1/audio/speech`"),
    ("instructions", "`/v1/responses`"),
    ("messages", "`/v1/chat/completions` and `/v1/messages`"),
    ("prompt", "`/v1/completions` and `/v1/images/generations`"),
    ("query", "`/v1/rerank`"),
    ("system", "`/v1/messages`"),
    ("text", "`/v1/responses`, and `/ai/run` with a model that makes embeddings"),
    ("top_k", "`/v1/chat/completions`, `/v1/completions` and `/v1/messages`"),
    ("voice", "`/v1/audio/speech`"),
];

/// Name that a body has for a parameter of another API; `known` are its names.
pub(crate) fn same<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let groups = SAME.iter().filter(|group| group.contains(&name));
    groups.flat_map(|group| group.iter()).find_map(|same| known.iter().copied().find(|known| known == same))
}

/// Routes that a parameter belongs to.
pub(crate) fn routes(name: &str) -> Option<&'static str> {
    ROUTES.iter().find(|(parameter, _)| *parameter == name).map(|(_, routes)| *routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_has_the_name_of_the_body_it_is_sent_in() {
        let chat = ["model", "messages", "max_tokens", "max_completion_tokens", "stop", "documents"];
        let responses = ["model", "input", "max_output_tokens", "text"];
        let messages = ["model", "messages", "max_tokens", "stop_sequences", "top_k"];
        let (completions, embeddings) = (["model", "prompt", "max_tokens"], ["model", "input"]);
        let (rerank, native) = (["model", "query", "documents", "top_n"], ["query", "contexts", "top_k"]);
        for (name, known, same_as) in [
            ("max_output_tokens", &chat[..], Some("max_tokens")),
            ("max_tokens", &responses, Some("max_output_tokens")),
            ("max_completion_tokens", &messages, Some("max_tokens")),
            ("max_completion_tokens", &completions, Some("max_tokens")),
            ("stop_sequences", &chat, Some("stop")),
            ("stop", &messages, Some("stop_sequences")),
            ("input", &completions, Some("prompt")),
            ("prompt", &embeddings, Some("input")),
            ("text", &embeddings, Some("input")),
            ("contexts", &rerank, Some("documents")),
            ("texts", &rerank, Some("documents")),
            ("documents", &native, Some("contexts")),
            ("top_n", &native, Some("top_k")),
            ("messages", &completions, None),
            ("input", &chat, None),
            ("foo", &chat, None),
        ] {
            assert_eq!(same(name, known), same_as, "{name} among {known:?}");
        }
    }

    #[test]
    fn names_of_a_group_are_different_and_routes_are_sorted() {
        for group in SAME {
            assert!(group.iter().enumerate().all(|(at, name)| !group[..at].contains(name)), "{group:?}");
        }
        assert!(ROUTES.is_sorted_by(|(one, _), (next, _)| one < next));
        assert_eq!((routes("messages").is_some(), routes("foo")), (true, None));
    }
}
