"""Attention and what belongs to it.

``attention`` is the op with its masks, ``gradients`` its derivatives in closed form, ``cache`` what decoding writes and reads, ``heads`` the forms with heads side by
side, and ``rope`` the rotary positions. Begin with ``attention``.
"""
