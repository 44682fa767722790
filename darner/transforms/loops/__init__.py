"""Loops as graphs see them: derivatives, batches, and equal loops that do less.

- ``parts`` reads a ``loop`` node as a value with named parts, and makes nodes of such values.
- ``reverse``, ``forward`` and ``batch`` are the rules of the op: each transforms the body and makes loops again, so that they compose in any order.
- ``tidy`` drops what nobody reads, makes one loop of two that repeat each other, and moves sums of products out of loops. Begin there to see what
  happens to a loop after it was differentiated.
- ``motion`` moves what does not wait for the step before out of a loop: before it or after it.
- ``trace`` makes a body of a Python function.
"""

from . import batch as batch
from . import forward as forward
from . import reverse as reverse
