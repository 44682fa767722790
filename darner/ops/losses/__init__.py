"""Softmax and the losses, most of which are made of it. Begin with ``softmax``."""

from . import losses as losses
from . import softmax as softmax
