"""Convolutions and their gradients on a GPU.

``template`` chooses: ``depthwise`` for one channel a group, ``images`` as implicit products of matrices (forward and towards the input), ``weight_gradient``
towards the weight. ``plan`` chooses tiles and parts of sums, ``problem`` says what is multiplied.
"""
