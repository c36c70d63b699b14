"""Folders of one's own: ``images/``, ``labels/`` and a table of classes."""

from __future__ import annotations

import numpy as np
import pytest

from medbn import data

from .trees import draw, photograph, save

pytest.importorskip("PIL.Image")

TABLE = """
ignore = [0, 255]

[[classes]]
name = "road"
colour = [128, 64, 128]
labels = [1, 6]

[[classes]]
name = "sky"
colour = [70, 130, 180]
labels = [2]
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(5):
        save(tmp_path / "images" / "a" / f"{number}.5.bmp", photograph(rng))
        save(tmp_path / "labels" / "a" / f"{number}.5.png", draw(rng, [0, 1, 2, 6, 255]))
    (tmp_path / "classes.toml").write_text(TABLE)
    return tmp_path


def numbers(folder, number):
    from PIL import Image

    return np.asarray(Image.open(folder / "labels" / "a" / f"{number}.5.png"))


def test_numbers_become_the_classes_of_the_table(folder):
    assert data.task_of(folder) == "segmentation"
    dataset = data.load_segmentation(folder, shuffle=None)
    assert dataset.classes == ("road", "sky")
    assert dataset.colours == ((128, 64, 128), (70, 130, 180))
    assert len(dataset) == 5
    expected = np.select([np.isin(numbers(folder, 3), [1, 6]), numbers(folder, 3) == 2], [0, 1], 255)
    assert np.array_equal(dataset[3][1], expected)


def test_lists_of_names_are_splits(folder):
    with pytest.raises(FileNotFoundError, match=r"train\.txt"):
        data.load_segmentation(folder, "train")
    (folder / "valid.txt").write_text("a/1.5.bmp\na/4.5\n")
    dataset = {split: data.load_segmentation(folder, split, shuffle=None) for split in ("train", "val", "test")}
    assert [len(part) for part in dataset.values()] == [3, 2, 2]
    values = np.select([np.isin(numbers(folder, 4), [1, 6]), numbers(folder, 4) == 2], [0, 1], 255)
    assert np.array_equal(dataset["test"][1][1], values)
    (folder / "test.txt").write_text("a/0.5.bmp\n")
    assert len(data.load_segmentation(folder, "test")) == 1
    assert len(data.load_segmentation(folder, "train")) == 2
    (folder / "test.txt").write_text("a/9.5.bmp\n")
    with pytest.raises(FileNotFoundError, match=r"test\.txt names a/9\.5\.bmp"):
        data.load_segmentation(folder)


def test_a_known_table_by_name(folder):
    (folder / "classes.toml").write_text('classes = "cityscapes"\n')
    dataset = data.load_segmentation(folder)
    assert dataset.classes[:2] == ("road", "sidewalk")
    assert dataset.read(range(5))[1].unique().tolist() == [0, 1, 2, 6, 255]
    (folder / "classes.toml").unlink()
    assert data.load_segmentation(folder, classes="cityscapes").fingerprint == dataset.fingerprint
    with pytest.raises(FileNotFoundError, match=r"classes\.toml"):
        data.load_segmentation(folder)
    with pytest.raises(ValueError, match=r"citiscapes.*Did you mean 'cityscapes'"):
        data.load_segmentation(folder, classes="citiscapes")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("classes = 3", r"\[\[classes\]\]"),
        ("[[classes", "TOML"),
        ('[[classes]]\nname = "road"', "colour"),
        ('[[classes]]\nname = "road"\ncolour = [1, 2, 300]', "300"),
        ("[[classes]]\ncolour = [1, 2, 3]", "name"),
        ('[[classes]]\nname = "road"\ncolour = [1, 2, 3]\nlabel = 7', "'label'"),
        ('[[classes]]\nname = "road"\ncolour = [1, 2, 3]\nlabels = [255]', "255 stands for two"),
        ('[[classes]]\nname = "road"\ncolour = [1, 2, 3]\nlabels = [-1]', "0 to 255"),
        (TABLE.replace("sky", "road"), "road"),
        ('classes = "cars"', "cityscapes"),
        ("klasses = 1", "classes"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(folder, table, message):
    (folder / "classes.toml").write_text(table)
    with pytest.raises(ValueError, match=rf"classes\.toml.*{message}"):
        data.load_segmentation(folder)


def test_a_number_outside_the_table_names_the_file(folder):
    save(folder / "labels" / "a" / "2.5.png", np.full((12, 20), 3, np.uint8))
    with pytest.raises(ValueError, match=r"2\.5\.png has the label 3 .*0 to 2, 6, 255"):
        data.load_segmentation(folder).read(range(5))
