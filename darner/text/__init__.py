"""Text from language models: tokenizers, sampling, generation, chat."""
