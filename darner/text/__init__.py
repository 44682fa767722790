"""Text from language models: tokenizers, sampling, generation, chat."""

from ..data.vocabulary import Vocabulary
from .chat import ChatTemplateError
from .embedding import Embedder
from .generation import Completion, Generator
from .pretrained import closing, generate, load, sampling_of, stream
from .sampling import GREEDY, Sampling
from .tokenizer import Tokenizer

__all__ = [
    "GREEDY",
    "ChatTemplateError",
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
