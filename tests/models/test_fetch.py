"""Weights are put into the data folder from a web server on this machine or from a folder, and verified."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from medbn import data, models
from medbn.cli import main

from ..data.server import CONTENT, Server

COMMITTED = Path(__file__).parents[2] / "weights"


@pytest.fixture
def known(monkeypatch):
    """Make "tiny" the name of the bytes that the server sends."""
    weights = models.Weights(
        "tiny", "resnet-small", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "none of them", "nothing"
    )
    monkeypatch.setitem(models.WEIGHTS, "tiny", weights)
    monkeypatch.setenv("no_proxy", "*")
    return weights


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "tiny.safetensors").write_bytes(CONTENT)
    return folder


def test_weights_come_from_a_server_once(known, tmp_path):
    pytest.importorskip("pooch")
    with Server() as server:
        address = server.url.rpartition("/")[0]
        path = models.fetch("tiny", tmp_path / "data", source=address)
        assert path == tmp_path / "data" / "models" / "tiny.safetensors"
        assert path.read_bytes() == CONTENT
        assert models.fetch("tiny", tmp_path / "data", source=address) == path
        assert len(server.log) == 1


def test_another_file_on_the_server_is_refused_and_nothing_is_kept(known, tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setitem(models.WEIGHTS, "tiny", replace(known, sha256="0" * 64))
    with Server() as server, pytest.raises(data.DownloadError, match="sha256 0000") as error:
        models.fetch("tiny", tmp_path, source=server.url.rpartition("/")[0])
    assert known.sha256 in str(error.value)
    assert list((tmp_path / "models").iterdir()) == []


def test_weights_come_from_a_folder_and_replace_a_damaged_file(known, source, tmp_path):
    target = tmp_path / "models" / "tiny.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"damaged")
    assert models.fetch("tiny", tmp_path, source=source) == target
    assert target.read_bytes() == CONTENT


def test_a_wrong_file_in_a_folder_is_refused_and_the_old_one_stays(known, source, tmp_path):
    (source / "tiny.safetensors").write_bytes(b"something else")
    target = tmp_path / "models" / "tiny.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"put here by hand")
    with pytest.raises(ValueError, match=known.sha256):
        models.fetch("tiny", tmp_path, source=source)
    assert target.read_bytes() == b"put here by hand"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet26-cifar"], "Did you mean 'resnet26-cifar10'"),
        (["resnet26-cifar10"], "--from"),
        (["resnet26-cifar10", "--from", "nowhere"], "resnet26-cifar10.safetensors"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["models", "fetch", *arguments, "--root", str(tmp_path / "data")]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.strip().count("\n") == 0
    assert not (tmp_path / "data").exists()


def test_the_command_says_where_the_weights_are(known, source, tmp_path, capsys):
    assert main(["models", "fetch", "tiny", "--from", str(source), "--root", str(tmp_path)]) == 0
    assert str(tmp_path / "models" / "tiny.safetensors") in capsys.readouterr().out


def test_known_weights_name_a_model_and_a_checksum():
    for name, weights in models.WEIGHTS.items():
        assert name == weights.name
        assert weights.model in models.available()
        assert re.fullmatch("[0-9a-f]{64}", weights.sha256)
        assert weights.accuracy
        assert weights.origin


@pytest.mark.skipif(not COMMITTED.is_dir(), reason="not in a clone of the repository")
def test_committed_weights_have_their_checksum_and_half_precision(tmp_path):
    """They are verified as a reader gets them; convolutions, which are most of a model, take two bytes per number."""
    safetensors = pytest.importorskip("safetensors.torch")
    for file in COMMITTED.glob("*.safetensors"):
        weights = models.WEIGHTS[file.stem]
        assert file.stat().st_size == weights.size
        tensors = safetensors.load_file(models.fetch(file.stem, tmp_path, source=COMMITTED))
        assert {str(value.dtype) for value in tensors.values() if value.dim() == 4} == {"torch.float16"}
