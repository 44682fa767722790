"""Files that are cut, damaged, forged, or something else altogether."""

import gzip
import json
import os
import struct

import numpy as np

import darner
from darner import ArgumentError, DTypeError, FormatError, Graph, RunError, ShapeError, data, load
from darner.io.atomic import FileError
from darner.io.tensorfile import read_tensors
from darner.lower import plan_json
from darner.lower.plan import Plan
from darner.session import checkpoint
from tests.hostile.rows import Table

bad = Table("files")
ROWS = bad


def file(folder, content, name="bad.bin"):
    """A file of these bytes."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def header(table, body=b""):
    """A safetensors file with this header: a table, or bytes as they are."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    """A tensor of a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def tensors(table, body=bytes(8)):
    """Read a safetensors file of one tensor or more."""
    return lambda folder: read_tensors(file(folder, header(table, body)))


def raw(content):
    """Read bytes as a safetensors file."""
    return lambda folder: read_tensors(file(folder, content))


def idx(content, **options):
    """Read bytes as an IDX file."""
    return lambda folder: data.read_idx(file(folder, content), **options)


def npy(content, name="bad.npy"):
    """Open bytes as a file of NumPy's."""
    return lambda folder: data.Arrays({"x": file(folder, content, name)}, batch=1)


def saved(array):
    """The bytes of an .npy file."""
    import io

    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def plan(change=None, **document):
    """Read a plan's document, changed."""

    def read(folder):
        found = json.loads(small_plan())
        if change is not None:
            change(found["plan"])
            found = json.loads(plan_json.signed(found["plan"]))
        return Plan.from_json(json.dumps({**found, **document}))

    return read


def small_plan():
    """The text of the plan of a line."""
    g = darner.Graph("line")
    x = g.input("x", (4,))
    g.set_outputs([(g.parameter("w", ()) * x).sum()])
    with darner.build(g, device="reference", mode="infer", progress=False) as session:
        return session.plan().to_json()


def setting(*path, to):
    """A change of one place in a document."""

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def signed_checkpoint(**metadata):
    """A checkpoint whose metadata is changed after it was signed."""

    def read(folder):
        path = folder / "signed.safetensors"
        saved_one = checkpoint.Checkpoint({"w": np.ones(2, np.float32)})
        checkpoint.save_checkpoint(path, saved_one)
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        table = json.loads(content[8 : 8 + length])
        table["__metadata__"] |= metadata
        path.write_bytes(header(table, content[8 + length :]))
        return checkpoint.load_checkpoint(path)

    return read


def without(*keys):
    """A checkpoint from whose metadata something was taken."""

    def read(folder):
        path = folder / "without.safetensors"
        checkpoint.save_checkpoint(path, checkpoint.Checkpoint({"w": np.ones(2, np.float32)}))
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        table = json.loads(content[8 : 8 + length])
        for key in keys:
            del table["__metadata__"][key]
        path.write_bytes(header(table, content[8 + length :]))
        return checkpoint.load_checkpoint(path)

    return read


def tokens(content, name="t.bin", **options):
    """Open bytes as a file of tokens."""
    return lambda folder: data.open_tokens(file(folder, content, name), **options)


def vocabulary(content):
    """Load bytes as a vocabulary."""
    return lambda folder: data.CharVocabulary.load(file(folder, content, "v.json"))


def tokenizer(content):
    """Load bytes as a tokenizer."""
    return lambda folder: data.SubwordVocabulary(file(folder, content, "tokenizer.json"))


def pipe(folder):
    """A pipe that nobody writes to."""
    path = folder / "pipe"
    if not path.exists():
        os.mkfifo(path)
    return path


IMAGES = struct.pack(">HBBI", 0, 8, 1, 4) + bytes(4)

