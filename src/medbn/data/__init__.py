"""Real data: datasets by name, the fifteen corruptions, downloads with pinned checksums.

from medbn import data

    stream = data.load("cifar10-c", corruption="fog", severity=5).batches(200)
    noisy = data.corruptions.corrupt(images, "gaussian_noise", severity=3, seed=0)
"""

from . import catalogue as _catalogue  # noqa: F401  registers the built-in datasets
from . import corruptions
from . import segmentation_catalogue as _segmentation_catalogue  # noqa: F401
from .cifar_c import load_cifar_c
from .corrupt import corrupt, corrupt_segmentation
from .dataset import Dataset, chain, digest, from_tensors
from .disk_errors import DownloadError
from .download import Archive, Progress, download
from .fetch import fetch
from .generate import GenerationResult, generate
from .image_file import read_image
from .image_folder import load_image_folder
from .load import load, load_segmentation, task_of
from .registry import DatasetInfo, available, cache_folder, find_root, get, register, unregister
from .segmentation import (
    IGNORE,
    ClassTable,
    SegmentationDataset,
    cut_crops,
    draw_crops,
    load_segmentation_folder,
    random_crop,
    segmentation_from_tensors,
)

__all__ = [
    "IGNORE",
    "Archive",
    "ClassTable",
    "Dataset",
    "DatasetInfo",
    "DownloadError",
    "GenerationResult",
    "Progress",
    "SegmentationDataset",
    "available",
    "cache_folder",
    "chain",
    "corrupt",
    "corrupt_segmentation",
    "corruptions",
    "cut_crops",
    "digest",
    "download",
    "draw_crops",
    "fetch",
    "find_root",
    "from_tensors",
    "generate",
    "get",
    "load",
    "load_cifar_c",
    "load_image_folder",
    "load_segmentation",
    "load_segmentation_folder",
    "random_crop",
    "read_image",
    "register",
    "segmentation_from_tensors",
    "task_of",
    "unregister",
]
