"""State spaces on GPUs: a thread for each channel of a selective scan, and for each column of a head's matrix in the gated delta rule.

``template`` chooses by the op: ``scan``, ``scan_backward``, ``net`` and ``net_backward``. Gradients go back by chunks of steps, and are summed over threads in one order.
"""
