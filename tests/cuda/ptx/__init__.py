"""PTX run in Python: enough of it for kernels of tensor cores on sm_90a, whose instructions no emulator on the host has.

A warp's 32 lanes are NumPy's vectors, of which those with the lowest place in the code go on together (``warp``). Warps take turns; one that waits lets others go first (``device``). Copies by tensor maps arrive some time after
they were issued, in any order. Operands of ``wgmma`` are read where its descriptors say, at the time when it is issued (``instructions``).
"""
