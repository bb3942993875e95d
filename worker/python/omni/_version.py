"""The package's version: that of the node it belongs to."""

VERSION = "0.1.0"
