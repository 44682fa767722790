"""Pictures of scenes made of soft ellipsoids, and their gradients.

``render`` has the ops. A scene (``records``) goes before a camera (``scene``), its splats into the tiles of a picture (``tiles``), and ``view`` goes the way back.
Begin with ``render``.
"""
