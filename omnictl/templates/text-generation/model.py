"""MODEL_NAME: generates text. Here it counts the words of the prompt; put your model in the place of `answer`.

The node renders conversations by chat_template.jinja, which is best replaced by the template that your weights came
with. It cuts the text at stop strings and at `max_tokens`, and serves the OpenAI, Anthropic and Workers AI APIs.
"""

from omni import Finish, TextGeneration, Usage, errors


def handle_request(request: TextGeneration, context):
    """Yields the text piece by piece: clients that stream see each at once."""
    if request.prompt is None:
        raise errors.BadRequest("this model takes text, not token ids", "prompt")
    words = request.prompt.split()
    tokens = 0
    for piece in answer(words):
        tokens += 1
        yield piece
    yield Finish("stop", Usage(prompt_tokens=len(words), completion_tokens=tokens))


def answer(words):
    yield "The prompt"
    yield f" has {len(words)}"
    yield " words."


def count_tokens(text, context):
    """Counts the tokens of a prompt, for clients that ask for their number alone."""
    return len(text.split())
