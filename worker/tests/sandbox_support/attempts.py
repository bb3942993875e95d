"""Attempts of a model: each tells the test its outcome by name, an errno's symbol or the value that came back."""

import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def attempt(name, function):
    try:
        outcome = function()
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error))
    except Exception as error:
        outcome = type(error).__name__
    tell(**{name: outcome})


def call(name, number, *arguments):
    """A raw system call; every argument is passed at its full width."""
    wide = [a if a is None or isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *wide)
    tell(**{name: errno.errorcode[ctypes.get_errno()] if result == -1 else result})
