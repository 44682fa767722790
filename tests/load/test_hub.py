"""Folders and names of the hub, without a network."""

import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from darner import MissingPackageError, load
from darner.graph.errors import ArgumentError
from darner.io.atomic import FileError
from darner.load import hub


def test_an_existing_folder_is_taken_as_it_is(tmp_path, monkeypatch):
    assert load.folder(tmp_path) == tmp_path
    assert load.folder(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path.parent)
    assert load.folder(tmp_path.name).samefile(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert load.folder(f"~/{tmp_path.name}") == tmp_path


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "a/b/c", "../none", "-x/y", "a b"])
def test_what_is_neither_folder_nor_name_is_told(name):
    with pytest.raises(FileError, match=r"there is no folder '.*', and it is no name of a model"):
        load.folder(name)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(
        FileError, match=r"is a file, not the folder of a model; load.weights reads"
    ):
        load.folder(tmp_path / "x.safetensors")
    with pytest.raises(ArgumentError, match="a folder or a name of the hub, got ''"):
        load.folder("")


def test_a_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError) as caught:
        load.folder("org/model")
    message = str(caught.value)
    assert message.startswith("there is no folder 'org/model' in ")
    assert "so the model 'org/model' of the hub was looked for" in message
    assert "this takes the package 'huggingface_hub', which is not installed" in message
    assert "pip install 'darner[hub]'" in message


def test_only_what_is_needed_is_asked_for(tmp_path, monkeypatch):
    calls = []

    def download(name, **options):
        calls.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load.folder("org/model", revision="v2") == tmp_path
    [(name, options)] = calls
    assert (name, options["revision"]) == ("org/model", "v2")
    kept = huggingface_hub.utils.filter_repo_objects(
        [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "vocab.txt",
            "merges.txt",
            "chat_template.jinja",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "onnx/config.json",
            "README.md",
        ],
        allow_patterns=options["allow_patterns"],
        ignore_patterns=options["ignore_patterns"],
    )
    assert list(kept)[-1] == "chat_template.jinja"
    assert len(hub.WANTED) == len(options["allow_patterns"])


def failing(error):
    def download(*_, **__):
        raise error

    return download


def made(kind):
    """An error of the hub, with as much of an answer as it looks at."""
    return kind("said no", response=SimpleNamespace(headers={}, request=None, status_code=404))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (made(errors.GatedRepoError), "its owner asks for consent first; give it at https://hug"),
        (made(errors.RepositoryNotFoundError), "none of this name, or it is private; check the"),
        (made(errors.RevisionNotFoundError), "it has no such revision"),
        (errors.LocalEntryNotFoundError("x"), "not in the cache, and the hub cannot be reached; d"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("proxy"), "proxy"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_refusals_of_the_hub_say_what_to_do(monkeypatch, error, message):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing(error))
    with pytest.raises(load.HubError, match=f"the model 'org/model' of the hub.*: .*{message}"):
        load.folder("org/model")


def cached(root, monkeypatch):
    """A cache of the hub's that holds one model, and no connection."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = root / "models--org--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "line"}')
    refs = root / "models--org--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    return snapshot


def test_offline_the_cache_is_used(tmp_path, monkeypatch):
    snapshot = cached(tmp_path, monkeypatch)
    assert load.folder("org/model").samefile(snapshot)
    assert load.config(load.folder("org/model")) == {"model_type": "line"}
    with pytest.raises(load.HubError, match="not in the cache, and the hub cannot be reached"):
        load.folder("org/other")
