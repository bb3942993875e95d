"""A model with a script: its answer depends on the last message of the user, token by token."""

import json
import re

from omni import Finish, TextGeneration, Token, Usage

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


ANSWERS = {
    "weather": CALL % ("get_weather", '{"city": "Paris"}'),
    "two calls": "\n".join(CALL % ("get_weather", json.dumps({"city": city})) for city in ("Paris", "Rome")),
    "think": "<think>\nLet me see.\n</think>\n\nAnswer",
    "person": json.dumps({"name": "Ada", "age": 36}),
    "no person": json.dumps({"name": "Ada", "age": "old"}),
}


def script(said, prompt):
    if "<tool_response>" in prompt:
        return "The result is known."
    if said.startswith("count "):
        return " ".join(str(number) for number in range(1, int(said[6:]) + 1))
    return ANSWERS.get(said, f"You said: {said}")


def count_tokens(text_or_messages, context):
    return len(str(text_or_messages).split())


def handle_request(request: TextGeneration, context):
    prompt = request.prompt or ""
    users = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    said = users[-1].strip() if users else prompt
    if said == "raise":
        raise ValueError("as asked")
    answer = script(said, prompt)
    tokens = re.findall(r"\s?\S+|\s+", answer)
    for number, text in enumerate(tokens):
        if said == "raise late" and number == 1:
            raise ValueError("as asked")
        logprob = -0.5 if request.logprobs is not None else None
        yield Token(text, id=number, logprob=logprob, top=[(text, -0.5)] if request.logprobs else [])
    yield Finish("stop", usage=Usage(prompt_tokens=len(prompt.split()), completion_tokens=len(tokens)))
