"""A model with a script: its answer depends on the last message of the user, on the tools and on the form asked for."""

import json
import re
import time

from omni import Finish, TextGeneration, Token, Usage

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
ANSWERS = {
    "weather": CALL % ("get_weather", '{"city": "Paris"}'),
    "two calls": "\n".join(CALL % ("get_weather", json.dumps({"city": city})) for city in ("Paris", "Rome")),
    "think": "<think>\nLet me see.\n</think>\n\nAnswer",
    "person": json.dumps({"name": "Ada", "age": 36}),
    "no person": json.dumps({"name": "Ada", "age": "old"}),
}


def instance(schema, said):
    """A value that fits the schema: numbers and quoted texts are those of the message."""
    kind = schema.get("type")
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], said)
    if kind == "object" or "properties" in schema:
        return {name: instance(part, said) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return []
    if kind in ("integer", "number"):
        return int((re.findall(r"\d+", said) or ["1"])[0])
    return (re.findall(r"'([^']+)'", said) or ["text"])[0]


def tool_call(request, said):
    """A call of the tool that is named: by the client, or in the message. Else of the first, if there must be one."""
    functions = {tool["function"]["name"]: tool["function"] for tool in request.tools}
    choice = request.tool_choice
    if isinstance(choice, dict):
        function = functions[choice["function"]["name"]]
    else:
        mentioned = [function for name, function in functions.items() if is_mentioned(name, said)]
        every = list(functions.values()) if choice == "required" or "style of" in said else []
        function = next(iter(mentioned + every), None)
    if function is None or choice == "none":
        return None
    return CALL % (function["name"], json.dumps(instance(function.get("parameters") or {"type": "object"}, said)))


def is_mentioned(name, said):
    return re.search(rf"\b({name}|{name.split('_')[-1]})\b", said) is not None


def script(request, said):
    if "<tool_response>" in (request.prompt or ""):
        return "The result is known."
    if said in ANSWERS:
        return ANSWERS[said]
    if said.startswith(("count ", "slowly ")):
        return " ".join(str(number) for number in range(1, int(said.split()[1]) + 1))
    call = tool_call(request, said)
    if call is not None:
        return call
    if request.response_format is not None and request.response_format.schema is not None:
        return json.dumps(instance(request.response_format.schema, said))
    return f"You said: {said}"


def count_tokens(text_or_messages, context):
    return len(str(text_or_messages).split())


def handle_request(request: TextGeneration, context):
    prompt = request.prompt or ""
    users = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    said = users[-1].strip() if users else prompt
    if said == "raise":
        raise ValueError("as asked")
    answer = script(request, said)
    tokens = re.findall(r"\s?\S+|\s+", answer)
    for number, text in enumerate(tokens):
        if said == "raise late" and number == 1:
            raise ValueError("as asked")
        if said.startswith("slowly "):
            time.sleep(0.05)
        logprob = -0.5 if request.logprobs is not None else None
        yield Token(text, id=number, logprob=logprob, top=[(text, -0.5)] if request.logprobs else [])
    yield Finish("stop", usage=Usage(prompt_tokens=len(prompt.split()), completion_tokens=len(tokens)))
