"""Element-wise kernels on a GPU: ``template`` for maps, ``transpose`` for those that read an operand across."""
