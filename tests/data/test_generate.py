"""Corrupted copies of a dataset on disk: in CIFAR-10-C's layout, complete or not at all, continued when stopped."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from medbn import data
from medbn.cli import main

from .images import smooth_images, write_image_folder

NAMES = ("fog", "contrast")


@pytest.fixture
def clean():
    images = smooth_images(32, 7)
    return data.from_tensors("photos", "test", ("china", "flower"), images, torch.arange(7) % 2)


def test_the_layout_and_what_is_read_from_it(clean, tmp_path):
    result = data.generate(clean, tmp_path / "C", names=NAMES)
    assert result.written == NAMES
    labels, fog = np.load(tmp_path / "C" / "labels.npy"), np.load(tmp_path / "C" / "fog.npy")
    assert labels.tolist() == clean.labels.tolist() * 5
    assert fog.shape == (35, 32, 32, 3)
    assert fog.dtype == np.uint8
    for severity in (1, 5):
        expected = data.corruptions.corrupt(clean.read(range(7)), "fog", severity)
        assert np.array_equal(fog[7 * (severity - 1) : 7 * severity].transpose(0, 3, 1, 2), expected.numpy())
        loaded = data.load(str(tmp_path / "C"), corruption="fog", severity=severity)
        assert torch.equal(loaded.read(range(7)), expected)
        assert torch.equal(loaded.read([4, 2]), expected[[4, 2]])
        assert loaded.classes == clean.classes
        assert torch.equal(loaded.labels, clean.labels)
    with pytest.raises(FileNotFoundError, match=r"no snow\.npy.*contrast"):
        data.load(str(tmp_path / "C"), corruption="snow")


def test_a_part_of_the_severities_holds_the_same_images(clean, tmp_path):
    for severities in ((5,), (1, 4)):
        folder = tmp_path / str(severities)
        data.generate(clean, folder, names=("fog", "gaussian_noise"), severities=severities)
        assert np.load(folder / "fog.npy").shape == (7 * len(severities), 32, 32, 3)
        for severity in severities:
            loaded = data.load(str(folder), corruption="gaussian_noise", severity=severity)
            expected = data.corruptions.corrupt(clean.read(range(7)), "gaussian_noise", severity)
            assert torch.equal(loaded.read(range(7)), expected)
            assert torch.equal(loaded.labels, clean.labels)
        with pytest.raises(ValueError, match="alone"):
            data.load(str(folder), corruption="fog", severity=3)
        with pytest.raises(FileExistsError, match="another severities"):
            data.generate(clean, folder, names=("fog",))


def test_images_are_read_a_few_at_a_time(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("medbn.data.generate"), "_BYTES_PER_TASK", 2 * 3 * 32 * 32)
    counts = []

    def read(indices):
        counts.append(len(indices))
        return clean.read(indices)

    data.generate(replace(clean, read=read), tmp_path, names=("fog",), severities=(5,))
    assert max(counts) == 2
    assert sum(counts) >= len(clean)


@pytest.mark.slow
def test_processes_write_the_same_bytes(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("medbn.data.generate"), "_IMAGES_PER_TASK", 3)
    one, two = (data.generate(clean, tmp_path / str(jobs), names=("fog",), jobs=jobs).folder for jobs in (1, 2))
    assert (one / "fog.npy").read_bytes() == (two / "fog.npy").read_bytes()


def test_a_stopped_call_is_continued(clean, tmp_path):
    def stop(name: str, done: int, total: int) -> None:
        if name == "contrast":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.generate(clean, tmp_path, names=NAMES, report=stop)
    assert not (tmp_path / "contrast.npy").exists()
    before = (tmp_path / "fog.npy").stat().st_mtime_ns
    manifest = tmp_path / "medbn.json"
    manifest.write_text(manifest.read_text().replace("data generate", "data make"))  # as an earlier version wrote it
    result = data.generate(clean, tmp_path, names=NAMES)
    assert (result.written, result.skipped) == (("contrast",), ("fog",))
    assert (tmp_path / "fog.npy").stat().st_mtime_ns == before
    assert not list(tmp_path.glob(".*"))


def test_folders_with_other_files_are_refused(clean, tmp_path):
    (tmp_path / "fog.npy").write_bytes(b"published")
    with pytest.raises(FileExistsError, match="did not generate"):
        data.generate(clean, tmp_path, names=NAMES)
    assert [file.name for file in tmp_path.iterdir()] == ["fog.npy"]
    data.generate(clean, tmp_path / "C", names=("contrast",))
    with pytest.raises(FileExistsError, match="another seed"):
        data.generate(clean, tmp_path / "C", names=("contrast",), seed=1)
    with pytest.raises(FileExistsError, match="another fingerprint"):
        data.generate(clean.subset([1, 2]), tmp_path / "C", names=("contrast",))


def test_damaged_arrays_are_refused(clean, tmp_path):
    data.generate(clean, tmp_path, names=NAMES)
    np.save(tmp_path / "fog.npy", np.zeros((34, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="fog"):
        data.load(str(tmp_path) + "/", corruption="fog")
    np.save(tmp_path / "contrast.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(ValueError, match="contrast"):
        data.load(str(tmp_path) + "/", corruption="contrast")


def test_the_file_is_mapped_not_loaded(clean, tmp_path):
    data.generate(clean, tmp_path, names=("fog",))
    dataset = data.load_cifar_c(tmp_path, "fog", 1)
    on_disk = np.load(tmp_path / "fog.npy", mmap_mode="r+")
    on_disk[0] = 7
    on_disk.flush()
    assert dataset.read(range(1)).unique().tolist() == [7]


def test_on_the_command_line(tmp_path, capsys):
    root = write_image_folder(tmp_path / "photos", size=(16, 16))
    options = ["--from", str(root), "--root", str(tmp_path), "--corruptions", "fog", "--jobs", "1"]
    assert main(["data", "generate", "mine", *options]) == 0
    assert "1 corruptions × 5 severities of 12 images" in capsys.readouterr().out
    assert json.loads((tmp_path / "mine" / "medbn.json").read_text())["classes"] == ["ant", "bee", "cat"]
    assert main(["data", "info", str(tmp_path / "mine"), "--corruption", "fog"]) == 0
    assert "images       12" in capsys.readouterr().out
    assert main(["data", "generate", "digits-c", "--root", str(tmp_path), "--corruptions", "snow", "--jobs", "1"]) == 0
    assert np.load(tmp_path / "digits-c" / "snow.npy").shape == (5 * 797, 16, 16, 3)
    assert data.load("digits-c", corruption="snow", root=tmp_path).classes[3] == "3"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "generate", "nonsense"], "cifar10-c, cifar100-c, cityscapes-c, digits-c"),
        (["data", "generate", "cifar10-c", "--root", "{}"], "medbn data fetch cifar10"),
        (["data", "generate", "digits-c", "--root", "{}", "--corruptions", "frog"], "'fog'"),
        (["data", "generate", "mine", "--from", "{}/none"], "/none"),
        (["data", "fetch", "cifar12"], "'cifar12'"),
        (["data", "info", "imagenet-c", "--root", "{}"], "medbn data fetch imagenet-c"),
        (["data"], "ACTION"),
        (["data", "generate", "digits-c", "--size", "64"], "--size"),
        (["data", "generate", "digits-c", "--jobs", "0"], "--jobs"),
        (["data", "generate", "digits-c", "--seed", "-1"], "--seed"),
        (["data", "fetch", "digits-c", "--root", "{}"], "medbn data generate digits-c"),
    ],
)
def test_wrong_commands_are_one_line_and_exit_2(arguments, message, tmp_path, refusal):
    assert message in refusal([argument.format(tmp_path) for argument in arguments])


def test_frost_without_photographs_names_the_option(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MEDBN_FROST", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["data", "generate", "digits-c", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "--frost synthetic" in printed
    assert "frost=" not in printed
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_is_complete_and_what_is_partial(tmp_path, capsys):
    for name in ("cifar-10-batches-bin/test_batch.bin", "CIFAR-10-C/fog.npy"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert main(["data", "list", "--root", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "ships" in lines["digits"]
    assert " here " in lines["cifar10"]
    assert " - " in lines["imagenet-c"]
    assert " in part " in lines["cifar10-c"]


def test_fetching_over_a_generated_folder_is_refused(tmp_path, capsys):
    (tmp_path / "CIFAR-10-C").mkdir()
    (tmp_path / "CIFAR-10-C" / "fog.npy").touch()
    assert main(["data", "fetch", "cifar10-c", "--root", str(tmp_path)]) == 2
    assert "holds a part of cifar10-c" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"jobs": 0}, {"names": ("frog",)}, {"severities": (6,)}])
def test_wrong_arguments_leave_no_folder(clean, tmp_path, wrong):
    with pytest.raises(ValueError, match=r"seed|jobs|frog|severity"):
        data.generate(clean, tmp_path / "C", **{"names": NAMES, **wrong})
    assert not (tmp_path / "C").exists()


def test_an_error_while_writing_leaves_no_partial_file(clean, tmp_path, monkeypatch):
    def full(name: str, done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        data.generate(clean, tmp_path, names=NAMES, report=full)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["labels.npy", "medbn.json"]


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense"])
def test_a_damaged_manifest_is_an_error(clean, tmp_path, text):
    data.generate(clean, tmp_path, names=("fog",))
    (tmp_path / "medbn.json").write_text(text)
    with pytest.raises(ValueError, match=r"medbn\.json"):
        data.generate(clean, tmp_path, names=NAMES)
    with pytest.raises(ValueError, match=r"medbn\.json"):
        data.load(tmp_path, corruption="fog")


def test_other_photographs_of_frost_are_other_images(clean, tmp_path, frost_photographs):
    data.generate(clean, tmp_path / "C", names=("frost",), frost=frost_photographs)
    with pytest.raises(FileExistsError, match="another frost"):
        data.generate(clean, tmp_path / "C", names=("frost",), frost="synthetic")
    one, two = (data.corrupt(clean, "frost", 5, frost=frost) for frost in (frost_photographs, "synthetic"))
    assert one.fingerprint != two.fingerprint


def test_a_file_of_an_earlier_version_of_a_corruption_is_not_taken_for_a_new_one(clean, tmp_path):
    data.generate(clean, tmp_path, names=("frost",), frost="synthetic")
    manifest = tmp_path / "medbn.json"
    values = json.loads(manifest.read_text())
    assert values.pop("versions") == {"frost": 2}
    manifest.write_text(json.dumps(values))  # as before corruptions had versions
    for _ in range(2):  # a call for another corruption does not change what is known of the old file
        with pytest.raises(FileExistsError, match=r"frost\.npy.*version"):
            data.generate(clean, tmp_path, names=("frost",), frost="synthetic")
        data.generate(clean, tmp_path, names=("fog",), frost="synthetic")
    (tmp_path / "frost.npy").unlink()
    assert data.generate(clean, tmp_path, names=("frost",), frost="synthetic").written == ("frost",)


def test_the_digits_need_no_download(capsys):
    assert main(["data", "fetch", "digits"]) == 0
    assert "digits ships" in capsys.readouterr().out
