"""Files of states, which ``save`` writes and ``load`` reads."""

import json
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import medbn
from medbn.cli import main

from .conftest import small_model
from .table import METHODS, assert_same, each_kind, make, state

safetensors = pytest.importorskip("safetensors")
ROOT = Path(__file__).parents[2]


def metadata(path):
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata()


def rewrite(path, target, **changes):
    """Write a file again with other metadata."""
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), target, {**metadata(path), **changes})
    return target


@each_kind
def test_a_loaded_adapter_continues_with_the_same_bits(method, model, batches, tmp_path):
    tta = make(model, method, predict="after")
    for x in batches[:3]:
        tta(x)
    tta.save(tmp_path / "state.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    assert (tmp_path / "state.safetensors").stat().st_mode & stat.S_IRUSR
    other = make(model, method, predict="after", seed=7)
    other(batches[4])
    other.load(tmp_path / "state.safetensors")
    assert_same(state(other), state(tta))
    for x in batches[3:]:
        assert torch.equal(other(x), tta(x))
    other.reset(), tta.reset()
    assert_same(state(other), state(tta))
    assert torch.equal(other(batches[0]), tta(batches[0]))


@pytest.mark.slow
def test_a_state_goes_into_a_new_process(model, batches, tmp_path):
    torch.save({"model": model.state_dict(), "batches": batches}, tmp_path / "inputs.pt")
    expected = {}
    for method in METHODS:
        tta = make(model, method)
        for x in batches[:3]:
            tta(x)
        tta.save(tmp_path / f"{method}.safetensors")
        expected[method] = [tta(x) for x in batches[3:]]
    torch.save(expected, tmp_path / "expected.pt")
    script = """
        import pickle, sys
        from unittest import mock
        import torch
        from tests.methods.conftest import small_model
        from tests.methods.table import make
        folder = sys.argv[1]
        inputs, expected = (torch.load(f"{folder}/{n}.pt", weights_only=True) for n in ("inputs", "expected"))
        model = small_model()
        model.load_state_dict(inputs["model"])
        def refuse(*_, **__):
            raise AssertionError("a file was unpickled")
        for method, outputs in expected.items():
            tta = make(model, method)
            with mock.patch.multiple("pickle", load=refuse, loads=refuse), mock.patch("torch.load", refuse):
                tta.load(f"{folder}/{method}.safetensors")
            for x, y in zip(inputs["batches"][3:], outputs, strict=True):
                assert torch.equal(tta(x), y), method
        print(len(expected), "the same")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(len(METHODS)), "the", "same"], done.stderr


@pytest.fixture
def saved(model, batches, tmp_path):
    tta = make(model, "past")
    tta(batches[0])
    tta.save(tmp_path / "state.safetensors")
    return tmp_path / "state.safetensors"


def refuse(adapter, path, batches):
    """The error with which a file is refused, once it is known that nothing has changed."""
    adapter(batches[1])
    before, source = state(adapter), adapter.source_state
    with pytest.raises((ValueError, OSError)) as caught:
        adapter.load(path)
    assert_same(state(adapter), before)
    assert adapter.source_state is source
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_of_another_method_model_or_estimator_is_refused(saved, model, batches):
    assert "Past" in refuse(make(model, "sema"), saved, batches)
    assert "median, here mean" in refuse(make(model, "past", "mean"), saved, batches)
    assert "layers" in refuse(make(small_model(channels=3), "past", include="layer1.*"), saved, batches)
    other = small_model()
    with torch.no_grad():
        other.fc.weight[0, 0] += 1
    assert "weights" in refuse(make(other, "past"), saved, batches)


def test_what_the_method_learns_does_not_make_it_another_model(model, batches, tmp_path):
    tta, other = make(model, "tent", lr=0.1), make(model, "tent", lr=0.1)
    tta(batches[0]), other(batches[1])
    tta.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    assert torch.equal(other(batches[2]), tta(batches[2]))


def test_another_version_is_refused(saved, model, batches, monkeypatch, tmp_path):
    assert "update medbn" in refuse(make(model, "past"), rewrite(saved, tmp_path / "new", version="99"), batches)
    old = refuse(make(model, "past"), rewrite(saved, tmp_path / "old", version="0"), batches)
    assert "adapt anew" in old
    monkeypatch.setattr(medbn.methods.get("past"), "version", 3)
    assert "version 2" in refuse(make(model, "past"), saved, batches)


def test_files_of_something_else_and_damaged_ones_are_refused(saved, model, batches, tmp_path):
    tta, content = make(model, "past"), saved.read_bytes()
    weights = tmp_path / "weights.safetensors"
    medbn.models.save(model, weights)
    assert "tta.save" in refuse(tta, weights, batches)
    assert "does not exist" in refuse(tta, tmp_path / "missing", batches)
    refuse(tta, tmp_path, batches)
    torch.save(tta.state_dict(), tmp_path / "pickle.pt")
    refuse(tta, tmp_path / "pickle.pt", batches)
    broken = tmp_path / "broken"
    for altered in (b"", content[:100], content[:-1], content + b"x", b"\0" * 50, content[:-40] + b"\1" * 40):
        broken.write_bytes(altered)
        refuse(tta, broken, batches)
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    name = next(name for name in json.loads(header) if name.startswith("now/"))
    renamed = header.replace(name.encode(), rb"now/\n\u001b[31m" + name.encode())
    renamed = renamed.replace(b'"data_offsets":[0,', b'"data_offsets":[1,')
    broken.write_bytes(len(renamed).to_bytes(8, "little") + renamed + content[8 + len(header) :])
    message = refuse(tta, broken, batches)
    assert message.isprintable(), message  # the library quotes names from the file
    facts = json.loads(metadata(saved)["content"])
    facts["images"] = 5
    assert "checksum" in refuse(tta, rewrite(saved, broken, content=json.dumps(facts)), batches)


def test_a_forged_file_is_checked_as_any_state(saved, model, batches, tmp_path):
    """Its author can write the right checksum."""
    from medbn._tensor_files import read_tensors, write_tensors
    from medbn.methods._state_file import _checksum

    tta = make(model, "past")
    tensors, facts = read_tensors(saved)
    altered = dict(tensors)
    name = next(n for n in tensors if "averages" in n and n.startswith("now"))
    altered[name] = altered[name] * torch.nan
    texts = [facts["content"].replace('"batches", 1', '"batches", -1'), '{"state": ' + "[" * 3000, "{}", "[1]"]
    texts += [facts["content"].replace('{"tensor"', '{"tuple"'), facts["content"].replace('"learned"', '"taught"')]
    for values, text in ((altered, facts["content"]), *((tensors, text) for text in texts)):
        new = {**facts, "content": text, "checksum": _checksum(text, values)}
        write_tensors(tmp_path / "forged", values, new)
        refuse(tta, tmp_path / "forged", batches)
        assert main(["state", "info", str(tmp_path / "forged")]) in (0, 2)


def test_a_failed_write_leaves_the_file_as_it_was(saved, model, batches, monkeypatch):
    before = saved.read_bytes()
    tta = make(model, "past")
    tta.memory["odd"] = object()
    with pytest.raises(TypeError, match=r"odd.*object"):
        tta.save(saved)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        make(model, "past").save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    with pytest.raises(ValueError, match="folder"):
        tta.save(saved.parent / "missing" / "state.safetensors")


def test_images_of_users_are_left_out_on_request(model, batches, tmp_path):
    path = tmp_path / "state.safetensors"
    for method, few in (("sotta", 12), ("past", 5)):
        tta = make(model, method)
        tta(batches[0])
        tta(batches[1][:few])
        held = [v for k, v in state(tta).items() if k.startswith((".memory.images.", ".memory.collected."))]
        assert sum(map(len, held)) == images_in_file(tta, path) > 0
        assert images_in_file(tta, path, memory=False) == 0
        content = path.read_bytes()
        assert not any(image.numpy().tobytes() in content for images in held for image in images)
        other = make(model, method)
        other.load(path)
        kept = {k: v for k, v in state(tta).items() if not k.startswith((".memory.images.", ".memory.c"))}
        assert_same({k: v for k, v in state(other).items() if k in kept}, kept)
        other(batches[2])


def images_in_file(adapter, path, **options):
    adapter.save(path, **options)
    return medbn.methods.state_info(path).images


def test_threads_may_save_while_others_call(model, batches, tmp_path):
    tta = make(model, "sema")
    expected = []
    for x in batches:
        tta(x)
        expected.append(tta.snapshot())
    tta.reset()
    files = [tmp_path / f"{i}.safetensors" for i in range(6)]
    saving = threading.Thread(target=lambda: [tta.save(path) for path in files])
    saving.start()
    for x in batches:
        tta(x)
    saving.join()
    other = make(model, "sema")
    states = []
    for snapshot in [other.snapshot(), *expected]:
        other.restore(snapshot)
        states.append(state(other))
    for path in files:
        other.load(path)
        assert any(
            all(torch.equal(v, one[k]) for k, v in state(other).items() if isinstance(v, torch.Tensor))
            for one in states
        )


def test_info_says_what_a_file_is_of(saved, model, capsys, refusal, tmp_path):
    assert main(["state", "info", str(saved)]) == 0
    printed = capsys.readouterr().out
    layers = len(make(model, "past").layers)
    for text in ("Past, version 2", "batch_size=12", f"median in {layers} layers", "SmallResNet", "none"):
        assert text in printed
    info = medbn.methods.state_info(saved)
    assert info.options == {"batch_size": 12}
    assert info.fingerprint in printed
    saved.write_bytes(saved.read_bytes()[:-3])
    assert "safetensors" in refusal(["state", "info", str(saved)])
    assert "does not exist" in refusal(["state", "info", str(tmp_path / "x")])
    assert "ACTION" in refusal(["state"])
