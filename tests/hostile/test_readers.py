"""The readers that ``make fuzz`` gives documents to, on some documents that are always the same."""

import os
import random

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory")

if hasattr(os, "memfd_create"):
    from fuzz import mutate
    from fuzz.targets import TARGETS
else:
    TARGETS = {}

SLOW = ("plan", "chat_template", "graph_json", "graph_text")


@pytest.mark.parametrize("name", TARGETS)
def test_documents_that_were_changed_at_random_are_read_or_refused(name):
    target = TARGETS[name]
    change = mutate.mutator(target.change, target.words)
    documents = target.seeds()
    for document in documents:
        target.check(document)
    rng = random.Random(name)
    for seed in range(60 if name in SLOW else 240):
        # Of what was changed before, too, so that changes add up.
        document = change(rng.choice(documents), target.longest, seed)
        target.check(document)
        documents.append(document)
