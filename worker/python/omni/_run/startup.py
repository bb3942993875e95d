"""Checks at the start of a local run or of a test: models that a node refuses, or whose every request it would."""

from __future__ import annotations

from omni._engine.entry import kind_of
from omni._run.openai.routes import TEXT
from omni._run.template import ChatTemplate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from omni._engine.model import Model
    from omni._run.manifest import Manifest


def problem_of_files(directory: Path, manifest: Manifest) -> str | None:
    """The reason in the files beside `omni.toml`."""
    if manifest.kind != TEXT or manifest.renders_itself:
        return None
    return ChatTemplate(directory).problem()


def problem_of_kind(model: Model, manifest: Manifest) -> str | None:
    """The reason in the handler's annotation, which names another kind than the manifest."""
    named = annotated_kind(model)
    if not manifest.is_read or manifest.kind == "custom" or named in (None, manifest.kind):
        return None
    return (
        f'the handler takes requests for {named}, and omni.toml has `kind = "{manifest.kind}"` in [model]: '
        f'write `kind = "{named}"`, or change the annotation'
    )


def annotated_kind(model: Model) -> str | None:
    """The kind of requests that the handler's annotation names."""
    entry = model.single or model.batch
    return None if entry is None else kind_of(entry.function)
