"""Runs the request's text as Python and answers what came of it: the test's own words, inside a model's sandbox."""

import ctypes
import errno
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def handle_request(request, context):
    found = {}

    def attempt(name, function):
        """Keeps what comes back, or the error's name."""
        try:
            found[name] = function()
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno, repr(error))
        except Exception as error:
            found[name] = type(error).__name__

    def call(name, number, *arguments):
        """A raw system call; every argument is passed at its full width."""
        wide = [a if a is None or isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *wide)
        found[name] = errno.errorcode[ctypes.get_errno()] if result == -1 else result

    names = {"attempt": attempt, "call": call, "tell": found.update, "context": context, "os": os, "sys": sys}
    exec(compile(request.body.json, "probe", "exec"), names)
    return found
