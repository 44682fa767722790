"""Diffusion: how noise is added to data, and the steps that take it away again, in NumPy.

A model learns what ``target`` says of data that ``add_noise`` made noisy; ``sample`` begins with noise and asks the model at every step.

>>> import numpy as np
>>> from darner.models.diffusion import NoiseSchedule
>>> schedule = NoiseSchedule(beta_schedule="squaredcos_cap_v2")
>>> schedule.timesteps(5)
array([800, 600, 400, 200,   0])
>>> def denoise(x, timestep):  # the best guess of the noise where all data are 3
...     kept = schedule.alphas_cumprod[timestep]
...     return (x - 3.0 * np.sqrt(kept)) / np.sqrt(1.0 - kept)
>>> found = schedule.sample(denoise, np.random.default_rng(0).normal(size=(4, 2)), count=5)
>>> bool(np.allclose(found, 3.0))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..graph.cached import cached_property
from ..graph.errors import ArgumentError, nearest
from .base import Config

Array: TypeAlias = npt.NDArray[Any]
Denoiser: TypeAlias = Callable[[Array, int], Array]


class DiffusersConfig(Config):
    """A configuration in the form of diffusers, which names its class by ``_class_name`` and has no ``model_type``."""

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it."""
        found = super().to_hf()
        del found["model_type"], found["architectures"]
        return {"_class_name": self.architecture, **found}


def _cosine(steps: int) -> Array:
    """Betas by which the share of data that is kept falls as a squared cosine."""
    kept = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.minimum(1.0 - kept[1:] / kept[:-1], 0.999)


BETAS: dict[str, Callable[[float, float, int], Array]] = {
    "linear": lambda start, end, steps: np.linspace(start, end, steps),
    "scaled_linear": lambda start, end, steps: np.linspace(start**0.5, end**0.5, steps) ** 2,
    "squaredcos_cap_v2": lambda _, __, steps: _cosine(steps),
}
"""The noise of each step, by the names that configurations use."""

PREDICTIONS = ("epsilon", "sample", "v_prediction")
SPACINGS = ("leading", "linspace", "trailing")


