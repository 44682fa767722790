"""Text from language models: tokenizers, sampling, generation, chat."""

from .generation import Completion, Generator, Vocabulary
from .sampling import GREEDY, Sampling

__all__ = ["GREEDY", "Completion", "Generator", "Sampling", "Vocabulary"]
