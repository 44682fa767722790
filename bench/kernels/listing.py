"""The fixed cases: sizes that models have, and a few that they do not."""

from typing import Any

from .cases import (
    Attention,
    Contract,
    Convolution,
    DeltaRule,
    Index,
    Map,
    Move,
    Order,
    Pool,
    Reduce,
    Rows,
    SelectiveScan,
)

SQUARE = (256, 384, 512, 768, 1000, 1024, 1536, 2048)
VOCABULARIES = (8192, 49152)
PASSES = ("forward", "input", "weight")

GROUPS: dict[str, list[Any]] = {
    "gemm": [Contract(size, size, size, form) for form in ("NN", "NT", "TN") for size in SQUARE],
    "contract": [
        Contract(128, 576, 1536),
        Contract(128, 1536, 576),
        Contract(128, 576, 8192),
        Contract(128, 784, 128),
        Contract(127, 301, 513),
        Contract(1, 4096, 4096),
        Contract(1, 4096, 4096, "NT"),
        Contract(8, 576, 1536),
        Contract(2048, 64, 64),
        Contract(128, 10, 128, "NT"),
        Contract(576, 128, 1536, "TN"),
        Contract(64, 4096, 64, "TN"),
        Contract(8, 20000, 8, "TN"),
        Contract(128, 64, 128, "NT", 12),
        Contract(128, 128, 64, "NN", 12),
        Contract(128, 128, 64, "TN", 12),
    ],
    "rows": [
        *(
            Rows(op, 512, 1536, part)
            for op in ("softmax", "rms_norm", "layer_norm")
            for part in ("forward", "both")
        ),
        *(
            Rows(op, 128, width, part)
            for width in VOCABULARIES
            for op in ("softmax", "cross_entropy")
            for part in ("forward", "both")
        ),
    ],
    "map": [Map(op, 2048, 1536) for op in ("gelu", "swiglu", "affine", "adam")],
    "conv": [
        *(Convolution(4, 64, 64, 56, 56, part=part) for part in PASSES),
        *(Convolution(4, 256, 256, 14, 14, part=part) for part in PASSES),
        *(Convolution(4, 64, 256, 56, 56, 1, part=part) for part in PASSES),
        *(Convolution(4, 64, 128, 56, 56, 3, 2, part=part) for part in PASSES),
        *(Convolution(4, 96, 96, 56, 56, 3, 1, 96, part=part) for part in PASSES),
        *(Convolution(4, 3, 64, 112, 112, 7, 2, part=part) for part in PASSES),
        *(Convolution(2, 37, 53, 29, 31, part=part) for part in PASSES),
    ],
    "attention": [
        *(Attention(1, 9, 3, 128, 128, 64, True, part) for part in ("forward", "both")),
        *(Attention(4, 12, 12, 256, 256, 64, False, part) for part in ("forward", "both")),
        *(Attention(1, 16, 16, 1024, 1024, 64, True, part) for part in ("forward", "both")),
        Attention(1, 9, 3, 1, 512, 64),
        Attention(8, 32, 8, 1, 1024, 128),
    ],
    "reduce": [
        Reduce(op, (64, 128, 512), axis) for op in ("sum", "max", "argmax") for axis in (0, 1, 2)
    ],
    "pool": [
        Pool(op, 4, 64, 112, 112, window, 2, part)
        for op, window in (("max", 3), ("mean", 2))
        for part in ("forward", "both")
    ],
    "index": [
        Index("gather", 49152, 576, 2048),
        Index("scatter_add", 49152, 576, 2048),
        Index("scatter_add", 512, 64, 16384),
    ],
    "order": [
        Order("sort", 256, 1024),
        Order("sort", 1, 262144),
        Order("top_k", 16, 49152, 50),
        Order("top_k", 4096, 64, 4),
    ],
    "state-space": [
        *(SelectiveScan(1, 512, 1536, 16, part) for part in ("forward", "both")),
        *(SelectiveScan(2, 301, 500, 13, part) for part in ("forward", "both")),
        *(DeltaRule(1, 1024, 16, 128, part) for part in ("forward", "both")),
        *(DeltaRule(2, 301, 5, 50, part) for part in ("forward", "both")),
        DeltaRule(1, 1, 16, 128, "step"),
    ],
    "move": [
        Move((4, 128, 576), (1, 0, 2)),
        Move((1, 1024, 1536), (0, 2, 1)),
        Move((64, 128, 129), (2, 1, 0)),
    ],
}
"""Group -> its cases."""

COMPILED = ("rows", "map", "reduce", "pool", "move")
"""Groups beside which ``torch.compile`` is measured unless engines are named: it makes kernels of its own for them."""
