"""All of darner's ops; importing this fills the registry.

A room a family, each of which says where to begin. Rooms import from rooms before them only, as in this order:

    complex_numbers, shapes, elementwise, reductions   what all others are made of
    indexing, linalg, spatial, fourier
    norms, losses, layers, attention, random
    quantised, creation                                stored weights, and where values come from
    custom, loops                                      graphs inside of ops
    state_space, splats

Beside them stand what declarations are written with: ``declare`` (an element-wise op in one call), ``samples`` (typical calls), ``axes`` (what rules of
batches and gradients do to axes) and ``faults`` (what only data can make wrong). Begin with ``declare`` and ``elementwise.functions``.
"""

from . import attention as attention
from . import complex_numbers as complex_numbers
from . import creation as creation
from . import custom as custom
from . import declare as declare
from . import elementwise as elementwise
from . import fourier as fourier
from . import indexing as indexing
from . import layers as layers
from . import linalg as linalg
from . import loops as loops
from . import losses as losses
from . import norms as norms
from . import quantised as quantised
from . import random as random
from . import reductions as reductions
from . import shapes as shapes
from . import spatial as spatial
from . import splats as splats
from . import state_space as state_space
