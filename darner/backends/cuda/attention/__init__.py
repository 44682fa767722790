"""Attention and its gradients on tensor cores.

``template`` chooses. ``problem`` says which attentions there is code for; all others are the common template's (``codegen.simt.attention``), few queries over many keys among them.
``plan`` cuts a problem, ``kernel`` has tiles and fragments, ``scores`` what is done to products. ``forward`` and ``backward`` are by ``mma.sync``, for processors since sm_80.
"""
