"""What only NVIDIA's processors have, as typed functions that write inline PTX with an llvmlite builder.

    assembly   a statement of PTX in the code of a kernel
    threads    lanes, warps and clusters; registers; the order of launches
    barriers   named barriers, and mbarriers, whose waits are bounded
    copies     copies that run by themselves: cp.async, bulk copies, and tiles by tensor maps
    mma        products of a warp: mma.sync, and ldmatrix and stmatrix, which bring its operands and take its results
    wgmma      products of four warps whose operands lie in shared memory
    numbers    conversions that take one instruction
    scalars    powers of two and pairs of 16-bit numbers, as instructions or emulated
    stream     what a kernel that streams weights calls: loads past the L1 cache, sums of the blocks of a cluster
    warp       what a template for tensor cores calls: these instructions, or their emulation by the SIMT builder

Every function takes the builder first. Addresses of shared memory are integers of 32 bits, those of tensor maps are pointers. Names are those of PTX.
Begin with ``mma`` for processors since sm_80, with ``wgmma`` for sm_90a.
"""
