"""A perceptron for MNIST."""

from darner import Graph

from .writer import Spelling, writer


def mlp(
    layers: int = 2,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = True,
    dropout: float = 0.0,
    batch: int = 4,
    pixels: int = 12,
    width: int = 8,
    classes: int = 5,
    dtype: str = "f32",
) -> Graph:
    """Linear layers with relu between them (and dropout after each, at a rate above 0), and cross-entropy.

    MNIST itself has ``pixels=784`` and ``classes=10``.
    """
    w = writer("mlp", spelling, variant, dtype)
    x = w.input("x", (batch, pixels))
    for i in range(layers - 1):
        x = w.relu(w.linear(f"layer{i}", x, width))
        if dropout > 0:
            x = w.dropout(x, dropout)
    x = w.linear(f"layer{layers - 1}", x, classes)
    if loss:
        x = w.cross_entropy(x, w.input("labels", (batch,), "u32"))
    w.graph.set_outputs([x])
    return w.graph
