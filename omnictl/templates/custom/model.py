"""MODEL_NAME: says hello.

The node calls handle_request for every request and sends back the result: a str, dict, list or bytes, or a
Response. `def` and `async def` both work; a generator streams.
"""

from omni import Response


def setup(context):
    """Called once before the first request: load weights here. Remove it if not needed."""
    context.logger.info("ready to say hello")


def handle_request(request, context):
    try:
        name = request.body.json["name"]
    except Exception as err:
        return Response.error(400, f"name is missing: {err}")
    return {"greeting": f"Hello, {name}!"}
