"""Text from language models: tokenizers, sampling, generation, chat."""

from .embedding import Embedder
from .generation import Completion, Generator, Vocabulary
from .pretrained import closing, generate, load, sampling_of, stream
from .sampling import GREEDY, Sampling
from .tokenizer import MissingPackageError, Tokenizer

__all__ = [
    "GREEDY",
    "Completion",
    "Embedder",
    "Generator",
    "MissingPackageError",
    "Sampling",
    "Tokenizer",
    "Vocabulary",
    "closing",
    "generate",
    "load",
    "sampling_of",
    "stream",
]
