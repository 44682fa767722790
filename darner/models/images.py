"""What models of images share: pixels that come in, patches, and the loss of a classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, float_input


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, from one number or both."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def grid(image_size: int | Sequence[int], patch_size: int | Sequence[int]) -> tuple[int, int]:
    """How many patches an image has from top to bottom and from left to right; what is left over at the ends is not seen."""
    (height, width), (high, wide) = pair(image_size), pair(patch_size)
    if not 0 < high <= height or not 0 < wide <= width:
        raise ArgumentError(
            f"an image of {height} x {width} has no patches of {high} x {wide}",
            hint="patch_size is at least 1 and at most image_size",
        )
    return height // high, width // wide


@dataclass(frozen=True, kw_only=True)
class PatchesConfig(Config):
    """Images cut into patches; each size is one number, or height and width."""

    num_channels: int = 3
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        grid(self.image_size, self.patch_size)

    @property
    def patches(self) -> int:
        """Into how many patches an image is cut."""
        rows, columns = grid(self.image_size, self.patch_size)
        return rows * columns

    @property
    def patch_inputs(self) -> int:
        """How many numbers a patch has."""
        height, width = pair(self.patch_size)
        return self.num_channels * height * width


def pixels(graph: Graph, batch: int, channels: int, size: int | Sequence[int], dtype: str) -> Node:
    """The input ``pixels`` (batch, channels, height, width), in ``dtype``; what is narrower than f32 comes in as f32."""
    return float_input(graph, "pixels", (batch, channels, *pair(size)), dtype)


def in_a_row(patches: Node, first: Node | None = None) -> Node:
    """Patches (batch, width, rows, columns) as (batch, rows * columns, width), behind a class token where there is one."""
    batch, width = patches.shape[:2]
    row = patches.reshape((batch, width, -1)).transpose((0, 2, 1))
    if first is None:
        return row
    tokens = first.reshape((1, 1, width)).broadcast_to((batch, 1, width))
    return row.graph.concat([tokens, row], axis=1)


def finish(graph: Graph, **outputs: Node) -> Graph:
    """The graph with these outputs, by these names."""
    for name, node in outputs.items():
        graph.relabel(node, name)
    graph.set_outputs(list(outputs.values()))
    return graph.verify()


def finish_training(graph: Graph, logits: Node, batch: int) -> Graph:
    """The graph with the cross-entropy of ``logits`` and the input ``labels`` (batch,), and the logits beside it."""
    if logits.shape[-1] == 1:
        raise ArgumentError("a classification of one class has no loss", hint="set num_labels")
    labels = graph.input("labels", (batch,), "i32")
    return finish(graph, loss=graph.cross_entropy_loss(logits, labels), logits=logits)
