"""State spaces on the CPU: selective scans and the gated delta rule, and their gradients, by chunks of steps.

``template`` chooses by the op. ``scan`` and ``scan_backward`` take a vector of channels at a time, ``net`` some columns of a head's matrix, ``net_backward`` a head
by products of small matrices (``matrices``). ``operands`` reads and writes all of them.
"""
