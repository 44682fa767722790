"""One target under atheris: ``python -m fuzz.one graph_text finds corpus -max_total_time=60``.

Arguments after the folder of finds are libFuzzer's. An exception that the contract forbids is written down once for each line
that raises it, with the smallest input that does, and fuzzing goes on; only what takes too long or too much memory ends it.
"""

import sys
import traceback
from hashlib import blake2b
from pathlib import Path

import atheris

# Others are not instrumented, which is slow and not ours to steer by; but templates are programs that Jinja reads.
WITHIN = ["darner", "jinja2"] if "chat_template" in sys.argv[1:2] else ["darner"]
with atheris.instrument_imports(include=WITHIN):
    if "jinja2" in WITHIN:
        import jinja2.sandbox  # noqa: F401
    from . import mutate
    from .targets import TARGETS, Target


class Finds:
    """Inputs that raise what they should not, by where it is raised."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target = folder, target
        self.sizes: dict[str, int] = {}

    def check(self, document: bytes) -> None:
        """Run the target, and keep what it raises."""
        try:
            self.target.check(document)
        except Exception as error:
            self._keep(document, error)

    def _keep(self, document: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/darner/" in frame.filename] or frames
        where = f"{type(error).__name__} {own[-1].filename} {own[-1].lineno}"
        key = blake2b(where.encode(), digest_size=6).hexdigest()
        if len(document) >= self.sizes.get(key, sys.maxsize):
            return
        self.sizes[key] = len(document)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{key}.input").write_bytes(document)
        shown = "".join(traceback.format_exception(error))
        (self.folder / f"{key}.txt").write_text(f"{where}\n\n{shown}", errors="replace")


def main() -> None:
    """Run the target that the first argument names."""
    name, folder, *options = sys.argv[1:]
    chosen = TARGETS[name]
    finds = Finds(Path(folder), chosen)
    change = mutate.mutator(chosen.change, chosen.words)
    atheris.Setup([f"fuzz {name}", *options], finds.check, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
