"""Sessions given wrong values, names, files, and orders of calls."""

import numpy as np

import darner
from darner import (
    ArgumentError,
    DTypeError,
    FormatError,
    RunError,
    ShapeError,
    UnknownNameError,
    optim,
)
from darner.io.atomic import FileError
from darner.io.tensorfile import file_chunks, header_of, stored
from darner.session import ClosedError
from tests.hostile.rows import Table
from tests.hostile.subjects import GOOD, network

ROWS = []
FLOATS = np.ones((4, 6), np.float32)


def table(subject):
    """A table of rows of one subject, all of which are in ``ROWS``."""

    def bad(name, action, error, phrase):
        rows = Table(subject)
        rows(name, action, error, phrase)
        ROWS.extend(rows)

    return bad


def with_input(session, **inputs):
    """Run with other inputs."""
    return session.run({**GOOD, **inputs})


def step_with(session, **inputs):
    """Set inputs, step, and put the inputs back whatever happens."""
    try:
        for name, value in inputs.items():
            session.set_input(name, value)
        session.step()
    finally:
        for name in inputs:
            session.set_input(name, GOOD[name])


def out_of_range(label):
    """Labels of which one is wrong."""
    return np.array([0, 1, label, 2], np.int32)


def wrote(m, name, content):
    """A file in the subject's folder for as long as it is used."""
    path = m.folder / name
    path.write_bytes(content)
    return path


def loaded(m, content, **options):
    """Load a checkpoint of these bytes."""
    path = wrote(m, "bad.safetensors", content)
    try:
        m.s.load_checkpoint(path, **options)
    finally:
        path.unlink()


def tensors(arrays, metadata=None):
    """The bytes of a safetensors file."""
    dense = {name: stored(name, value) for name, value in arrays.items()}
    return b"".join(bytes(chunk) for chunk in file_chunks(header_of(dense, metadata or {}), dense))


def checkpoint(m, *, drop=(), change=None, metadata=None):
    """A foreign file with the session's own parameters, some left out or changed."""
    arrays = {name: np.array(v) for name, v in m.s.parameters().items() if name not in drop}
    return tensors({**arrays, **(change or {})}, metadata)


