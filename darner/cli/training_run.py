"""A training of ``darner train``: what it is of, in a file of its folder, so that it can go on; and how it is made and saved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from shutil import copyfile
from typing import Any

import numpy as np

from .. import load, models, nn, optim
from ..data import CharVocabulary, SubwordVocabulary, TokenWindows, read_text
from ..graph.cached import cached_property
from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError
from ..graph.precision import check_precision
from ..io.atomic import FileError
from ..io.reading import naming, read_json
from ..load.matching import Patterns
from ..load.pretrained_model import COPIED
from ..load.texts import write_json
from ..models.causal import CausalLM
from ..models.fields import COUNT, Range, check_fields
from ..session import Session, build_session
from ..text import Generator, Sampling, Tokenizer
from ..text.pretrained import CHARACTERS, vocabulary_of
from ..train import Trainer

SETTINGS = "train.json"
"""What a training is of, in its folder."""
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
TARGETS = ("*q_proj", "*v_proj", "*qkv_proj", "*c_attn")
"""The matrices that a low-rank change is for."""
TRANSPOSED = ("*c_attn.weight",)
MEASURED = 20
"""Batches of a validation, at most: it is there to be compared with the others of the same run."""

LLAMA = {"model_type": "llama", "tie_word_embeddings": True}
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiny": (
        {**LLAMA, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}
        | {"num_attention_heads": 4},
        {"length": 128, "batch": 16, "steps": 500, "rate": 3e-3},
    ),
    "small": (
        {**LLAMA, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6}
        | {"num_attention_heads": 8},
        {"length": 256, "batch": 16, "steps": 2000, "rate": 1e-3},
    ),
    "nano": (
        {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4, "bias": False}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        {"length": 64, "batch": 12, "steps": 2000, "rate": 1e-3},
    ),
}
"""Models that train on a laptop, each with how it is trained; ``nano`` is nanoGPT's for processors without a GPU."""
ORDINARY = {"length": 128, "batch": 8, "steps": 1000, "rate": 1e-3}
TUNING = {"length": 128, "batch": 8, "steps": 200, "rate": 1e-4}
RANGES = {
    "lora": COUNT,
    "seed": Range(0, 2**63 - 1),
    "steps": Range(1, 2**63 - 1),
    "validate_every": Range(1, 2**63 - 1),
}
"""What the numbers of a training may be, where they are no sizes."""
POSITIONS = {"gpt2": "n_positions"}
"""What architectures call the length of the longest text, where it is not ``max_position_embeddings``."""


@dataclass(frozen=True)
class Settings:
    """What a training is of.

    Attributes:
        text: the file, and the ``digest`` of what it has.
        model: the configuration, as ``config.json`` has it; without sizes that the vocabulary and ``length`` say.
        tokenizer: a ``tokenizer.json``; characters when empty.
        finetune: the folder that training starts from; ``lora`` is the rank of the changes, 0 for all parameters.
        held_out: the share of the text that validation is for.
        precision: what products multiply in.
    """

    text: str
    digest: str
    model: Mapping[str, Any]
    tokenizer: str
    finetune: str
    lora: int
    steps: int
    batch: int
    length: int
    rate: float
    validate_every: int
    held_out: float
    seed: int
    threads: int | None
    precision: str = "f32"

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Those of a folder."""
        path = folder / SETTINGS
        if not path.is_file():
            there = "has no" if folder.is_dir() else "is no folder with a"
            raise FileError(
                f"'{folder}' {there} {SETTINGS}: it is no training of darner train",
                str(path),
                hint="--resume takes the folder that was --out",
            )
        # Names of files need not be characters.
        found = {"precision": "f32", **read_json(path, halves=True)}
        names = {field.name for field in fields(cls)}
        if set(found) != names:
            raise FormatError(f"'{path}' is not what darner train writes")
        made = cls(**found)
        with naming(path):
            check_fields(made, RANGES)
        counts = (made.steps, made.batch, made.length, made.validate_every)
        if min(counts) < 1 or not made.rate > 0 or not 0 <= made.held_out < 1:
            raise FormatError(f"'{path}' has numbers that no training can have")
        with naming(path):
            check_precision(made.precision)
        return made


def digest(text: str) -> str:
    """What tells a text from others."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass
