"""Files of strangers: images, arrays, archives, weights, recipe files. They are data; none may run code."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
import torch

from medbn import bench, data, models
from medbn.data.extract import extract

from .alter import alter_bytes, alter_value
from .trials import attempt, kind, require

SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "PPM": ".ppm", "TIFF": ".tif", "WEBP": ".webp"}


@kind("images", 3000)
def read_an_image(rng: random.Random, folder: Path) -> str:
    """An altered image file is read or refused in one line, with bounded memory."""
    from PIL import Image

    form = rng.choice(list(SUFFIXES))
    size = rng.randint(1, 64), rng.randint(1, 64)
    huge = rng.random() < 0.02
    if huge:  # a few kilobytes that decompress to many megabytes
        form, size = "PNG", rng.choice([(20_000_000, 1), (1, 20_000_000), (5000, 5000)])
        image = Image.new("1", size)
    else:
        image = Image.frombytes("RGB", size, rng.randbytes(size[0] * size[1] * 3))
    buffer = io.BytesIO()
    image.save(buffer, form)
    content = buffer.getvalue()
    file = folder / f"image{SUFFIXES[form]}"
    file.write_bytes(content if huge else alter_bytes(rng, content))
    height, width = rng.choice([(32, 32), (1, 1), (7, 40)])
    done, result = attempt(lambda: data.read_image(file, height, width), ValueError, OSError)
    if done:
        require(result.shape == (height, width, 3) and result.dtype == np.uint8, f"an image of {result.shape}")
    return "read" if done else "refused"


@kind("arrays", 2000)
def open_a_folder_of_arrays(rng: random.Random, folder: Path) -> str:
    """A folder as CIFAR-10-C with an altered file is read or refused in one line, with bounded memory."""
    folder = folder / "arrays"
    folder.mkdir()
    np.save(folder / "contrast.npy", np.frombuffer(rng.randbytes(10 * 4 * 4 * 3), np.uint8).reshape(10, 4, 4, 3))
    labels = np.array([rng.randrange(3) for _ in range(10)])
    if rng.random() < 0.3:
        labels[rng.randrange(10)] = rng.choice([-1, 10**6, 10**9, 2**62])
    np.save(folder / "labels.npy", labels)
    (folder / "medbn.json").write_text(json.dumps({"made by": "a trial", "classes": ["a", "b", "c"]}))
    file = folder / rng.choice(["contrast.npy", "labels.npy", "medbn.json"])
    content = file.read_bytes()
    if file.suffix == ".npy" and rng.random() < 0.5:
        content = _alter_header(rng, content)
    elif rng.random() < 0.9:
        content = alter_bytes(rng, content)
    file.write_bytes(content)

    def read() -> tuple[torch.Tensor, torch.Tensor]:
        dataset = data.load(folder, corruption="contrast", severity=rng.randint(1, 5))
        return dataset.read(range(len(dataset))), dataset.labels

    done, result = attempt(read, ValueError, OSError)
    if done:
        images, labels = result
        require(images.dtype == torch.uint8 and images.dim() == 4 and len(images) == len(labels), "odd images")
        require(bool((labels >= 0).all()), "negative labels")
    return "read" if done else "refused"


@kind("segmentation", 2000)
def open_a_segmentation_folder(rng: random.Random, folder: Path) -> str:
    """A folder of images, labels and a table of classes with an altered file is read or refused in one line."""
    from PIL import Image

    folder = folder / "streets"
    for name, mode, channels in (("images", "RGB", 3), ("labels", "L", 1)):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = rng.randbytes(8 * 6 * channels) if channels == 3 else bytes(rng.randrange(3) for _ in range(48))
            Image.frombytes(mode, (8, 6), pixels).save(folder / name / f"{number}.png")
    table = "".join(f'[[classes]]\nname = "{name}"\ncolour = [{k}, 9, 0]\n' for k, name in enumerate("abc"))
    (folder / "classes.toml").write_text(table)
    file = rng.choice(sorted(path for path in folder.rglob("*.*")))
    content = file.read_bytes()
    if file.suffix == ".toml" and rng.random() < 0.5:
        old = rng.choice(["name", '"a"', "colour", "9", "[", "classes", "[[", "]"])
        new = rng.choice(
            ["", "0", "-1", "256", "10**9", "'", "labels", "[0, 1]", '"b"', "nan", "true", "ignore = 3\n["]
        )
        content = content.replace(old.encode(), new.encode(), rng.choice([1, -1]))
    elif rng.random() < 0.02:
        buffer = io.BytesIO()
        Image.new("L" if file.parent.name == "labels" else "RGB", (20_000_000, 1)).save(buffer, "PNG")
        content = buffer.getvalue()
    else:
        content = alter_bytes(rng, content)
    file.write_bytes(content)
    size = rng.choice([None, (6, 8), (3, 5)])

    def read() -> tuple[torch.Tensor, torch.Tensor, int]:
        dataset = data.load_segmentation(folder, size=size)
        return (*dataset.read(range(len(dataset))), len(dataset.classes))

    done, result = attempt(read, ValueError, OSError)
    if done:
        images, labels, classes = result
        require(images.dtype == torch.uint8 and images.shape[2:] == labels.shape[1:] == (size or (6, 8)), "odd shapes")
        require(bool(((labels >= 0) & ((labels < classes) | (labels == 255))).all()), "labels that are no classes")
    return "read" if done else "refused"


def _alter_header(rng: random.Random, content: bytes) -> bytes:
    """Return an ``.npy`` file with another header of the same length."""
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length].decode("latin1").rstrip()
    old = rng.choice(["'descr'", "False", "(", ")", "|u1", "<i8", "10", "4", "{", "}", ","])
    new = rng.choice(["", "0", "-1", "(", "'''", "|O", "10**9", "999999999999", "True", "\\", "[" * 40, "lambda: 0"])
    header = header.replace(old, new, 1)[: length - 1].ljust(length - 1) + "\n"
    return content[:10] + header.encode("latin1") + content[10 + length :]


@kind("archives", 2000)
def extract_an_archive(rng: random.Random, folder: Path) -> str:
    """An archive is extracted completely into its folder or not at all, and nothing is written outside."""
    suffix, mode = rng.choice([(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz")])
    archive, parent = folder / f"x{suffix}", folder / "parent"
    parent.mkdir()
    (folder / "outside").write_text("untouched")
    with tarfile.open(archive, mode) as tar:
        for _ in range(rng.randint(1, 6)):
            content = rng.randbytes(rng.choice([0, 10, 5000]))
            names = ["a", "b", "b/c", "b/d/e", "../outside", "b/../../outside", str(folder / "outside"), ".", "a" * 300]
            member = tarfile.TarInfo(rng.choice(names if rng.random() < 0.5 else names[:4]))
            if rng.random() < 0.2:
                types = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
                member.type = rng.choice(types)
                member.linkname = rng.choice(
                    ["a", "../outside", "../../outside", "/etc/passwd", str(folder / "outside")]
                )
                content = b""
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    if rng.random() < 0.4:
        archive.write_bytes(alter_bytes(rng, archive.read_bytes()))
    target = parent / "set"
    done, _ = attempt(lambda: extract(archive, target), data.DownloadError, OSError)
    require(sorted(path.name for path in folder.iterdir()) == sorted(["outside", "parent", archive.name]), "new files")
    require((folder / "outside").read_text() == "untouched", "a file outside was changed")
    require([path.name for path in parent.iterdir()] == ["set"] * done, f"left in the folder: {list(parent.iterdir())}")
    for path in target.rglob("*") if done else ():
        require(path.resolve().is_relative_to(target.resolve()), f"{path} leads outside")
        require(path.is_symlink() or path.is_file() or path.is_dir(), f"{path} is a device")
    return "extracted" if done else "refused"


@functools.cache
def _model() -> tuple[torch.nn.Module, str]:
    model = models.get("resnet-small", weights="shipped")
    return model, models.fingerprint(model)


class _RunsCode:
    """Pickles to a call of ``os.mkdir``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@kind("weights", 1500)
