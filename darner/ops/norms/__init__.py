"""Normalisation.

``last_axes`` has layer and RMS normalisation, ``channels`` those of images by channel, group, sample or batch. Their derivatives are ops too, in
``last_axes_gradients`` and ``channel_gradients``. Begin with ``last_axes``.
"""

from . import channel_gradients as channel_gradients
from . import channels as channels
from . import last_axes as last_axes
from . import last_axes_gradients as last_axes_gradients
