"""Attention on the CPU: online softmax over blocks of keys, scores in registers.

``template`` chooses: ``forward`` and ``backward`` (one panel of queries: ``panel``) or, for few queries, ``decode`` and ``decode_backward``. ``plan`` cuts a problem into
panels and blocks, ``bias`` is the gradient of the bias.
"""
