"""Products and linear systems.

``contract`` has ``dot_general``, of which every product is made, and sliding windows. ``matrix`` and ``einsum`` are the ways to write a product; ``systems``
solves, inverts and factors. Begin with ``contract``.
"""

from . import contract as contract
from . import einsum as einsum
from . import matrix as matrix
from . import systems as systems
