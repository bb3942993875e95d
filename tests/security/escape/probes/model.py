"""A model that tries every probe in its engine's own process. The request is the world."""

from table import try_all


def handle_request(request, _context):
    return try_all(request.body.json)
