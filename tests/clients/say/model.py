"""Speech that is easy to check: a file with the text in it, in pieces."""

from omni import TextToSpeech, errors


def handle_request(request: TextToSpeech, context):
    if request.voice == "nobody":
        raise errors.BadRequest("there is no voice `nobody`", "voice")
    return pieces(request)


def pieces(request):
    for word in request.text.split():
        yield f"{word} ".encode()
    yield f"{request.voice} {request.format} {request.speed}".encode()
