"""Embeddings that are easy to check: length, number of vowels, first character."""

from omni import Embeddings, Response


def vector(text):
    return [float(len(text)), float(sum(text.count(vowel) for vowel in "aeiou")), float(ord(text[0]))]


def handle_request(request: Embeddings, context):
    if request.dimensions not in (None, 3):
        return Response.error(400, "vectors have 3 numbers")
    if request.tokens is not None:
        return [[float(len(tokens)), 0.0, float(tokens[0])] for tokens in request.tokens]
    return [vector(text) for text in request.texts]