# fmt: off
# ---- safetensors
bad("tensors of nothing", raw(b""), FormatError, "0 bytes")
bad("tensors of seven bytes", raw(bytes(7)), FormatError, "7 bytes")
bad("tensors with a header of nothing", raw(bytes(8)), FormatError, "header")
bad("tensors with a header beyond the end", raw((99).to_bytes(8, "little") + b"{}"), FormatError, "99")
bad("tensors with a header of exabytes", raw(b"\xff" * 16), FormatError, "header")
bad("tensors with a header of a list", raw(header(b"[]")), FormatError, "'{'")
bad("tensors with a header after a space", raw(header(b" {}")), FormatError, "'{'")
bad("tensors with a header of half a word", raw(header(b'{"w": tru}')), FormatError, "JSON")
bad("tensors with a header in Latin-1", raw(header('{"é": 1}'.encode("latin-1"))), FormatError, "header")
bad("tensors with a name twice", raw(header(b'{"w":{},"w":{}}')), FormatError, "twice")
bad("tensors with NaN in the header", raw(header(b'{"w": NaN}')), FormatError, "bad.bin")
bad("tensors with a deep header", raw(header(b'{"w":' + b"[" * 50_000)), FormatError, "header")
bad("tensors with a surrogate in a name", raw(header(b'{"\\ud800": 3}')), FormatError, "JSON")
bad("tensors with metadata of numbers", tensors({"__metadata__": {"a": 1}}, b""), FormatError, "metadata")
bad("tensors with metadata of a list", tensors({"__metadata__": []}, b""), FormatError, "metadata")
bad("tensor without a shape", tensors({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), FormatError, "entry")
bad("tensor with an entry too many", tensors({"w": entry(strides=[1])}), FormatError, "entry")
bad("tensor that is a number", tensors({"w": 3}), FormatError, "entry")
bad("tensor of an unknown type", tensors({"w": entry("Q4_0")}), FormatError, "Q4_0")
bad("tensor of a type that is a list", tensors({"w": entry(["F32"])}), FormatError, "type")
bad("tensor of a negative size", tensors({"w": entry(shape=(-2,))}), FormatError, "shape")
bad("tensor of a half size", tensors({"w": entry(shape=(2.0,))}), FormatError, "shape")
bad("tensor of a true size", tensors({"w": entry(shape=(True, 2))}), FormatError, "shape")
bad("tensor of too many axes", tensors({"w": entry(shape=(1,) * 65)}), FormatError, "shape")
bad("tensor whose bytes overflow", tensors({"w": entry(shape=(2**62, 4, 0), offsets=(0, 0))}, b""), FormatError, "shape")
bad("tensor with three offsets", tensors({"w": entry(offsets=(0, 4, 8))}), FormatError, "offsets")
bad("tensor with offsets backwards", tensors({"w": entry(offsets=(8, 0))}), FormatError, "offsets")
bad("tensor with offsets below 0", tensors({"w": entry(offsets=(-8, 0))}), FormatError, "offsets")
bad("tensor with offsets beyond the end", tensors({"w": entry(offsets=(8, 16))}), FormatError, "begins")
bad("tensor larger than its offsets", tensors({"w": entry(shape=(3,))}), FormatError, "needs 12")
bad("tensors that overlap", tensors({"a": entry(offsets=(0, 8)), "b": entry(offsets=(4, 12))}, bytes(12)), FormatError, "begins")
bad("tensors with a gap", tensors({"a": entry(offsets=(0, 8)), "b": entry(offsets=(12, 20))}, bytes(20)), FormatError, "begins")
bad("tensors with bytes left over", tensors({"w": entry()}, bytes(9)), FormatError, "9 are there")
bad("booleans of other bytes", tensors({"w": entry("BOOL", (8,))}, b"\2" * 8), FormatError, "0 and 1")
bad("tensors in a folder", lambda folder: read_tensors(folder), FileError, "read")
bad("tensors in nothing", lambda folder: read_tensors(folder / "nothing"), FileError, "No such file")
bad("tensors in a pipe", lambda folder: read_tensors(pipe(folder)), FileError, "regular")
bad("tensors in a loop of links", lambda folder: read_tensors(loop(folder)), FileError, "loop")
# ---- checkpoints
bad("checkpoint of a newer format", signed_checkpoint(**{"darner.format": "2"}), FormatError, "newer")
bad("checkpoint of no format", signed_checkpoint(**{"darner.format": "one"}), FormatError, "digest")
bad("checkpoint of a format in other digits", signed_checkpoint(**{"darner.format": "٣"}), FormatError, "newer")
bad("checkpoint with other sums", signed_checkpoint(**{"darner.checksums": "0"}), FormatError, "digest")
bad("checkpoint with a step too many", signed_checkpoint(step="7"), FormatError, "digest")
bad("checkpoint without a digest", without("darner.digest"), FormatError, "digest")
bad("checkpoint without its format", without("darner.format"), FormatError, "digest")
bad("checkpoint of a list", lambda folder: checkpoint.save_checkpoint(folder / "c", checkpoint.Checkpoint({"w": [1.0]})), ArgumentError, "list")
bad("checkpoint of objects", lambda folder: checkpoint.save_checkpoint(folder / "c", checkpoint.Checkpoint({"w": np.array([None])})), TypeError, "object")
bad("checkpoint by a number", lambda folder: checkpoint.save_checkpoint(folder / "c", checkpoint.Checkpoint({3: np.ones(2)})), ArgumentError, "name")
# ---- IDX
bad("IDX of nothing", idx(b""), FormatError, "0 bytes")
bad("IDX of three bytes", idx(bytes(3)), FormatError, "3 bytes")
bad("IDX of another magic", idx(b"\x01\0\x08\x01" + bytes(8)), FormatError, "begins")
bad("IDX of another type", idx(b"\0\0\x07\x01" + bytes(8)), FormatError, "begins")
bad("IDX that ends in its sizes", idx(b"\0\0\x08\x03" + bytes(5)), FormatError, "header")
bad("IDX with a byte too few", idx(IMAGES[:-1]), FormatError, "takes 4")
bad("IDX with a byte too many", idx(IMAGES + b"\0"), FormatError, "takes 4")
bad("IDX of sizes beyond all memory", idx(b"\0\0\x0e\x04" + b"\xff" * 16), FormatError, "takes")
bad("IDX of 255 axes", idx(b"\0\0\x08\xff" + struct.pack(">255I", *[1] * 255) + b"\0"), FormatError, "axes")
bad("IDX of no elements on many axes", idx(b"\0\0\x08\x04" + b"\xff" * 12 + bytes(4)), FormatError, "IDX")
bad("IDX of another rank", idx(IMAGES, rank=3), FormatError, "3")
bad("IDX gzipped and cut", idx(gzip.compress(IMAGES)[:-9]), FormatError, "gzip")
bad("IDX gzipped and flipped", idx(gzip.compress(IMAGES)[:-6] + b"\1\2\3\4\5\6"), FormatError, "gzip")
bad("IDX that should be gzipped", idx(IMAGES, gzipped=True), FormatError, "gzip")
bad("IDX in nothing", lambda folder: data.read_idx(folder / "no"), FileError, "No such file")
bad("IDX in a folder", lambda folder: data.read_idx(folder), FileError, "read")
bad("digits of another folder", lambda folder: data.mnist(folder), FileError, "train")
# ---- NumPy's files
bad("array of nothing", npy(b""), FormatError, "NumPy")
bad("array of text", npy(b"hello there, this is no array"), FormatError, "NumPy")
bad("array cut short", npy(saved(np.ones(9))[:-5]), FormatError, "NumPy")
bad("array that runs code", npy(saved(np.array([{"a": 1}], object))), FormatError, "NumPy")
bad("array of a version to come", npy(b"\x93NUMPY\x09\x00" + bytes(20)), FormatError, "NumPy")
bad("array with a header of code", npy(b"\x93NUMPY\x01\x00\x10\x00" + b"__import__('os')"), FormatError, "NumPy")
bad("arrays of a broken zip", lambda folder: data.Arrays(file(folder, b"PK\x03\x04broken", "a.npz"), batch=1), FormatError, "NumPy")
bad("arrays of one without a name", lambda folder: data.Arrays(file(folder, saved(np.ones(3)), "a.npz"), batch=1), FormatError, "name")
# ---- tokens and texts
bad("tokens of an odd length", tokens(b"\1\2\3"), FormatError, "3 bytes")
bad("tokens of nothing", tokens(b""), FormatError, "empty")
bad("tokens of another width", tokens(b"\1\2\3\4", dtype="u64"), ArgumentError, "u64")
bad("tokens of fractions", tokens(saved(np.ones(3)), "t.npy"), (ArgumentError, DTypeError, ShapeError), "whole")
bad("tokens of a matrix", tokens(saved(np.ones((3, 3), np.int32)), "t.npy"), (ArgumentError, DTypeError, ShapeError), "row")
bad("tokens written under another name", lambda folder: data.write_tokens(folder / "t.txt", [[1]]), ArgumentError, ".npy")
bad("tokens that do not fit", lambda folder: data.write_tokens(folder / "t.bin", [[1], [70000]]), ArgumentError, "70000")
bad("tokens below 0", lambda folder: data.write_tokens(folder / "t.bin", [[-1]]), ArgumentError, "-1")
bad("tokens that are words", lambda folder: data.write_tokens(folder / "t.bin", [["a"]]), (ArgumentError, DTypeError, RunError), "piece 0")
bad("text that is no UTF-8", lambda folder: data.read_text(file(folder, b"\xff\xfe\x00")), FormatError, "UTF-8")
bad("text in a folder", lambda folder: data.read_text(folder), FileError, "read")
bad("text gzipped twice and cut", lambda folder: data.read_text(file(folder, gzip.compress(b"x" * 99)[:20])), FormatError, "gzip")
bad("vocabulary of nothing", vocabulary(b""), FormatError, "JSON")
bad("vocabulary of a list", vocabulary(b"[]"), FormatError, "vocabulary")
bad("vocabulary that is deep", vocabulary(b"[" * 99_999), FormatError, "deep")
bad("vocabulary of numbers", vocabulary(b'{"format": "darner.characters", "characters": [1]}'), FormatError, "vocabulary")
bad("vocabulary of another format", vocabulary(b'{"format": "bpe", "characters": "ab"}'), FormatError, "vocabulary")
bad("vocabulary with a character twice", vocabulary(b'{"format": "darner.characters", "characters": "aa"}'), (FormatError, ArgumentError), "twice")
bad("vocabulary without a character", vocabulary(b'{"format": "darner.characters", "characters": ""}'), (FormatError, ArgumentError), "character")
bad("vocabulary that is no UTF-8", vocabulary(b"\xff\xfe"), FormatError, "v.json")
bad("tokenizer of nothing", tokenizer(b""), FormatError, "tokenizer")
bad("tokenizer of another JSON", tokenizer(b"{}"), FormatError, "tokenizer")
bad("tokenizer of a list", tokenizer(b"[1, 2]"), FormatError, "tokenizer")
bad("tokenizer in nothing", lambda folder: data.SubwordVocabulary(folder / "no.json"), FileError, "No such file")
# ---- plans
bad("plan of nothing", lambda folder: Plan.from_json(""), FormatError, "not a plan")
bad("plan of a number", lambda folder: Plan.from_json("3"), FormatError, "not a plan")
bad("plan of bytes", lambda folder: Plan.from_json(b"{}"), FormatError, "text")
bad("plan cut short", lambda folder: Plan.from_json(small_plan()[:-40]), FormatError, "cut off")
bad("plan of a graph", lambda folder: Plan.from_json(Graph("g").to_json()), FormatError, "not a plan")
bad("plan that is deep", lambda folder: Plan.from_json("[" * 99_999), FormatError, "deep")
bad("plan of the future", plan(version=99), FormatError, "99")
bad("plan of version 0", plan(version=0), FormatError, "0")
bad("plan of a version of text", plan(version="1"), FormatError, "version")
bad("plan with another checksum", plan(checksum="0" * 32), FormatError, "checksum")
bad("plan with a content of a list", plan(plan=[]), FormatError, "plan")
bad("plan forged: no buffers", plan(setting("buffers", to=[])), FormatError, "buffer 0")
bad("plan forged: a place that is none", plan(setting("buffers", 0, "place", to="disk")), FormatError, "disk")
bad("plan forged: a type that is none", plan(setting("buffers", 0, "type", to=99)), FormatError, "99")
bad("plan forged: a type of text", plan(setting("types", 0, to="f33[2]")), FormatError, "type")
bad("plan forged: an output that is none", plan(setting("outputs", to=[99])), FormatError, "99")
bad("plan forged: an output below 0", plan(setting("outputs", to=[-1])), FormatError, "-1")
bad("plan forged: a kernel's operand that is none", plan(setting("kernels", 0, "operands", to=[77])), FormatError, "operands")
bad("plan forged: a kernel's spec that is none", plan(setting("kernels", 0, "spec", to="nothing")), FormatError, "nothing")
bad("plan forged: an offset below 0", plan(setting("buffers", -1, "offset", to=-64)), FormatError, "-64")
bad("plan forged: an offset beyond the arena", plan(setting("arena_bytes", to=0)), FormatError, "arena")
bad("plan forged: an arena of text", plan(setting("arena_bytes", to="1")), FormatError, "arena_bytes")
bad("plan forged: a field too many", plan(setting("colour", to=1)), FormatError, "colour")
bad("plan forged: a kind that is none", plan(lambda content: next(iter(content["specs"].values())).update(kind="shell")), FormatError, "shell")
bad("plan forged: a body of nothing", plan(lambda content: next(iter(content["specs"].values())).update(body={})), FormatError, "format")
bad("plan forged: names of outputs that are numbers", plan(setting("output_names", to=[3])), FormatError, "output_names")
bad("plan that is no text", lambda folder: Plan.load(file(folder, b"\xff\xfe")), FormatError, "not text")
# ---- weights
bad("weights in nothing", lambda folder: load.weights(folder / "no.safetensors"), FileError, "No such file")
bad("weights in an empty folder", lambda folder: load.weights(sub(folder, "empty")), FileError, "model.safetensors")
bad("weights in a pickle", lambda folder: load.weights(file(folder, b"\x80\x04", "m.bin")), FormatError, "pickle")
bad("weights in a folder of pickles", lambda folder: load.weights(sub(folder, "pickles", **{"pytorch_model.bin": b"\x80"})), FormatError, "pickle")
bad("weights asked for by a wrong name", lambda folder: load.weights(file(folder, header({"w": entry()}, bytes(8)), "w.safetensors"))["v"], KeyError, "'v'")
bad("tokenizer that is no UTF-8", tokenizer(b"\xff\xfe\x00"), FormatError, "tokenizer")
# fmt: on


def loop(folder):
    """A link to itself."""
    path = folder / "loop"
    if not path.is_symlink():
        path.symlink_to(path)
    return path


def sub(folder, name, **content):
    """A folder with these files."""
    made = folder / name
    made.mkdir(exist_ok=True)
    for file_name, value in content.items():
        (made / file_name).write_bytes(value)
    return made
