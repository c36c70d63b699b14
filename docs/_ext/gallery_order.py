"""The order of the examples, and how their figures look."""

from __future__ import annotations

from typing import Any

ORDER = (
    "adapt",
    "attack",
    "report",
    "changes",
    "segmentation",
    "own_estimator",
    "own_method",
    "own_objective",
    "figures",
)


class Order:
    """The key that sorts examples; those that ORDER lacks come last, by name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, file: str) -> tuple[int, str]:
        """Return the key of a file."""
        name = file.removesuffix(".py")
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)

    def __repr__(self) -> str:
        return "Order"


def reset(gallery_conf: dict[str, Any], file: str) -> None:
    """Set matplotlib as the figures of medbn are set, in the colours of the estimators."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    from medbn import analysis
    from medbn._styles import COLOURS, MARKS

    plt.rcParams.update(analysis.THEMES["light"].options())
    plt.rcParams.update({"font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8})
    plt.rcParams.update({"legend.fontsize": 8, "figure.dpi": 100, "savefig.dpi": 100})
    cycle = cycler(color=[light for light, _ in COLOURS[:5]]) + cycler(marker=MARKS[:5])
    plt.rcParams["axes.prop_cycle"] = cycle
