"""Normalisation.

``last_axes`` has layer and RMS normalisation, ``channels`` those of images by channel, group, sample or batch. Their derivatives are ops too, in
``last_axes_gradients`` and ``channel_gradients``. Begin with ``last_axes``.
"""
