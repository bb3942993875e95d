"""Parameters under the name that another API has for them, and parameters of another route: what to send instead.

The tables are a node's (`gateway/codec/src/other_api.rs`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

SAME = (
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict"),
    ("stop", "stop_sequences"),
    ("documents", "contexts", "texts", "passages"),
    ("input", "inputs", "prompt", "text", "texts"),
    ("top_n", "top_k"),
    ("top_logprobs", "logprobs"),
    ("repetition_penalty", "repeat_penalty"),
    ("seed", "random_seed"),
    ("n", "num_images"),
    ("steps", "num_steps", "num_inference_steps"),
    ("guidance", "guidance_scale"),
    ("response_format", "format"),
)
"""Names for the same parameter. The first of a group that a body has is the one to use."""
ROUTES = {
    "contexts": "`/ai/run` with a model that ranks documents",
    "documents": "`/v1/chat/completions` and `/v1/rerank`",
    "input": "`/v1/responses`, `/v1/embeddings` and `/v1/audio/speech`",
    "instructions": "`/v1/responses`",
    "messages": "`/v1/chat/completions` and `/v1/messages`",
    "prompt": "`/v1/completions` and `/v1/images/generations`",
    "query": "`/v1/rerank`",
    "system": "`/v1/messages`",
    "text": "`/v1/responses`, and `/ai/run` with a model that makes embeddings",
    "top_k": "`/v1/chat/completions`, `/v1/completions` and `/v1/messages`",
    "voice": "`/v1/audio/speech`",
}
"""Routes that have a parameter which no other name stands for."""


def same(name: str, known: AbstractSet[str]) -> str | None:
    """Name that a body has for a parameter of another API."""
    return next((other for group in SAME if name in group for other in group if other in known), None)


def routes(name: str) -> str | None:
    """Routes that a parameter belongs to."""
    return ROUTES.get(name)
