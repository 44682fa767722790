"""Loops: one body, repeated over carried state.

``loop`` is the op; ``iterate`` writes it from a Python function; ``samples`` are typical loops. Their derivatives transform bodies, and stand in
``transforms.loops``. Begin with ``loop``.
"""

from . import iterate as iterate
from . import loop as loop
from . import samples as samples