class Lying:
    """An object that says it is an array, and is not."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        raise BufferError("no")

    def __array__(self, *arguments, **options):
        raise TypeError("no array")


class OnAnotherDevice(Lying):
    """An object in the memory of a GPU."""

    def __dlpack_device__(self):
        return (2, 0)


# fmt: off
for subject in ("trained_on_reference", "trained_on_cpu", "accumulating", "inferring"):
    bad = table(subject)
    # ---- data that only shows when it runs
    bad("label above the classes", lambda m: with_input(m.s, labels=out_of_range(3)), RunError, "3")
    bad("label below the first", lambda m: with_input(m.s, labels=out_of_range(-1)), RunError, "-1")
    bad("label far away", lambda m: with_input(m.s, labels=out_of_range(2**31 - 1)), RunError, "2147483647")
    bad("label set and stepped", lambda m: step_with(m.s, labels=out_of_range(7)), RunError, "7")
    bad("index above the table", lambda m: with_input(m.s, ids=out_of_range(9)), RunError, "9")
    bad("index below the table", lambda m: with_input(m.s, ids=out_of_range(-10)), RunError, "-10")
    bad("index set and stepped", lambda m: step_with(m.s, ids=out_of_range(99)), RunError, "99")
    # ---- values that do not fit
    bad("input of another shape", lambda m: with_input(m.s, x=np.ones((4, 7), np.float32)), ShapeError, "'x'")
    bad("input transposed", lambda m: with_input(m.s, x=np.ones((6, 4), np.float32)), ShapeError, "(6, 4)")
    bad("input of one row too many", lambda m: m.s.set_input("x", np.ones((5, 6), np.float32)), ShapeError, "'x'")
    bad("input of integers for floats", lambda m: m.s.set_input("x", np.ones((4, 6), np.int32)), DTypeError, "i32")
    bad("input of floats for integers", lambda m: m.s.set_input("labels", np.ones(4, np.float32)), DTypeError, "f32")
    bad("input of booleans", lambda m: m.s.set_input("x", np.ones((4, 6), bool)), DTypeError, "bool")
    bad("input too large for its type", lambda m: m.s.set_input("labels", np.full(4, 2**40)), DTypeError, "labels")
    bad("name misspelt", lambda m: m.s.set_input("lables", GOOD["labels"]), UnknownNameError, "labels")
    bad("parameter of another shape", lambda m: m.s.set_parameter("w", np.ones((5, 6), np.float32)), ShapeError, "'w'")
    bad("parameter misspelt", lambda m: m.s.set_parameter("tabel", 1), UnknownNameError, "table")
    bad("several parameters, one wrong", lambda m: m.s.parameters().update({"w": np.zeros((6, 5), np.float32), "v": np.zeros(3, np.float32)}), ShapeError, "'v'")
    bad("checkpoint cut short", lambda m: loaded(m, m.good.read_bytes()[:-7]), FormatError, "bytes")
    bad("checkpoint with a bit flipped", lambda m: loaded(m, flipped(m.good.read_bytes(), -3)), FormatError, "checksum")
    bad("checkpoint with its header flipped", lambda m: loaded(m, flipped(m.good.read_bytes(), 40)), FormatError, "bad.safetensors")
    bad("checkpoint of another model", lambda m: loaded(m, tensors({"q": np.ones(3, np.float32)})), FormatError, "missing")
    bad("checkpoint of another shape", lambda m: loaded(m, checkpoint(m, change={"w": np.ones((6, 6), np.float32)})), FormatError, "'w'")
    bad("checkpoint of another type", lambda m: loaded(m, checkpoint(m, change={"w": np.ones((6, 5), np.float64)})), FormatError, "f64")

bad = table("trained_on_cpu")
bad("input that is text", lambda m: m.s.set_input("x", "hello"), (DTypeError, ShapeError, RunError), "'x'")
bad("input that is None", lambda m: m.s.set_input("x", None), (DTypeError, ShapeError, RunError), "'x'")
bad("input that is ragged", lambda m: m.s.set_input("x", [[1], [2, 3]]), RunError, "'x'")
bad("input of objects", lambda m: m.s.set_input("x", np.full((4, 6), None)), DTypeError, "object")
bad("input of strings in an array", lambda m: m.s.set_input("x", np.full((4, 6), "1")), DTypeError, "'x'")
bad("input of complex numbers", lambda m: m.s.set_input("x", FLOATS.astype(np.complex64)), DTypeError, "c64")
bad("input of a structured array", lambda m: m.s.set_input("x", np.zeros((4, 6), [("a", "f4")])), DTypeError, "'x'")
bad("input of dates", lambda m: m.s.set_input("x", np.zeros((4, 6), "datetime64[s]")), DTypeError, "'x'")
bad("input that is a node", lambda m: m.s.set_input("x", network().node(0)), RunError, "node")
bad("input that lies about itself", lambda m: m.s.set_input("x", Lying()), RunError, "'x'")
bad("input on another device", lambda m: m.s.set_input("x", OnAnotherDevice()), RunError, "device")
bad("input of fractions in a list for integers", lambda m: m.s.set_input("labels", [0.5, 1, 2, 1]), DTypeError, "fractions")
bad("input of a set", lambda m: m.s.set_input("x", {1.0, 2.0}), (DTypeError, ShapeError, RunError), "'x'")
bad("input by a number", lambda m: m.s.set_input(0, FLOATS), UnknownNameError, "0")
bad("input by a list", lambda m: m.s.set_input(["x"], FLOATS), UnknownNameError, "x")
bad("inputs as a list", lambda m: m.s.run([FLOATS]), (ArgumentError, RunError), "inputs")
bad("inputs as an array", lambda m: m.s.run(FLOATS), (ArgumentError, RunError), "inputs")
bad("inputs with a stranger", lambda m: m.s.run({**GOOD, "y": 1}), UnknownNameError, "'y'")
bad("u32 for an input of floats", lambda m: m.s.set_input_u32("x", FLOATS), DTypeError, "u32")
bad("output by a wrong name", lambda m: m.s.output("lgits"), UnknownNameError, "logits")
bad("output by an index above", lambda m: m.s.read_output_by_index(2), ArgumentError, "2")
bad("output by a negative index", lambda m: m.s.read_output_by_index(-1), ArgumentError, "-1")
bad("output by a bool", lambda m: m.s.read_output_by_index(True), ArgumentError, "True")
bad("output by a float", lambda m: m.s.read_output_by_index(1.0), ArgumentError, "1.0")
bad("output of more elements than there are", lambda m: m.s.read_output(99), ArgumentError, "99")
bad("output of a text's length", lambda m: m.s.read_output("all"), ArgumentError, "all")
bad("output into a list", lambda m: m.s.output("logits", [0] * 12), ArgumentError, "NumPy")
bad("output into a read-only array", lambda m: m.s.output("logits", locked((4, 3))), ArgumentError, "written")
bad("output into another type", lambda m: m.s.output("logits", np.zeros((4, 3))), DTypeError, "float64")
bad("output into less room", lambda m: m.s.output("logits", np.zeros(3, np.float32)), ShapeError, "out")
bad("parameter read into less room", lambda m: m.s.get_parameter("w", np.zeros(3, np.float32)), ShapeError, "out")
bad("parameter read by nobody's name", lambda m: m.s.get_parameter("nobody"), UnknownNameError, "nobody")
bad("parameter removed", lambda m: m.s.parameters().pop("w"), ArgumentError, "removed")
bad("parameters cleared", lambda m: m.s.parameters().clear(), ArgumentError, "removed")
bad("state of another type", lambda m: m.s.state().update(count=np.float32(2)), DTypeError, "count")
bad("state of another shape", lambda m: m.s.state().update(count=np.zeros(3, np.int32)), ShapeError, "count")
bad("state that is none", lambda m: m.s.state().__setitem__("nothing", 3), UnknownNameError, "nothing")
bad("gradient that was not kept", lambda m: m.s.read_param_grad("w"), RunError, "gradient")
bad("gradients that were not kept", lambda m: m.s.gradients(), RunError, "gradients")
bad("gradient of a stranger", lambda m: m.s.has_param_grad("q"), UnknownNameError, "'q'")
bad("initialised by a misspelt rule", lambda m: m.s.initialize("kaming"), ArgumentError, "kaiming")
bad("initialised by a number", lambda m: m.s.initialize(3), ArgumentError, "initialiser")
bad("initialised by a seed below 0", lambda m: m.s.initialize(seed=-1), ArgumentError, "seed")
bad("initialised by a function of other shapes", lambda m: m.s.initialize(lambda name, type_, seed: np.zeros(3)), (ShapeError, ArgumentError), "not (9, 6)")
bad("optimizer that is a name", lambda m: m.s.set_optimizer("adam"), ArgumentError, "darner.optim")
bad("optimizer that is a class", lambda m: m.s.set_optimizer(optim.SGD), ArgumentError, "darner.optim")
bad("rate below 0", lambda m: m.s.set_learning_rate(-1.0), ArgumentError, "learning_rate")
bad("rate of NaN", lambda m: m.s.set_learning_rate(float("nan")), ArgumentError, "finite")
bad("rate that is text", lambda m: m.s.set_learning_rate("0.1"), ArgumentError, "number")
bad("rate that is None", lambda m: m.s.set_learning_rate(None), ArgumentError, "number")
bad("rate that is an array", lambda m: m.s.set_learning_rate(np.ones(2)), ArgumentError, "number")
bad("adam with a beta of 1", lambda m: m.s.set_adam(beta1=1.0), ArgumentError, "beta1")
bad("adam with an epsilon below 0", lambda m: m.s.set_adam(epsilon=-1e-8), ArgumentError, "epsilon")
bad("multiplier of nobody", lambda m: m.s.set_lr_multiplier("nobody", 0.5), UnknownNameError, "nobody")
bad("multiplier below 0", lambda m: m.s.set_lr_multiplier("w", -1), ArgumentError, "at least 0")
bad("multiplier of NaN", lambda m: m.s.set_lr_multiplier("w", float("nan")), ArgumentError, "finite")
bad("separate step beside an optimizer", lambda m: m.s.sgd_step(0.1), ArgumentError, "AdamW")
bad("separate Adam beside an optimizer", lambda m: m.s.adam_step(), ArgumentError, "AdamW")
bad("plan of a size that is none", lambda m: m.s.plan(seq=3), UnknownNameError, "seq")
bad("compiled for a size that is none", lambda m: m.s.compile(batch=3), UnknownNameError, "batch")
bad("shared with a graph", lambda m: m.s.share_parameters(network()), ArgumentError, "session")
bad("shared with nothing", lambda m: m.s.share_parameters(None), ArgumentError, "session")
bad("saved in a folder that is not there", lambda m: m.s.save_checkpoint(m.folder / "no" / "x.safetensors"), FileError, "No such file")
bad("saved over a folder", lambda m: m.s.save_checkpoint(m.folder), FileError, "folder")
bad("saved under a name that is too long", lambda m: m.s.save_checkpoint(m.folder / ("x" * 300)), FileError, "long")
bad("saved under a name with a null", lambda m: m.s.save_checkpoint(f"{m.folder}/a\0b"), (FileError, ArgumentError), "null")
bad("loaded from a number", lambda m: m.s.load_checkpoint(10**6), (ArgumentError, FileError), "path")
bad("saved with metadata of numbers", lambda m: m.s.save_checkpoint(m.folder / "y", metadata={"step": 3}), ArgumentError, "metadata")
bad("saved with metadata of surrogates", lambda m: m.s.save_checkpoint(m.folder / "y", metadata={"a": "\ud800"}), ArgumentError, "Unicode")
bad("loaded from nowhere", lambda m: m.s.load_checkpoint(m.folder / "nothing.safetensors"), FileError, "No such file")
bad("loaded from a folder", lambda m: m.s.load_checkpoint(m.folder), FileError, "read")
bad("loaded from a device", lambda m: m.s.load_checkpoint("/dev/zero"), FileError, "regular")
bad("loaded from nothing at all", lambda m: loaded(m, b""), FormatError, "0 bytes")
bad("loaded from a text", lambda m: loaded(m, b"these are not tensors at all"), FormatError, "header")
bad("loaded from a pickle", lambda m: loaded(m, b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x02os"), FormatError, "header")
bad("loaded from a zip", lambda m: loaded(m, b"PK\x03\x04" + bytes(100)), FormatError, "header")
bad("loaded with a header of gigabytes", lambda m: loaded(m, (2**40).to_bytes(8, "little") + b"{}"), FormatError, "header")
bad("loaded of a newer format", lambda m: loaded(m, checkpoint(m, metadata={"darner.format": "99"})), FormatError, "newer")
bad("loaded of an older layout with a strange step", lambda m: loaded(m, checkpoint(m, change={"adam_m.w": np.zeros((6, 5), np.float32)}, metadata={"adam_step": "9" * 30})), FormatError, "step")
bad("loaded of a layout with words for sums", lambda m: loaded(m, checkpoint(m, metadata={"darner.checksums": "", "darner.digest": "x"})), FormatError, "digest")

bad = table("inferring")
bad("inference with an optimizer", lambda m: m.s.set_optimizer(optim.SGD(0.1)), ArgumentError, "inference")
bad("inference with a rate", lambda m: m.s.set_learning_rate(0.1), ArgumentError, "inference")
bad("inference with Adam", lambda m: m.s.set_adam(), ArgumentError, "inference")
bad("inference with a multiplier", lambda m: m.s.set_lr_multiplier("w", 0.5), ArgumentError, "inference")
bad("inference and a separate step", lambda m: m.s.sgd_step(0.1), ArgumentError, "inference")
bad("inference and its gradients", lambda m: m.s.gradients(), RunError, "gradients")

bad = table("without_optimizer")
bad("separate step with a rate below 0", lambda m: m.s.sgd_step(-1.0), ArgumentError, "learning_rate")
bad("separate step with a rate of text", lambda m: m.s.sgd_step("fast"), ArgumentError, "learning_rate")
bad("separate Adam with a beta of 2", lambda m: m.s.adam_step(beta2=2.0), ArgumentError, "beta2")
bad("gradient into another type", lambda m: m.s.read_param_grad("w", np.zeros((6, 5))), DTypeError, "float64")
bad("gradient of nobody", lambda m: m.s.read_param_grad("nobody"), UnknownNameError, "nobody")
bad("loaded with the optimizer's states garbled", lambda m: loaded(m, checkpoint(m, metadata={"session.optimizer_states": "{"})), FormatError, "optimizer")
bad("loaded with the optimizer's states as a number", lambda m: loaded(m, checkpoint(m, metadata={"session.optimizer_states": "7"})), FormatError, "optimizer")
bad("loaded with the optimizer's states by number", lambda m: loaded(m, checkpoint(m, metadata={"session.optimizer_states": "[[]]"})), FormatError, "optimizer")
bad("label above the classes, without an optimizer", lambda m: with_input(m.s, labels=out_of_range(5)), RunError, "5")
bad("shared with a session on another device", lambda m: shared_with(m, device="cpu"), ArgumentError, "cpu")
bad("shared with a closed session", lambda m: shared_with(m, close=True), ArgumentError, "open")
bad("shared with a session of other types", lambda m: shared_with(m, graph=wider()), ShapeError, "'w'")
bad("shared with a session of nothing in common", lambda m: shared_with(m, graph=nothing_common()), ArgumentError, "common")

bad = table("symbolic")
bad("sizes that contradict each other", lambda m: m.s.run({"x": np.ones((3, 4), np.float32), "y": np.ones(8, np.float32)}), (ShapeError, RunError), "'y'")
bad("sizes that have no half", lambda m: m.s.run({"x": np.ones((3, 4), np.float32), "y": np.ones(6, np.float32)}), (ShapeError, RunError), "'y'")
bad("another rank than declared", lambda m: m.s.run({"x": np.ones(12, np.float32), "y": np.ones(7, np.float32)}), ShapeError, "'x'")
bad("plan of a negative size", lambda m: m.s.plan(seq=-3), (ShapeError, ArgumentError), "-3")
bad("plan of half a size", lambda m: m.s.plan(seq=2.5), (ShapeError, ArgumentError), "2.5")
bad("code for a size beyond all memory", lambda m: m.s.compile(seq=2**62), ShapeError, "larger than any memory")
bad("plan of a size of text", lambda m: m.s.plan(seq="many"), (ShapeError, ArgumentError), "many")

bad = table("closed")
bad("step after the end", lambda m: m.s.step(), ClosedError, "closed")
bad("run after the end", lambda m: m.s.run(GOOD), ClosedError, "closed")
bad("input set after the end", lambda m: m.s.set_input("x", FLOATS), ClosedError, "closed")
bad("parameters after the end", lambda m: list(m.s.parameters()), ClosedError, "closed")
bad("a parameter after the end", lambda m: m.s.parameters()["w"], ClosedError, "closed")
bad("a parameter set after the end", lambda m: m.s.set_parameter("w", 1), ClosedError, "closed")
bad("states after the end", lambda m: dict(m.s.state()), ClosedError, "closed")
bad("saved after the end", lambda m: m.s.save_checkpoint(m.folder / "late.safetensors"), ClosedError, "closed")
bad("loaded after the end", lambda m: m.s.load_checkpoint(m.folder / "late.safetensors"), ClosedError, "closed")
bad("loss after the end", lambda m: m.s.read_loss(), ClosedError, "closed")
bad("output after the end", lambda m: m.s.output("logits"), ClosedError, "closed")
bad("gradients after the end", lambda m: m.s.gradients(), ClosedError, "closed")
bad("optimizer after the end", lambda m: m.s.set_optimizer(optim.SGD(0.1)), ClosedError, "closed")
bad("initialised after the end", lambda m: m.s.initialize(), ClosedError, "closed")
bad("compiled after the end", lambda m: m.s.compile(), ClosedError, "closed")
bad("waited for after the end", lambda m: m.s.wait(), ClosedError, "closed")
bad("shared after the end", lambda m: shared_with(m), ClosedError, "closed")
bad("profiled after the end", lambda m: m.s.profile(), ClosedError, "closed")
# fmt: on


def flipped(content, at):
    """Bytes with one bit of one of them changed."""
    changed = bytearray(content)
    changed[at] ^= 4
    return bytes(changed)


def locked(shape):
    """An array that cannot be written."""
    made = np.zeros(shape, np.float32)
    made.flags.writeable = False
    return made


def wider():
    """A network with a parameter of the same name and another size."""
    g = darner.Graph("wider")
    g.set_outputs([g.parameter("w", (6, 9)).sum()])
    return g


def nothing_common():
    """A network without a name in common."""
    g = darner.Graph("stranger")
    g.set_outputs([g.parameter("mine", (6, 9)).sum()])
    return g


def shared_with(m, graph=None, *, close=False, **options):
    """Let the session share with another one."""
    chosen = {"device": "reference", "progress": False, "mode": "infer", **options}
    with darner.build(graph or network(), **chosen) as other:
        if close:
            other.close()
        m.s.share_parameters(other)
