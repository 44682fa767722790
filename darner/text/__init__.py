"""Text from language models: tokenizers, sampling, generation, chat."""

from .generation import Completion, Generator, Vocabulary
from .sampling import GREEDY, Sampling
from .tokenizer import MissingPackageError, Tokenizer

__all__ = [
    "GREEDY",
    "Completion",
    "Generator",
    "MissingPackageError",
    "Sampling",
    "Tokenizer",
    "Vocabulary",
]
