"""Files of weights: which are read, which are refused, and that a refused file leaves the model unchanged."""

import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from medbn import models

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

KEYS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "keys").glob("*.json")}


class Payload:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.fixture
def model():
    return models.get("resnet-small")


@pytest.fixture
def other():
    return models.get("resnet-small")


def test_the_parameters_are_loaded_and_in_their_own_dtype(model, other, tmp_path):
    state = {k: v.half() if v.is_floating_point() else v for k, v in other.state_dict().items()}
    save_file(state, tmp_path / "half.safetensors")
    returned = models.load(model, tmp_path / "half.safetensors")
    for name, value in model.state_dict().items():
        assert value.dtype == other.state_dict()[name].dtype
        assert torch.equal(value, state[name].to(value.dtype))
    assert returned == models.fingerprint(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_a_checkpoint_with_the_published_names_loads_strictly(name, tmp_path):
    model = models.get(name)
    state = {
        key: torch.tensor(7) if key.endswith("num_batches_tracked") else torch.rand(shape).half()
        for key, shape in KEYS[name].items()
    }
    save_file(state, tmp_path / "weights.safetensors")
    models.load(model, tmp_path / "weights.safetensors")
    assert all(torch.equal(value, state[key].to(value.dtype)) for key, value in model.state_dict().items())


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "net"])
@pytest.mark.parametrize("prefix", ["", "module.", "module.model."])
def test_wrappers_and_prefixes_are_removed(wrapper, prefix, model, other, tmp_path):
    state = OrderedDict((prefix + name, value) for name, value in other.state_dict().items())
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "weights.pt")
    assert models.load(model, tmp_path / "weights.pt") == models.fingerprint(other)


def test_checkpoints_without_batch_counters_load(model, other, tmp_path):
    state = {k: v for k, v in other.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pt")
    assert models.load(model, tmp_path / "old.pt") == models.fingerprint(other)


def test_constants_in_the_file_replace_the_models(model, other, tmp_path):
    mu, sigma = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    state = {**other.state_dict(), "mu": nn.Parameter(mu.view(1, 3, 1, 1)), "sigma": sigma.view(1, 3, 1, 1)}
    torch.save({"state_dict": state}, tmp_path / "robustbench.pt")
    models.load(model, tmp_path / "robustbench.pt")
    assert not model.normalise.mean.requires_grad
    expected = models.get("resnet-small", mean=mu, std=sigma)
    expected.load_state_dict(other.state_dict())
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(model(x), expected(x))
    assert not torch.equal(model(x), other(x))


def test_constants_of_another_number_of_channels_are_refused(model, other, tmp_path):
    torch.save({**other.state_dict(), "mu": torch.zeros(1, 1, 1, 1)}, tmp_path / "weights.pt")
    before = models.fingerprint(model)
    with pytest.raises(ValueError, match=r"mu is \(1, 1"):
        models.load(model, tmp_path / "weights.pt")
    assert models.fingerprint(model) == before


def test_errors_name_a_missing_file(model, tmp_path):
    for suffix in ("pt", "safetensors"):
        with pytest.raises(FileNotFoundError, match=f"nowhere.{suffix}"):
            models.load(model, tmp_path / f"nowhere.{suffix}")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        models.load(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        models.metadata(tmp_path / "nowhere.safetensors")


def pickled(content, path):
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("write", [torch.save, pickled])
def test_a_pickled_object_is_refused_and_not_executed(write, model, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "weights.pt"
    write({"state_dict": model.state_dict(), "extra": Payload(trace)}, path)
    with pytest.raises(ValueError, match=r"refused"):
        models.load(model, path)
    assert not trace.exists()
    # Without the restricted unpickler, the file does execute its payload.
    pickle.loads(path.read_bytes()) if write is pickled else torch.load(path, weights_only=False)
    assert trace.exists()


def test_a_pickled_model_is_refused_and_named(model, tmp_path):
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"medbn\.models\.resnet\.ResNet"):
        models.load(model, tmp_path / "model.pt")


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 not a zip", b"\x80\x02}q\x00."])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_files_that_do_not_hold_weights_are_refused(content, suffix, model, tmp_path):
    path = tmp_path / f"weights.{suffix}"
    path.write_bytes(content)
    before = models.fingerprint(model)
    with pytest.raises(ValueError, match=r"weights\."):
        models.load(model, path)
    assert models.fingerprint(model) == before


def test_a_truncated_safetensors_file_is_refused(model, tmp_path):
    path = tmp_path / "weights.safetensors"
    models.save(model, path)
    path.write_bytes(path.read_bytes()[:-100])
    for read in (lambda: models.load(model, path), lambda: models.metadata(path)):
        with pytest.raises(ValueError, match="complete"):
            read()


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), {1: torch.zeros(3)}])
def test_other_contents_than_a_state_dict_are_refused(content, model, tmp_path):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="state_dict"):
        models.load(model, tmp_path / "weights.pt")


def test_a_dictionary_that_contains_itself_is_refused(model, tmp_path):
    endless = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="do not fit"):
        models.load(model, tmp_path / "weights.pt")


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


