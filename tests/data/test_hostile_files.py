"""Files from strangers give data or an error of one line, and use memory in proportion to their own size."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from medbn import data, models
from medbn.data.extract import extract

from ..tiers import slow

pytest.importorskip("hypothesis")
Image = pytest.importorskip("PIL.Image")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


def encoded(image_format):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(file, image_format)
    return file.getvalue()


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(*sizes, mode="w:gz"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"set/{number}")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    return file.getvalue()


def weights():
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, file)
    return file.getvalue()


def write_cifar_c(folder, images=None, labels=None):
    folder.mkdir(exist_ok=True)
    images = saved(np.zeros((10, 8, 8, 3), dtype=np.uint8)) if images is None else images
    (folder / "fog.npy").write_bytes(images)
    (folder / "labels.npy").write_bytes(saved(np.zeros(10, dtype=np.int64)) if labels is None else labels)


def read_array(content, folder):
    write_cifar_c(folder, images=content)
    data.load_cifar_c(folder, "fog", 1).read(range(1))


def read_labels(content, folder):
    write_cifar_c(folder, labels=content)
    data.load_cifar_c(folder, "fog", 1)


def read_manifest(content, folder):
    write_cifar_c(folder)
    (folder / "medbn.json").write_bytes(content)
    data.load_cifar_c(folder, "fog", 1)


def read_image(content, folder):
    (folder / "image.png").write_bytes(content)
    data.read_image(folder / "image.png", 8, 8)


def read_class_folder(content, folder):
    (folder / "a").mkdir(exist_ok=True)
    (folder / "a" / "image.png").write_bytes(content)
    data.load_image_folder(folder).read(range(1))


def read_subset(content, folder):
    (folder / "a").mkdir(exist_ok=True)
    (folder / "list.txt").write_bytes(content)
    data.load_image_folder(folder, subset=folder / "list.txt", size=8)


def read_cifar100(content, folder):
    (folder / "test.bin").write_bytes(bytes(3074))
    (folder / "fine_label_names.txt").write_bytes(content)
    data.get("cifar100").open(folder)


def read_archive(content, folder):
    (folder / "x.tar").write_bytes(content)
    target = folder / "set"
    if not target.exists():
        extract(folder / "x.tar", target)


def read_weights(content, folder, name="weights.pt"):
    (folder / name).write_bytes(content)
    models.load(torch.nn.Linear(3, 2), folder / name)


def read_safetensors(content, folder):
    read_weights(content, folder, "weights.safetensors")
    models.metadata(folder / "weights.safetensors")


def safetensors():
    return pytest.importorskip("safetensors.torch").save({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})


READERS = {
    "array": (read_array, [saved(np.zeros((10, 8, 8, 3), dtype=np.uint8))]),
    "labels": (read_labels, [saved(np.zeros(10, dtype=np.int64)), saved(np.zeros(10, dtype=np.uint8))]),
    "manifest": (read_manifest, [b'{"classes": ["a", "b"], "made by": "medbn", "versions": {"frost": 2}}']),
    "image": (read_image, [encoded(image_format) for image_format in ("PNG", "JPEG", "BMP", "TIFF", "PPM")]),
    "class folder": (read_class_folder, [encoded("PNG")]),
    "subset": (read_subset, [b"a/0.png\na/1.png\n"]),
    "class names": (read_cifar100, [b"apple\nbear\n"]),
    "archive": (read_archive, [packed(10, 2000), packed(10, 2000, mode="w"), packed(30, mode="w:xz")]),
    "weights": (read_weights, [weights()]),
    "safetensors": (read_safetensors, None),
}
ALLOWED = (ValueError, OSError, data.DownloadError)
MOST_BYTES = 2**26


def check(reader, content, folder):
    """Read a file, and check that an error has one line and that memory stays bounded."""
    message = "data"
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(content, folder)
    except ALLOWED as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert message.strip()
    assert len(message.splitlines()) == 1
    assert len(message) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_any_file_gives_data_or_an_error_of_one_line(name, tmp_path_factory):
    reader, valid = READERS[name]
    valid = valid or [safetensors()]
    change = st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=8))

    @given(st.sampled_from(valid), st.lists(change, max_size=4), st.one_of(st.none(), st.binary(max_size=200)))
    def read(content, changes, other):
        for place, removed, added in changes:
            start = int(place * len(content))
            content = content[:start] + added + content[start + removed :]
        check(reader, content if other is None else other, tmp_path_factory.mktemp("fuzz"))

    read()


def header(text):
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content


def png(width, height):
    """A PNG that declares a size and holds black pixels, in a few kilobytes."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG", optimize=True)
    return file.getvalue()


