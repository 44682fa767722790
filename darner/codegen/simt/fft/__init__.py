"""Fourier transforms on a GPU: steps of butterflies, in the memory of a workgroup or from dispatch to dispatch.

``steps`` says what is done for each number, in an order in which all threads wait between one step and the next; ``template`` runs the steps, a workgroup for each
transform where its memory holds one, and as dispatches of their own over scratch memory otherwise. Complex tensors lie in memory as pairs of floats, and are read and written as such.
"""