class Run:
    """A training in a folder.

    Attributes:
        folder: where it is, and where the model goes at the end.
        settings: what it is of.
    """

    folder: Path
    settings: Settings

    def begin(self) -> None:
        """Keep in the folder what it takes to go on."""
        if (self.folder / SETTINGS).exists():
            raise ArgumentError(
                f"'{self.folder}' has a training already",
                hint=f"darner train --resume {quote(str(self.folder))} goes on; or name another folder: --out",
            )
        if (self.folder / "config.json").exists():
            raise ArgumentError(
                f"'{self.folder}' has a model already, which would be replaced",
                hint="name another folder: --out",
            )
        # All that may be wrong is found before a folder is there.
        self.windows(self.tokens[0], "random")
        made = self.model
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self._vocabulary_files():
                copyfile(path, self.folder / path.name)
        except OSError as error:
            raise FileError.of("write", self.folder, error) from error
        if isinstance(self.vocabulary, CharVocabulary):
            self.vocabulary.save(self.folder / CHARACTERS)
        self.settings = replace(self.settings, model=made.config.to_hf())
        write_json(self.folder / SETTINGS, asdict(self.settings))

    # ------------------------------------------------------------- its parts

    @cached_property
    def text(self) -> str:
        """What is learned."""
        found = read_text(self.settings.text)
        if not found:
            raise ArgumentError(f"'{self.settings.text}' is empty", hint="--text is what to learn")
        if digest(found) != self.settings.digest:
            raise ArgumentError(
                f"'{self.settings.text}' is not what it was when training began",
                hint="begin another one, with another --out",
            )
        return found

    @cached_property
    def vocabulary(self) -> Any:
        """What makes tokens of it."""
        settings = self.settings
        if (self.folder / SETTINGS).exists():
            return vocabulary_of(self.folder)
        if settings.finetune:
            found = vocabulary_of(load.folder(settings.finetune))
            if found is None:
                raise ArgumentError(f"'{settings.finetune}' has no vocabulary")
            return found
        if settings.tokenizer:
            return SubwordVocabulary(settings.tokenizer)
        return CharVocabulary.from_text(self.text)

    @cached_property
    def tokens(self) -> tuple[Array, Array]:
        """The text, and the part of it that is held out."""
        own = self.vocabulary
        found = (
            own.encode(self.text, False) if isinstance(own, Tokenizer) else own.encode(self.text)
        )
        tokens = np.asarray(found, np.int32)
        cut = len(tokens) - int(len(tokens) * self.settings.held_out)
        return tokens[:cut], tokens[cut:]

    @cached_property
    def lora(self) -> nn.LoRA | None:
        """The low-rank changes, where these are what is learned."""
        rank = self.settings.lora
        return nn.LoRA(rank=rank, alpha=2.0 * rank, targets=TARGETS) if rank else None

    @cached_property
    def pretrained(self) -> load.Pretrained | None:
        """What training starts from."""
        linear = None if self.lora is None else self.lora.linear
        name = self.settings.finetune
        return load.pretrained(name, linear=linear) if name else None

    @cached_property
    def model(self) -> CausalLM:
        """The architecture."""
        if self.pretrained is not None:
            made = self.pretrained.model
        else:
            made = models.from_config(self._sized(self.settings.model))
        if not isinstance(made, CausalLM):
            raise ArgumentError(f"a {made.config.model_type} is no language model")
        return made

    def _sized(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration, with what the text and the length say."""
        size = len(self.vocabulary)
        stated = config.get("vocab_size", size)
        fits = stated == size or (stated > size and not isinstance(self.vocabulary, CharVocabulary))
        if not fits:
            raise ArgumentError(
                f"the model has a vocabulary of {stated}, but there are {size} different tokens",
                hint="leave vocab_size out of the configuration",
            )
        positions = POSITIONS.get(str(config.get("model_type")), "max_position_embeddings")
        return {positions: self.settings.length, **config, "vocab_size": stated}

    def windows(self, tokens: Array, order: Any) -> TokenWindows:
        """Batches of tokens."""
        settings = self.settings
        if len(tokens) <= settings.length:
            raise ArgumentError(
                f"'{settings.text}' has {len(self.text):,} characters, of which {len(tokens):,} tokens are for "
                f"{'training' if order == 'random' else 'validation'}: too few for a length of {settings.length}",
                hint="a longer text, or a smaller --length",
            )
        if order == "random" and settings.batch > len(tokens) - settings.length:
            raise ArgumentError(
                f"a batch of {settings.batch:,} texts of {settings.length} tokens is more than "
                f"'{settings.text}' has: {len(tokens) - settings.length:,} of them begin at different tokens",
                hint="a longer text, or a smaller --batch",
            )
        sizes: dict[str, Any] = {"length": settings.length, "batch": settings.batch}
        if order == "random":
            return TokenWindows(tokens, **sizes, order=order, seed=settings.seed)
        few = tokens[: MEASURED * settings.batch * settings.length + 1]
        return TokenWindows(few, **sizes, order=order, drop_last=False)

    # ------------------------------------------------------------- training

    def trainer(self, closing: ExitStack, *, resume: bool, quiet: bool, hint: str) -> Trainer:
        """The trainer, which ``closing`` closes."""
        settings = self.settings
        own, held_out = self.tokens
        sizes = {"batch": settings.batch, "length": settings.length}
        graph = self.model.training_graph(**sizes)
        schedule = optim.warmup(max(1, settings.steps // 20)) >> optim.cosine(settings.steps, 0.1)
        frozen = {} if self.lora is None else self.lora.frozen(graph)
        if len(frozen) == len(graph.parameters):
            raise ArgumentError(
                f"a {self.model.config.model_type} has no matrices that low-rank changes are for",
                hint="leave --lora out",
            )
        optimizer = optim.AdamW(
            settings.rate,
            beta2=0.99,
            weight_decay=0.0 if settings.finetune else 0.1,
            clip_norm=1.0,
            schedule=schedule,
            multipliers=frozen,
        )
        options: dict[str, Any] = {"optimizer": optimizer}
        options |= {"threads": settings.threads, "seed": settings.seed}
        options["precision"] = settings.precision
        if self.pretrained is None:
            session = build_session(graph, **options)
        else:
            session = self.pretrained.session(graph, mode="train", **options)
        closing.callback(session.close)
        validates = settings.held_out > 0
        made = Trainer(
            session,
            self.windows(own, "random"),
            steps=settings.steps,
            validation=self.windows(held_out, "sequential") if validates else None,
            validate_every=settings.validate_every if validates else None,
            checkpoint=self.folder / CHECKPOINTS,
            checkpoint_every=settings.validate_every,
            resume=resume,
            log=True,
            progress=not quiet,
            resume_hint=hint,
        )
        return closing.enter_context(made)

    def save(self, session: Session) -> None:
        """Save what was learned as a model's folder."""
        if self.lora is not None:
            base = self.settings.finetune
            load.save_adapter(self.folder / ADAPTER, session, self.lora, base=base)
            merged = load.merged(session, self.lora, transposed=TRANSPOSED)
            config = self.settings.model if self.pretrained is None else self.pretrained.config
            load.save(self.folder, config, merged, tied=self.model.tied)
        elif self.pretrained is not None:
            self.pretrained.save(self.folder, session)
        else:
            values = session.parameters()
            load.save(self.folder, self.model.config.to_hf(), values, tied=self.model.tied)

    def sample(self, session: Session, most: int) -> str:
        """Some text, as the model writes it after the beginning of the text."""
        first = [int(token) for token in self.tokens[0][:8]]
        options = {"threads": self.settings.threads, "precision": self.settings.precision}
        generator = Generator(self.model, session, self.vocabulary, options=options)
        drawn = Sampling(temperature=0.8, top_k=40, seed=self.settings.seed)
        try:
            found = generator.generate(first, max_new_tokens=most, sampling=drawn)
        finally:
            generator.close()
        return str(self.vocabulary.decode(first) + found.text)

    def _vocabulary_files(self) -> Sequence[Path]:
        """The files of a tokenizer, and of what else a model's folder has for texts."""
        source = self.settings.finetune or self.settings.tokenizer
        if not source:
            return ()
        place = Path(source) if os.path.isfile(source) else load.folder(source)
        if place.is_file():
            return (place,)
        wanted = Patterns((*COPIED, CHARACTERS))
        return [path for path in sorted(place.iterdir()) if path.is_file() and path.name in wanted]
