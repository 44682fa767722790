"""Text from language models: tokenizers, sampling, generation, chat."""

from ..data.vocabulary import Vocabulary
from .embedding import Embedder
from .generation import Completion, Generator
from .pretrained import closing, generate, load, sampling_of, stream
from .sampling import GREEDY, Sampling
from .tokenizer import Tokenizer

__all__ = [
    "GREEDY",
    "Completion",
    "Embedder",
    "Generator",
    "Sampling",
    "Tokenizer",
    "Vocabulary",
    "closing",
    "generate",
    "load",
    "sampling_of",
    "stream",
]