def pax_bomb():
    """A compressed archive whose name is 100 MB long."""
    block = tarfile.TarInfo("x")
    block.type, block.size = tarfile.XHDTYPE, 10**8
    return gzip.compress(block.tobuf() + bytes(10**8), 1)


HOSTILE = {
    "a label of a billion": (read_labels, lambda: saved(np.full(10, 10**9)), "labels"),
    "a label beyond int64": (read_labels, lambda: saved(np.full(10, 2**64 - 1, dtype=np.uint64)), "labels"),
    "a header that does not end": (read_array, lambda: header("{'descr': ("), r"fog\.npy"),
    "a header nested too deeply": (read_array, lambda: header("(" * 9000), r"fog\.npy"),
    "an array without pixels": (read_array, lambda: saved(np.zeros((5, 0, 8, 3), dtype=np.uint8)), r"fog\.npy"),
    "an archive of arrays": (read_array, lambda: npz(), r"fog\.npy"),
    "classes that are not names": (read_manifest, lambda: b'{"classes": [1], "made by": "x"}', "damaged"),
    "a deep manifest": (read_manifest, lambda: b"[" * 200_000, "damaged"),
    "an image of one row": (read_class_folder, lambda: png(20_000_000, 1), "pixels"),
    "an image of 400 million pixels": (read_image, lambda: png(20_000, 20_000), r"image\.png.*pixels"),
    "a document that a program would be started for": (read_image, lambda: encoded("EPS"), r"image\.png"),
    "a list of names that are not text": (read_subset, lambda: b"\xff\xfe", r"list\.txt"),
    "a list that leaves the folder": (read_subset, lambda: b"a/../list.txt", "list"),
    "class names that are not text": (read_cifar100, lambda: b"\xff\xfe", "fine_label_names"),
    "an archive of zeros": (read_archive, lambda: packed(150_000_000), "larger"),
    "an archive with a huge header": (read_archive, pax_bomb, r"x\.tar"),
    "weights of an impossible size": (read_weights, lambda: b"\x80\x02\x8e" + b"\xff" * 7 + b"\x0f", r"weights\.pt"),
}


def npz():
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


SLOW = {"a header nested too deeply", "an image of 400 million pixels", "an archive of zeros"}


@pytest.mark.parametrize("case", [*(case for case in HOSTILE if case not in SLOW), *slow(*sorted(SLOW))])
def test_a_small_file_cannot_exhaust_memory_or_raise_another_error(case, tmp_path):
    reader, content, words = HOSTILE[case]
    content = content()
    check(reader, content, tmp_path)
    with pytest.raises(ALLOWED, match=words):
        reader(content, tmp_path)


def test_a_long_image_is_cropped_before_it_is_scaled(tmp_path):
    (tmp_path / "image.png").write_bytes(png(20_000_000, 1))
    tracemalloc.start()
    image = data.read_image(tmp_path / "image.png", 224, 224)
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    tracemalloc.stop()
    assert image.shape == (224, 224, 3)


def test_ordinary_images_are_scaled_whole(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width, rows, columns = rng.integers(24, 60, 4).tolist()
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        picture.save(tmp_path / "image.png")
        expected = picture
        if (height, width) != (rows, columns):
            scale = 8 / 7 * max(rows / height, columns / width)
            scaled = max(columns, round(width * scale)), max(rows, round(height * scale))
            left, top = (scaled[0] - columns) // 2, (scaled[1] - rows) // 2
            expected = picture.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + columns, top + rows))
        assert np.array_equal(data.read_image(tmp_path / "image.png", rows, columns), np.asarray(expected))
