"""Products of matrices on tensor cores, with f32 sums and the element-wise nodes after them.

    template    which specs: both operands of bf16, of f16 or rounded to tf32, in any layout and batch; and f32 as it is
    plan        the tiles there are, and which of them a product is cut into
    operands    how operands lie, in pieces of 16 bytes and as tensor maps
    pack        the launch that copies an operand that does not lie so
    raster      the order of tiles
    loaders     tiles of operands on their way to shared memory: whole pieces by cp.async, others word by word
    tiles       the tiles of wgmma
    wgmma       the kernel of sm_90a: tensor maps, clusters, warpgroups that multiply from shared memory
    few         the kernel of a few rows: the other operand streams by once; ``few_template`` says which products it takes, ``dots`` is what a warp adds
    mma         the kernel from sm_80 on: cp.async, ldmatrix, mma.sync; of sm_90a too for what no tensor map can say
    fma         the kernel of f32 without tensor cores
    fragments   sums from registers to the common epilogue
    ahead       weights that are brought to the L2 cache while the launch ahead still runs
    store       sums from registers to a result by tensor maps, where nothing but a cast comes after them

Operands with element-wise code before them, weights that are decoded, and older GPUs are the common template's (``codegen.simt.contract``). Begin with ``template``.
"""
