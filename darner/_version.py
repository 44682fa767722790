"""The version of the package: what imports nothing can be imported by everything."""

__version__ = "0.1.0"
