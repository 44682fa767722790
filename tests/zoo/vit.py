"""A vision transformer: patches, learned positions, norms before the layers, the mean of all patches."""

from darner import Graph

from .writer import Spelling, writer


def vit(
    layers: int = 1,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = False,
    patches: str = "reshape",
    batch: int = 2,
    size: int = 8,
    patch: int = 4,
    width: int = 12,
    heads: int = 3,
    inner: int = 24,
    classes: int = 5,
    dtype: str = "f32",
) -> Graph:
    """The scores of ``classes``, or the loss of ``labels``.

    ``patches`` are cut out by "reshape" and a linear layer, or by a "conv" as wide as its stride.
    """
    w = writer("vit", spelling, variant, dtype)
    count = size // patch
    x = w.input("x", (batch, 3, size, size))
    if patches == "conv":
        x = w.conv("patches", x, width, patch, stride=patch)
        x = x.reshape((batch, width, count * count)).transpose((0, 2, 1))
    else:
        x = x.reshape((batch, 3, count, patch, count, patch)).transpose((0, 2, 4, 1, 3, 5))
        x = w.linear("patches", x.reshape((batch, count * count, 3 * patch * patch)), width)
    x = x + w.parameter("places", (count * count, width))
    for i in range(layers):
        with w.graph.scope(f"layer{i}"):
            h = w.layer_norm("norm1", x, 1e-6)
            q, k, v = (w.linear(name, h, width) for name in ("q", "k", "v"))
            x = x + w.linear("out", w.attention(q, k, v, heads, heads), width)
            h = w.linear("up", w.layer_norm("norm2", x, 1e-6), inner)
            x = x + w.linear("down", w.gelu_erf(h), width)
    result = w.linear("head", w.mean(w.layer_norm("norm", x, 1e-6), (1,)), classes)
    if loss:
        result = w.cross_entropy(result, w.input("labels", (batch,), "u32"))
    w.graph.set_outputs([result])
    return w.graph
