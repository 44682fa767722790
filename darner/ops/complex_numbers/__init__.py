"""Complex numbers: what other rooms need of them before anything else.

``parts`` computes with pairs of real numbers: the language of the rules (``@op.pairs``) by which compiled devices do without complex arithmetic. ``numbers``
makes complex tensors of real ones and takes them apart. Begin with ``parts``.
"""
