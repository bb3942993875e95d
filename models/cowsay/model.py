"""A cow that says a text: the smallest whole model.

Input:  {"text": "hi"}
Answer: the cow, as text.
"""

from omni import Response
import cowsay


def handle_request(request, context):
    try:
        text = request.body.json["text"]
    except Exception as err:
        return Response.error(400, f"text is missing: {err}")
    return cowsay.get_output_string("cow", text)
