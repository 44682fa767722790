"""A residual network with batch norms as in inference, pools and a linear head."""

from darner import Graph

from .writer import Spelling, writer


def resnet(
    blocks: int = 2,
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = False,
    batch: int = 2,
    size: int = 8,
    channels: int = 4,
    classes: int = 5,
    dtype: str = "f32",
) -> Graph:
    """The scores of ``classes``, or the loss of ``labels``; every second block halves the image and doubles the channels."""
    w = writer("resnet", spelling, variant, dtype)

    def conv(name, x, out, kernel=3, **options):
        return w.conv(name, x, out, kernel, bias=False, **options)

    x = w.input("x", (batch, 3, size, size))
    x = w.relu(w.batch_norm("norm", conv("enter", x, channels, padding=1)))
    x = w.max_pool(x, 2)
    for i in range(blocks):
        with w.graph.scope(f"block{i}"):
            out, stride = (2 * x.shape[1], 2) if i % 2 else (x.shape[1], 1)
            y = w.relu(w.batch_norm("norm1", conv("conv1", x, out, stride=stride, padding=1)))
            y = w.batch_norm("norm2", conv("conv2", y, out, padding=1))
            if stride > 1:
                # A mean and a 1x1 convolution, as in ResNet-D.
                x = w.batch_norm("norm3", conv("short", w.avg_pool(x, 2), out, 1))
            x = w.relu(y + x)
    result = w.linear("head", w.mean(x, (2, 3)), classes, stored="out_in")
    if loss:
        result = w.cross_entropy(result, w.input("labels", (batch,), "u32"))
    w.graph.set_outputs([result])
    return w.graph
