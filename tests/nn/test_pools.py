"""Pooling against PyTorch's modules."""

import pytest
import torch

import darner
from darner.nn import pools
from tests.nn.compare import SIZES, assert_same

MAX = {
    "plain": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "stride": 1, "dilation": 2},
    "ceiling": {"kernel_size": 2, "stride": 2, "ceil_mode": True},
}

AVG = {
    "plain": {"kernel_size": 2},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "without padding": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    "ceiling": {"kernel_size": 2, "stride": 2, "ceil_mode": True},
}


@pytest.mark.parametrize("options", MAX.values(), ids=MAX)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_max_pool(axes, options):
    ours = getattr(pools, f"MaxPool{axes}d")(**options)
    theirs = getattr(torch.nn, f"MaxPool{axes}d")(**options)
    assert_same(ours, theirs, (2, 3, *SIZES[axes]))


@pytest.mark.parametrize("options", AVG.values(), ids=AVG)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_avg_pool(axes, options):
    ours = getattr(pools, f"AvgPool{axes}d")(**options)
    theirs = getattr(torch.nn, f"AvgPool{axes}d")(**options)
    assert_same(ours, theirs, (2, 3, *SIZES[axes]))


@pytest.mark.parametrize(
    ("axes", "size"), [(1, 4), (2, 3), (2, (1, 4)), (2, (None, 2)), (3, (2, 3, None))]
)
def test_adaptive_avg_pool(axes, size):
    ours = getattr(pools, f"AdaptiveAvgPool{axes}d")(size)
    theirs = getattr(torch.nn, f"AdaptiveAvgPool{axes}d")(size)
    assert_same(ours, theirs, (2, 3, *SIZES[axes]))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_global_avg_pool(axes):
    spatial = tuple(range(2, 2 + axes))
    shape = (2, 3, *SIZES[axes])
    assert_same(pools.GlobalAvgPool(), lambda_module(lambda x: x.mean(spatial)), shape)
    kept = lambda_module(lambda x: x.mean(spatial, keepdim=True))
    assert_same(pools.GlobalAvgPool(keepdims=True), kept, shape)


def lambda_module(function):
    module = torch.nn.Module()
    module.forward = function
    return module


def test_wrong_operands_are_refused():
    graph = darner.Graph("wrong")
    x = graph.input("x", (1, 3, 5))
    with pytest.raises(darner.ShapeError, match="rank 3"):
        pools.MaxPool2d(2)(x)
    with pytest.raises(darner.ShapeError, match="rank 3"):
        pools.AdaptiveAvgPool2d(2)(x)
    with pytest.raises(darner.ShapeError, match="does not fit"):
        pools.AvgPool1d(6)(x)
    with pytest.raises(darner.ArgumentError, match=r"AdaptiveAvgPool1d has 1 spatial axes"):
        pools.AdaptiveAvgPool1d((1, 2))(x)
    assert len(graph) == 1  # nothing was added
