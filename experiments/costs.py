"""How long does a batch take with each model, method and estimator? The table that `medbn recipes --plan` reads.

    python experiments/costs.py results/cifar10-c.db.xz medbn.db --out src/medbn/bench/costs.json

Reads the seconds that stores of results have with every batch: those of adapting, and those of each step of an attack.
Rows of other stores replace those of the same device, model, method and estimator.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medbn import bench, cli
from medbn.bench.costs import Cost, shipped, to_json
from medbn.bench.time_estimate import forward_operations, image_shape

LEAST = 3
"""Fewer batches are no mean: the first ones choose kernels."""
Key = tuple[str, str, int, float, str | None, str, str | None]


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack a store if it is compressed."""
    if path.suffix != ".xz":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.stem
        plain.write_bytes(lzma.decompress(path.read_bytes()))
        yield plain


def read_seconds(path: Path) -> dict[Key, list[float]]:
    """Return the seconds of all batches and steps of a store."""
    found: dict[Key, list[float]] = defaultdict(list)
    with unpacked(path) as plain, bench.Store(plain, create=False) as store:
        for stored in store.cells():
            cell = bench.Cell.from_dict(stored.cell)
            setting, attack = cell.setting, cell.attack
            operations = setting.batch_size * forward_operations(setting.model, *image_shape(setting))
            for batch in stored.batches:
                place = (batch.get("device"), setting.model, setting.batch_size, operations)
                if place[0] is None or "adapt_s" not in batch:
                    continue
                key = (*place, cell.method, cell.estimator, "" if attack else None)
                found[key].append(batch["adapt_s"])
                steps = attack.steps * attack.restarts if attack and not attack.unroll else 0
                if attack and steps and batch.get("attack_s") and not batch.get("shared"):
                    found[(*place, None, cell.estimator, attack.gradient)].append(batch["attack_s"] / steps)
    return found


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="stores of results, .db or .db.xz")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: print the table")
    options = parser.parse_args()
    costs = {_work(cost): cost for cost in shipped()} if options.out and options.out.exists() else {}
    for path in options.stores:
        if not path.exists():
            raise ValueError(f"there is no store {path}.")
        for (device, model, images, operations, method, estimator, gradient), seconds in read_seconds(path).items():
            if len(seconds) >= LEAST:
                mean = float(f"{sum(seconds) / len(seconds):.3g}")
                cost = Cost(device, model, images, operations, method, estimator, gradient, mean, len(seconds))
                costs[_work(cost)] = cost
    text = to_json(sorted(costs.values(), key=lambda c: [str(part) for part in _work(c)]))
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def _work(cost: Cost) -> tuple[object, ...]:
    """Return what a cost is of."""
    return (cost.device, cost.model, cost.images, cost.method, cost.estimator, cost.gradient)


if __name__ == "__main__":
    sys.exit(cli.run_program("costs.py", main))
