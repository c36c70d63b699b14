"""The gallery of a report: images of the attacker before and after crafting."""

from __future__ import annotations

from ...bench import Results, Store
from ..document import Gallery, Part, Picture
from .labels import attack_rank, corruption_label, estimator_label, order_estimators

_ROWS = 8


def gallery_parts(results: Results, store: Store) -> list[Part]:
    """Return the clean images of one stream, and one row of crafted ones for each estimator and kind of attack."""
    if results.dense:
        return []  # its pictures are strips
    rows: list[tuple[str, list[Picture]]] = []
    seen: set[tuple[str, str]] = set()
    ranked = sorted(results.cells, key=lambda result: attack_rank(result.cell.attack))
    for estimator in order_estimators(set(results.values(lambda cell: cell.estimator))):
        for result in ranked:
            attack = result.cell.attack
            if result.cell.estimator != estimator or attack is None or (estimator, attack.label) in seen:
                continue
            pairs = store.examples(result.key)
            if not pairs:
                continue
            seen.add((estimator, attack.label))
            if not rows:
                clean = [Picture(c, f"image {i + 1} of the attacker, as it was") for i, (c, _) in enumerate(pairs)]
                rows.append((f"clean ({corruption_label(result.cell.corruption)})", clean))
            crafted = [Picture(p, f"image {i + 1} of the attacker, crafted") for i, (_, p) in enumerate(pairs)]
            rows.append((f"{estimator_label(estimator)}, {attack.label}", crafted))
    return [Gallery("The attacker's images", rows[:_ROWS])] if rows else []
