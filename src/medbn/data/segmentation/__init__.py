"""Datasets for segmentation: each pixel has a class."""

from . import camvid, cityscapes, scenes, synthia
from .class_table import ClassTable
from .dataset import IGNORE, SegmentationDataset, segmentation_from_tensors
from .folder import find_opener, load_segmentation_folder
from .generated import is_generated_segmentation, load_generated_segmentation
from .random_crop import cut_crops, draw_crops, random_crop

__all__ = [
    "IGNORE",
    "ClassTable",
    "SegmentationDataset",
    "camvid",
    "cityscapes",
    "cut_crops",
    "draw_crops",
    "find_opener",
    "is_generated_segmentation",
    "load_generated_segmentation",
    "load_segmentation_folder",
    "random_crop",
    "scenes",
    "segmentation_from_tensors",
    "synthia",
]
