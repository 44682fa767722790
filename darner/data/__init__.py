"""Batches of examples for training: arrays, files, texts, pictures; in an order that can be resumed.

>>> import numpy as np
>>> from darner import data
>>> source = data.Arrays({"x": np.arange(8)}, batch=2)
>>> for batch in source:
...     place = source.state()
...     break
>>> place
{'epoch': 0, 'position': 1, 'seed': 0, 'batches': 4}
>>> rest = [batch["x"].tolist() for batch in source]
>>> source.restore(place)
>>> rest == [batch["x"].tolist() for batch in source]
True
"""

from .arrays import Arrays, DataLoader
from .batches import Batch, Batches, Epochs, random_order
from .drawn import drawn_digits
from .filearrays import FileArray, open_array, open_arrays
from .idx import read_idx
from .mnist import Digits, MnistDataset, mnist, mnist_folder, mnist_places
from .prefetch import Prefetcher, prefetch
from .texts import read_text, shakespeare
from .tokens import TokenWindows, open_tokens, write_tokens
from .vocabulary import CharVocabulary, SubwordVocabulary, Vocabulary

__all__ = [
    "Arrays",
    "Batch",
    "Batches",
    "CharVocabulary",
    "DataLoader",
    "Digits",
    "Epochs",
    "FileArray",
    "MnistDataset",
    "Prefetcher",
    "SubwordVocabulary",
    "TokenWindows",
    "Vocabulary",
    "drawn_digits",
    "mnist",
    "mnist_folder",
    "mnist_places",
    "open_array",
    "open_arrays",
    "open_tokens",
    "prefetch",
    "random_order",
    "read_idx",
    "read_text",
    "shakespeare",
    "write_tokens",
]
