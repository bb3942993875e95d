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

__all__ = ["Context", "Request", "Response", "__version__", "errors"]
