"""Where engines run a workload, and how exactly they multiply."""

from dataclasses import dataclass

TOLERANCE = {"f32": 1e-3, "tf32": 1e-2, "f16": 1e-2, "bf16": 5e-2}
"""How far engines may differ, relative to the largest number, by the precision of their products."""


@dataclass(frozen=True)
class Place:
    """A device, and the precision of products on it: all else is f32, and so are the weights that are trained.

    Inference in ``bf16`` or ``f16`` holds its weights in that type where an engine has no other way.
    """

    device: str = "cpu"
    precision: str = "f32"

    @property
    def is_card(self) -> bool:
        """Whether it is a GPU, and steps are waited for."""
        return self.device != "cpu"

    @property
    def tolerance(self) -> float:
        """How far results may differ here."""
        return TOLERANCE[self.precision]

    @property
    def width(self) -> float:
        """Bytes of a number that products read."""
        return 2.0 if self.precision in ("bf16", "f16") else 4.0

    def told(self, threads: int) -> str:
        """As a table says it.

        >>> Place().told(2), Place(precision="bf16").told(2), Place("cuda", "f32").told(2)
        ('2', '2 bf16', 'cuda f32')
        """
        where = self.device if self.is_card else str(threads)
        return where if self == CPU else f"{where} {self.precision}"


CPU = Place()
