"""Images and signals: convolution, pooling, resampling.

``conv`` and ``pool`` have the primitives and their gradients over any number of axes; ``conv_forms``, ``conv_flat`` and ``pool_forms`` are how users write them.
``resize`` resamples. ``windows`` has what all share: padding, and windows that must fit. Begin with ``windows``, then ``conv``.
"""

from . import conv as conv
from . import conv_flat as conv_flat
from . import conv_forms as conv_forms
from . import pool as pool
from . import pool_forms as pool_forms
from . import resize as resize
from . import windows as windows