def load_weights(rng: random.Random, folder: Path) -> str:
    """Altered weights are loaded or refused; what is loaded is finite, a refusal changes nothing, no code runs."""
    source, fingerprint = _model()
    model = models.get("resnet-small", channels=1)
    model.load_state_dict(source.state_dict())
    require(models.fingerprint(model) == fingerprint, "a copy with another fingerprint")
    state, canary = dict(source.state_dict()), folder / "canary"
    altered = alter_value(rng, state) if rng.random() < 0.6 else state
    file = folder / rng.choice(["w.safetensors", "w.pt"])
    if file.suffix == ".safetensors":
        from safetensors.torch import save

        tensors = {k: v for k, v in altered.items() if isinstance(v, torch.Tensor) and not v.is_meta}
        content = save({str(key): value.clone().contiguous() for key, value in tensors.items()})
    elif rng.random() < 0.2:
        content = pickle.dumps({**state, "x": _RunsCode(canary)})
        if rng.random() < 0.5:
            buffer = io.BytesIO()
            torch.save({**state, "x": _RunsCode(canary)}, buffer)
            content = buffer.getvalue()
    else:
        buffer = io.BytesIO()
        torch.save(altered, buffer)
        content = buffer.getvalue()
    file.write_bytes(alter_bytes(rng, content) if rng.random() < 0.3 else content)
    done, _ = attempt(lambda: models.load(model, file), ValueError, OSError)
    require(not canary.exists(), "code of the file ran")
    if not done:
        require(models.fingerprint(model) == fingerprint, "a refused file changed the model")
        return "refused"
    for name, value in model.state_dict().items():
        require(not value.is_floating_point() or bool(value.isfinite().all()), f"{name} is not finite")
        require("running_var" not in name or bool((value >= 0).all()), f"{name} is negative")
    return "loaded"


