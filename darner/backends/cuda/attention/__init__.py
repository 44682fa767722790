"""Attention and its gradients on tensor cores.

``template`` chooses, and has all ways as variants. ``problem`` says which attentions there is code for; all others are the common template's (``codegen.simt.attention``). ``few`` is for few queries over many keys, as when decoding.

``rows`` is a kernel whose warps have rows of scores in their registers, ``scores`` what is done to products there, ``softmax`` the running softmax and what gradients need of it: the same for both forms.
``kept`` prepares for gradients what the forward pass kept. By ``mma.sync``, for processors since sm_80: ``plan`` cuts a problem, ``kernel`` has tiles and fragments, ``forward`` and ``backward`` are the kernels. By ``wgmma``, for sm_90a: ``hopper`` has tensor maps, barriers and products,
``hopper_forward`` and ``hopper_backward`` are the kernels.
"""
