"""``darner.io.atomic`` by its earlier name."""

from ..io.atomic import FileError, write_atomically

__all__ = ["FileError", "write_atomically"]
