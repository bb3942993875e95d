"""Write a model as a function; an Omni node serves it.

    from omni import Context, Request, Response

    def handle_request(request: Request, context: Context):
        return {"length": len(request.body.json["text"])}

For model authors. The package is pure Python without dependencies and can be imported and tested with any Python from
3.9 on, without a node. What begins with an underscore is the node's own side and may change.
"""

from omni import errors
from omni._version import VERSION as __version__
from omni.context import Context
from omni.request import Request
from omni.response import Response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.generation import (
        Completion,
        Finish,
        Reasoning,
        ResponseFormat,
        Sampling,
        TextGeneration,
        Token,
        ToolCall,
        Usage,
    )
    from omni.media import decode_data_url
    from omni.tasks import (
        Embeddings,
        Rerank,
        Scores,
        Segment,
        SpeechToText,
        TextToImage,
        TextToSpeech,
        Transcription,
        Vectors,
    )
    from omni.trace import Trace

__all__ = [
    "Completion",
    "Context",
    "Embeddings",
    "Finish",
    "Reasoning",
    "Request",
    "Rerank",
    "Response",
    "ResponseFormat",
    "Sampling",
    "Scores",
    "Segment",
    "SpeechToText",
    "TextGeneration",
    "TextToImage",
    "TextToSpeech",
    "Token",
    "ToolCall",
    "Trace",
    "Transcription",
    "Usage",
    "Vectors",
    "__version__",
    "decode_data_url",
    "errors",
]

# Names that are imported when a model asks for them: `dataclasses` takes as long as the rest of the package.
_GENERATION = frozenset(
    ("Completion", "Finish", "Reasoning", "ResponseFormat", "Sampling", "TextGeneration", "Token", "ToolCall", "Usage")
)
_TASKS = frozenset(
    (
        "Embeddings",
        "Rerank",
        "Scores",
        "Segment",
        "SpeechToText",
        "TextToImage",
        "TextToSpeech",
        "Transcription",
        "Vectors",
    )
)


def __getattr__(name: str) -> object:
    if name in _GENERATION:
        from omni import generation as module
    elif name in _TASKS:
        from omni import tasks as module  # type: ignore[no-redef]
    elif name == "Trace":
        from omni import trace as module  # type: ignore[no-redef]
    elif name == "decode_data_url":
        from omni import media as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module 'omni' has no attribute {name!r}")
    value = globals()[name] = getattr(module, name)
    return value
