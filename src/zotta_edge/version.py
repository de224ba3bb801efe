"""The version, for every module: importing it from the root would be a cycle."""

__version__ = "0.1.0"