def _known(what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ArgumentError(f"there is no {what} '{name}'", hint=nearest(name, names, "there are"))


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule(DiffusersConfig):
    """How much noise there is at each timestep, under the names of diffusers' ``scheduler_config.json``.

    At timestep t data become ``sqrt(a[t]) * data + sqrt(1 - a[t]) * noise``, where a is ``alphas_cumprod``, the product of 1 - beta up to t.

    Attributes:
        num_train_timesteps: how many steps there are.
        beta_start: the noise of the first step; ``beta_end`` is that of the last.
        beta_schedule: what lies between: "linear", "scaled_linear" (linear in the roots) or "squaredcos_cap_v2" (a cosine, whatever the ends).
        prediction_type: what the model gives: the noise ("epsilon"), the data ("sample"), or "v_prediction", sqrt(a) noise - sqrt(1 - a) data.
        clip_sample: whether the data that a step finds are held within ``clip_sample_range`` of 0.
        set_alpha_to_one: whether nothing is left of the noise after the last step, instead of as much as at timestep 0.
        steps_offset: added to timesteps that are spaced as "leading".
        timestep_spacing: "leading", "linspace" or "trailing": with the first timestep, with both ends, or with the last.
    """

    architecture: ClassVar[str] = "DDIMScheduler"

    num_train_timesteps: int = 1000
    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: str = "linear"
    prediction_type: str = "epsilon"
    clip_sample: bool = False
    clip_sample_range: float = 1.0
    set_alpha_to_one: bool = True
    steps_offset: int = 0
    timestep_spacing: str = "leading"

    def __post_init__(self) -> None:
        super().__post_init__()
        _known("beta_schedule", self.beta_schedule, tuple(BETAS))
        _known("prediction_type", self.prediction_type, PREDICTIONS)
        _known("timestep_spacing", self.timestep_spacing, SPACINGS)

    @cached_property
    def betas(self) -> Array:
        """The share of noise in the variance that each step adds."""
        return BETAS[self.beta_schedule](self.beta_start, self.beta_end, self.num_train_timesteps)

    @cached_property
    def alphas_cumprod(self) -> Array:
        """The share of data that is left in the variance at each timestep."""
        return np.cumprod(1.0 - self.betas)

    def timesteps(self, count: int) -> Array:
        """The ``count`` timesteps at which a sampler asks the model, from the noisiest on."""
        steps = self.num_train_timesteps
        if not 1 <= count <= steps:
            raise ArgumentError(f"{count} steps cannot be chosen from {steps}")
        chosen: Array
        if self.timestep_spacing == "linspace":
            # One step alone begins where the noise is.
            chosen = np.linspace(steps - 1, 0, count).round()
        elif self.timestep_spacing == "trailing":
            chosen = np.round(steps - np.arange(count) * (steps / count)) - 1
        else:
            chosen = np.arange(count)[::-1] * (steps // count) + self.steps_offset
            if chosen[0] >= steps:
                raise ArgumentError(
                    f"steps_offset {self.steps_offset} puts the first of {count} steps at {chosen[0]}, "
                    f"and there are timesteps below {steps}"
                )
        return chosen.astype(np.int64)

    # ------------------------------------------------------------- training

    def _shares(self, timesteps: Any, like: Array) -> tuple[Array, Array]:
        """The factors of data and noise, in the shape and type to multiply ``like`` with."""
        found = self.alphas_cumprod[np.asarray(timesteps)]
        found = found.reshape(found.shape + (1,) * (like.ndim - found.ndim))
        return np.sqrt(found).astype(like.dtype), np.sqrt(1.0 - found).astype(like.dtype)

    def add_noise(self, data: Array, noise: Array, timesteps: Any) -> Array:
        """``data`` (batch, ...) as noisy as they are at ``timesteps`` (batch,)."""
        kept, added = self._shares(timesteps, data)
        return kept * data + added * noise

    def target(self, data: Array, noise: Array, timesteps: Any) -> Array:
        """What the model is to give for these data, this noise and these timesteps."""
        if self.prediction_type == "epsilon":
            return noise
        if self.prediction_type == "sample":
            return data
        kept, added = self._shares(timesteps, data)
        return kept * noise - added * data

    # ------------------------------------------------------------- sampling

    def found(self, output: Array, timestep: int, x: Array) -> tuple[Array, Array]:
        """The data and the noise that ``output`` of the model says ``x`` is made of."""
        kept, added = self._shares(timestep, x)
        if self.prediction_type == "epsilon":
            data = (x - added * output) / kept
        elif self.prediction_type == "sample":
            data = output
        else:
            data = kept * x - added * output
        if self.clip_sample:
            data = np.clip(data, -self.clip_sample_range, self.clip_sample_range)
        return data, (x - kept * data) / added

    def _left(self, timestep: int) -> float:
        """The share of data at a timestep; -1 is that after the last step."""
        if timestep >= 0:
            return float(self.alphas_cumprod[timestep])
        return 1.0 if self.set_alpha_to_one else float(self.alphas_cumprod[0])

    def ddim_step(
        self,
        output: Array,
        timestep: int,
        previous: int,
        x: Array,
        eta: float = 0.0,
        noise: Array | None = None,
    ) -> Array:
        """``x`` at ``timestep`` taken to ``previous``, the timestep that follows on the way back; -1 after the last.

        ``eta`` says how much of ``noise`` is new: 0 none, so that the noise at the beginning decides everything; 1 as much as in ``ddpm_step``.
        """
        data, direction = self.found(output, timestep, x)
        now, then = self._left(timestep), self._left(previous)
        spread = eta * math.sqrt((1.0 - then) / (1.0 - now) * (1.0 - now / then))
        old = math.sqrt(max(1.0 - then - spread**2, 0.0))
        following: Array = math.sqrt(then) * data + old * direction
        if eta == 0.0:
            return following
        if noise is None:
            raise ArgumentError(f"a step with eta {eta} needs noise, of the shape {x.shape}")
        return following + spread * noise

    def ddpm_step(
        self, output: Array, timestep: int, previous: int, x: Array, noise: Array
    ) -> Array:
        """A draw of what ``x`` was at ``previous``, given ``x`` and the data that the model finds in it; ``noise`` is what is drawn by."""
        data, _ = self.found(output, timestep, x)
        now, then = self._left(timestep), self._left(previous)
        # q(previous | now, data) is a normal distribution: that of two noises, before and after, which add up.
        after = 1.0 - now / then
        mean: Array = (
            math.sqrt(then) * after * data + math.sqrt(now / then) * (1.0 - then) * x
        ) / (1.0 - now)
        return mean + math.sqrt(after * (1.0 - then) / (1.0 - now)) * noise

    def sample(
        self,
        denoise: Denoiser,
        noise: Array,
        *,
        count: int = 50,
        method: str = "ddim",
        eta: float = 0.0,
        seed: int = 0,
    ) -> Array:
        """Data from ``noise``: ``denoise(x, timestep)``, the model, asked ``count`` times; ``method`` is "ddim" or "ddpm"."""
        _known("method", method, ("ddim", "ddpm"))
        rng = np.random.default_rng(seed)
        x, steps = noise, self.timesteps(count)
        for timestep, previous in zip(steps.tolist(), [*steps[1:].tolist(), -1], strict=True):
            output = denoise(x, timestep)
            fresh = rng.standard_normal(x.shape).astype(x.dtype)
            if method == "ddim":
                x = self.ddim_step(output, timestep, previous, x, eta, fresh)
            else:
                x = self.ddpm_step(output, timestep, previous, x, fresh)
        return x
