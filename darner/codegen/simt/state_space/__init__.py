"""State spaces on GPUs: a thread for each channel of a selective scan, and for each column of a head's matrix in the gated delta rule.

``template`` chooses by the op: ``scan`` and ``net``. The gradients of the gated delta rule have no kernel here; they are products of matrices, by the op's expansion.
"""
