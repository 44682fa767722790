"""What a kernel computes, as a typed problem read from its spec: the same for every backend.

A backend decides how a problem is cut into tiles; what it is stands here once.
"""
