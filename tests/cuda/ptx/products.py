"""Kernels of products, run as the PTX that a card has."""

import numpy as np

from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.machine import Machine

from .device import Device


def run_as_ptx(spec, arrays, write, cluster=3):
    """The results of a spec's only launch, as a card has them."""
    (stage,) = write(spec, Machine.without_card("sm_90a")).stages
    assert stage.cluster == (cluster, 1, 1)
    device = Device()
    operands = [device.room(arrays[name]) for name in names_of(spec, arrays)]
    shapes = [[int(size) for size in out.shape] for out in spec.body.outputs]
    kinds = [out.dtype.numpy for out in spec.body.outputs]
    results = [
        device.room(np.full(shape, 0xFF, np.uint8).repeat(np.dtype(kind).itemsize))
        for shape, kind in zip(shapes, kinds, strict=True)
    ]

    def address(binding):
        return (operands if binding.what == "operand" else results)[binding.number]

    device.launch(to_ptx(stage.ir, "sm_90a"), stage, address)
    return [
        device.bytes(place, int(np.prod(shape)) * np.dtype(kind).itemsize).view(kind).reshape(shape)
        for place, shape, kind in zip(results, shapes, kinds, strict=True)
    ]


def names_of(spec, arrays):
    """The arrays that are a spec's operands, in their order: each has a shape of its own."""
    found = []
    for leaf in spec.inputs:
        alike = [
            name
            for name, array in arrays.items()
            if [*array.shape] == [int(size) for size in leaf.shape]
            and array.dtype == leaf.dtype.numpy
        ]
        (name,) = alike
        found.append(name)
    return found
