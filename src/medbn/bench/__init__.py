"""The test bench: named experiments, run in resumable pieces, kept in one file.

from medbn import bench

    recipe = bench.recipes.get("targeted-instant").narrowed(data=["cifar10-c"], methods=["tebn"], batches=2)
    bench.run(recipe, "results.db", place=bench.Place(device="cuda"))
"""

from . import intervals, published, recipes, results
from .cell import Attack, Cell, Setting
from .executors import Executor, InProcess, Processes
from .recipe import Recipe
from .run import MissingError, check, run
from .runner import Event, Place
from .store import LostClaimError, Store, StoreError

__all__ = [
    "Attack",
    "Cell",
    "Event",
    "Executor",
    "InProcess",
    "LostClaimError",
    "MissingError",
    "Place",
    "Processes",
    "Recipe",
    "Setting",
    "Store",
    "StoreError",
    "check",
    "intervals",
    "published",
    "recipes",
    "results",
    "run",
]