CHANGES = {
    "missing": (lambda s: without(s, "linear.bias"), "missing: linear.bias"),
    "unexpected": (lambda s: {**s, "extra.weight": torch.zeros(1)}, "unexpected: extra.weight"),
    "shape": (lambda s: {**s, "linear.bias": torch.zeros(7)}, r"linear.bias is \(7,\), expected \(10,\)"),
    "kind": (lambda s: {**s, "linear.bias": torch.zeros(10, dtype=torch.int64)}, "linear.bias is torch.int64"),
    "complex": (lambda s: {**s, "linear.bias": torch.zeros(10, dtype=torch.complex64)}, "linear.bias is torch.complex"),
    "number": (lambda s: {**s, "linear.bias": 3.0}, "linear.bias is a float, not a plain tensor"),
    "sparse": (lambda s: {**s, "linear.bias": torch.zeros(10).to_sparse()}, "not a plain tensor|restricted unpickler"),
    "another": (lambda s: {"a": torch.zeros(1)}, r"missing: .* and \d+ more; unexpected: a"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_error_lists_what_does_not_fit_and_the_model_is_unchanged(change, model, other, tmp_path):
    change_state, words = CHANGES[change]
    torch.save(change_state(other.state_dict()), tmp_path / "weights.pt")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=words) as error:
        models.load(model, tmp_path / "weights.pt")
    assert "weights.pt" in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_not_strict_loads_what_fits(model, other, tmp_path):
    state, bias = other.state_dict(), model.linear.bias.clone()
    torch.save({**without(state, "linear.bias"), "extra": torch.zeros(1)}, tmp_path / "part.pt")
    models.load(model, tmp_path / "part.pt", strict=False)
    assert torch.equal(model.linear.weight, other.linear.weight)
    assert torch.equal(model.linear.bias, bias)
    for state in ({"extra": torch.zeros(1)}, {"linear.bias": torch.zeros(7)}):  # nothing fits; a shape does not
        torch.save(state, tmp_path / "none.pt")
        with pytest.raises(ValueError, match="do not fit"):
            models.load(model, tmp_path / "none.pt", strict=False)


def test_the_fingerprint_changes_with_any_weight_and_not_with_the_path(model, other, tmp_path):
    models.save(other, tmp_path / "a.safetensors", note="a")
    torch.save(other.state_dict(), tmp_path / "b.pt")
    expected = models.fingerprint(other)
    assert len(expected) == 32
    assert models.load(model, tmp_path / "a.safetensors") == expected
    assert models.load(model, tmp_path / "b.pt") == expected
    seen = {expected}
    for value in model.state_dict().values():  # one element of each, to the next float and back
        flat, old = value.view(-1), value.view(-1)[-1].clone()
        flat[-1] = torch.nextafter(old, old + 1) if old.is_floating_point() else old + 1
        seen.add(models.fingerprint(model))
        flat[-1] = old
    assert len(seen) == 1 + len(model.state_dict())
    assert models.fingerprint(model) == expected
    assert models.fingerprint(model.double()) != expected
    assert models.fingerprint(model.float().to(memory_format=torch.channels_last)) == expected
    model.normalise.mean += 0.1
    assert models.fingerprint(model) != expected


def test_save_and_load(other, tmp_path):
    source = models.get("resnet-small", mean=0.25, std=0.75)
    path = tmp_path / "new" / "weights.safetensors"
    models.save(source, path, accuracy=0.97, data="digits")
    assert models.metadata(path) == {"accuracy": "0.97", "data": "digits"}
    assert models.load(other, path) == models.fingerprint(source)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(other(x), source(x))
    assert set(load_file(path)) == {*source.state_dict(), "mu", "sigma"}
    assert [file.name for file in path.parent.iterdir()] == ["weights.safetensors"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode  # as readable as other files


def test_tied_weights_can_be_saved(tmp_path):
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    models.save(tied, tmp_path / "tied.safetensors")
    again = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert models.load(again, tmp_path / "tied.safetensors") == models.fingerprint(tied)
    assert models.metadata(tmp_path / "tied.safetensors") == {}


def test_a_failed_save_leaves_the_old_file_and_nothing_else(model, tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    models.save(model, path)
    before = path.read_bytes()

    def fail(file, content):
        with open(file, "wb") as half:
            half.write(content[: len(content) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="no space"):
        models.save(model, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_only_safetensors_are_written(model, tmp_path):
    with pytest.raises(ValueError, match=r"\.safetensors"):
        models.save(model, tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("linear.bias", float("nan")),
        ("linear.weight", float("inf")),
        ("running_mean", float("nan")),
        ("running_var", -1.0),
        ("sigma", 0.0),
    ],
)
def test_values_that_no_trained_model_has_are_refused_by_name(kind, value, model, other, tmp_path):
    state = {**other.state_dict(), "mu": torch.zeros(1, 3, 1, 1), "sigma": torch.ones(1, 3, 1, 1)}
    name = next(key for key in state if key.endswith(kind))
    state[name] = state[name].clone()
    state[name].view(-1)[-1] = value
    torch.save(state, tmp_path / "weights.pt")
    before = models.fingerprint(model)
    for strict in (True, False):
        with pytest.raises(ValueError, match=name):
            models.load(model, tmp_path / "weights.pt", strict)
    assert models.fingerprint(model) == before


def test_a_compressed_file_of_weights_is_refused(model, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(torch.zeros(10**6), tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for member in stored.infolist():
            bomb.writestr(member.filename, stored.read(member))
    with pytest.raises(ValueError, match="compressed"):
        models.load(model, path)