RECIPE = """\
data = "digits"
model = "resnet-small"
weights = "shipped"
clean = "digits"
frost = "synthetic"
batch_size = 30
malicious = 6
methods = ["tent", "sotta"]
estimators = ["median"]
corruptions = ["contrast"]
batches = 3
scenario = "instant"
predict = "after"
seeds = [0, 1]
warm_up = 1
[options.tent]
lr = 0.01
[[attacks]]
objective = "indiscriminate"
steps = 2
step_size = 0.1
[[settings]]
severity = 3
"""
TOML = [
    "-1",
    "0",
    "1e309",
    "nan",
    "true",
    '""',
    '"x"',
    "[]",
    "{}",
    "[[]]",
    "{a = {b = 1}}",
    "1979-05-27",
    "10_000_000_000",
]
TOML += ['"os:abort"', '"canary:build"', "[1, 2]", '["x"]', "[" * 600 + "]" * 600, '"' + "x" * 10_000 + '"', "1" * 5000]


@kind("recipes", 3000)
def read_a_recipe_file(rng: random.Random, folder: Path) -> str:
    """An altered recipe file is read or refused in one line; reading it runs no code."""
    lines = RECIPE.splitlines()
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(lines))
        key = lines[place].partition("=")[0].strip()
        match rng.randrange(6):
            case 0:
                del lines[place]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[place])
            case 2:
                lines[place] = rng.choice(["x", "[options]", "[[attacks]]", "[settings]", "name", "about"]) + " = 1"
            case _:
                lines[place] = f"{key} = {rng.choice(TOML)}"
        if not lines:
            lines = [""]
    content = "\n".join(lines).encode()
    file = folder / "recipe.toml"
    file.write_bytes(alter_bytes(rng, content) if rng.random() < 0.3 else content)
    (folder / "canary.py").write_text("import pathlib; (pathlib.Path(__file__).parent / 'ran').touch()\n")

    def read() -> list[bench.Cell]:
        return [cell for _, cell in zip(range(100), bench.recipe_file.read(file).cells(), strict=False)]

    done, _ = attempt(read, ValueError, OSError, ImportError)
    require(not (folder / "ran").exists(), "code ran")
    return "read" if done else "refused"
