"""All of darner's ops; importing this fills the registry. One small file per family."""

from . import elementwise, leaves

__all__ = ["elementwise", "leaves"]
