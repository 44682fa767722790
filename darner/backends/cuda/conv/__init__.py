"""Convolutions and both their gradients as implicit products, of images whose channels are their last axis (``ops.spatial.conv_last``).

    template  which specs, and how one is written
    problem   the products of matrices that a convolution consists of, and how their operands lie
    patches   what brings tiles of patches to shared memory: copies of 16 bytes from gathered addresses, zeros outside of the image
    hopper    the same by tensor maps, for products by wgmma
    fold      the launch that copies images with few channels
    sinks     what becomes of sums

Tiles, products and what becomes of sums are those of ``contract``: a kernel of one tap is a product as it is, all others have patches as one operand, which are never stored. Sums
over pixels, of the gradient towards the weight, are cut into parts that are added up in their order. Which convolutions are computed so says ``template.wanted``: those without
groups, of f32, bf16, f16 and tf32; others are the common template's (``codegen.simt.conv``), which has channels first. Begin with ``problem``.
"""
