"""Real data: datasets by name, the fifteen corruptions, downloads with pinned checksums.

from medbn import data

    stream = data.load("cifar10-c", corruption="fog", severity=5).batches(200)
    noisy = data.corruptions.corrupt(images, "gaussian_noise", severity=3, seed=0)
"""

from . import corruptions
from .catalogue import SOURCES, Source, available, corrupted, find_root, get, load, obtain
from .cifar_c import arrays
from .dataset import Dataset, of_array
from .download import DownloadError
from .generate import Made, make
from .image_folder import folder

__all__ = [
    "SOURCES",
    "Dataset",
    "DownloadError",
    "Made",
    "Source",
    "arrays",
    "available",
    "corrupted",
    "corruptions",
    "find_root",
    "folder",
    "get",
    "load",
    "make",
    "obtain",
    "of_array",
]
