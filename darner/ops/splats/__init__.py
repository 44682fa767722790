"""Pictures of scenes made of soft ellipsoids, and their gradients.

``render`` has the ops. A scene (``records``) goes before a camera (``scene``), its splats into the tiles of a picture (``tiles``), and ``view`` goes the way back.
Begin with ``render``.
"""

from . import records as records
from . import render as render
from . import scene as scene
from . import tiles as tiles
from . import view as view
