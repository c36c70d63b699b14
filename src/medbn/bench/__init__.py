"""The test bench: named experiments, run in pieces that can be continued, stored in one file.

from medbn import bench

    recipe = bench.recipes.get("targeted-instant").narrow(data=["cifar10-c"], methods=["tebn"], batches=2)
    bench.run(recipe, "results.db", place=bench.Place(device="cuda"))
"""

from . import costs, intervals, published, recipe_file, recipes, results, time_estimate
from .cell import CONTINUAL, UNCORRUPTED, Attack, Cell, Setting, effective_attack
from .cell_rows import ContradictionError
from .cell_stream import in_memory_format, make_adapter
from .events import Event
from .executors import Executor, InProcess, InTurns, Processes
from .intervals import Interval
from .loading import LoadedCell, load_cell
from .merge import Merged, merge
from .metrics import error_rate
from .pictures import Strip, read_strips
from .place import Place, deterministic, machine_facts
from .plan import Plan, plan
from .ray_executor import Ray
from .recipe import AXES, DEFENCES, DIGITS, SCENES, SWEEPS, Recipe
from .requirements import (
    MissingError,
    check_requirements,
    missing_requirements,
    recipe_requirements,
    weights_path,
)
from .result import Result, Results
from .runner import run
from .shard import Shard
from .store import LostClaimError, Store
from .store_format import StoreError
from .user_modules import import_modules

__all__ = [
    "AXES",
    "CONTINUAL",
    "DEFENCES",
    "DIGITS",
    "SCENES",
    "SWEEPS",
    "UNCORRUPTED",
    "Attack",
    "Cell",
    "ContradictionError",
    "Event",
    "Executor",
    "InProcess",
    "InTurns",
    "Interval",
    "LoadedCell",
    "LostClaimError",
    "Merged",
    "MissingError",
    "Place",
    "Plan",
    "Processes",
    "Ray",
    "Recipe",
    "Result",
    "Results",
    "Setting",
    "Shard",
    "Store",
    "StoreError",
    "Strip",
    "check_requirements",
    "costs",
    "deterministic",
    "effective_attack",
    "error_rate",
    "import_modules",
    "in_memory_format",
    "intervals",
    "load_cell",
    "machine_facts",
    "make_adapter",
    "merge",
    "missing_requirements",
    "plan",
    "published",
    "read_strips",
    "recipe_file",
    "recipe_requirements",
    "recipes",
    "results",
    "run",
    "time_estimate",
    "weights_path",
]
