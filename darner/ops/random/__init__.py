"""Random numbers.

``bits`` is the one source: a counter and a seed, the same on every backend. ``distributions`` makes numbers of the bits, and dropout; ``sampling`` chooses
tokens. Begin with ``bits``.
"""
