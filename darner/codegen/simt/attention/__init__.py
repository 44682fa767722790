"""Attention and its gradients on a GPU: online softmax over blocks of keys.

``template`` chooses: ``forward`` and ``backward`` work on blocks of queries, ``decode`` on few queries over many keys, whose parts ``merge`` puts together;
``parts`` adds up gradients of keys and values that each query head has by itself, ``bias`` is the gradient of the bias. ``plan`` cuts a problem into tiles, ``tile`` computes one.
"""
