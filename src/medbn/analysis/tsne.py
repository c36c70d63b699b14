"""Figures 4, 8 and 9: where malicious images lie among the benign ones, before each normalisation layer."""

from __future__ import annotations

import base64
import importlib.util
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .captions import describe, epsilon_label
from .experiment import Experiment, OnStep, ignore, one_per_stage, visit_layers
from .numbers import Numbers
from .registry import Figure, register
from .separation import PERMUTATIONS, principal_components, separation
from .theme import COLUMN, MANY, Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

COMPONENTS = 50
"""Principal components of the features, of which t-SNE makes two coordinates."""

PERPLEXITY = 30.0

PANEL = 1.28
"""Width and height of a panel, in inches, where there are few."""

ACROSS, ACROSS_COLUMN = 7, 5
"""Panels in a row at most, on a page and in a column: more layers are drawn in several bands, one below the other."""


def measure(experiment: Experiment) -> Numbers:
    """Return the silhouette of malicious against benign images at each layer, and each panel's principal components.

    ``embed_panels`` replaces the components by coordinates, which needs scikit-learn.
    """
    settings, malicious = experiment.settings, ~experiment.benign
    rows, points = [], []
    for epsilon in settings.epsilons:
        for name in settings.estimators:
            cell = experiment.cell(name, epsilon=epsilon)
            adapter = experiment.unadapted(cell)
            shown = experiment.shown_layers(adapter)

            def reduce(layer: str, module: Any, x: Tensor, shown: list[str] = shown) -> Any:
                apart = separation(x, malicious, settings.seed)
                return apart, principal_components(x, COMPONENTS) if layer in shown else None

            for layer, (apart, scores) in visit_layers(adapter, experiment.poisoned(cell), reduce).items():
                rows.append(
                    {
                        "epsilon": epsilon,
                        "estimator": name,
                        "layer": layer,
                        "silhouette": apart.silhouette,
                        "random_low": apart.low,
                        "random_high": apart.high,
                        "separate": apart.separate,
                    }
                )
                if scores is not None:
                    panel = {"epsilon": epsilon, "estimator": name, "layer": layer}
                    points.append({**panel, "components": encode_components(scores)})
    return Numbers("tsne", settings.describe(), rows, {"malicious": malicious.tolist(), "panels": points})


def embed_panels(numbers: Numbers, on_step: OnStep = ignore) -> Numbers:
    """Return the numbers with the t-SNE coordinates of each panel in the place of its principal components.

    Without scikit-learn the numbers are returned as they are: they can be completed elsewhere.
    """
    panels = numbers.details["panels"]
    if not any("components" in panel for panel in panels) or importlib.util.find_spec("sklearn") is None:
        return numbers
    embedded = []
    for number, panel in enumerate(panels, 1):
        rest = {name: value for name, value in panel.items() if name != "components"}
        if "components" in panel:
            rest["points"] = embed(decode_components(panel["components"]), numbers.settings["seed"])
        embedded.append(rest)
        on_step("embedding", number, len(panels))
    return replace(numbers, details={**numbers.details, "panels": embedded})


def embed(scores: Any, seed: int) -> list[list[float]]:
    """Return the t-SNE coordinates of the images, from their principal components ``(B, components)``."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(scores) - 1) / 3)
    reducer = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed)
    with threadpool_limits(1):  # for a few hundred points, threads take longer, and give the same bits
        points: list[list[float]] = reducer.fit_transform(scores).round(2).tolist()
    return points


def encode_components(scores: Tensor) -> dict[str, Any]:
    """Return principal components as their shape and their bytes in base 64, float32."""
    values = scores.detach().float().cpu().contiguous()
    return {"shape": list(values.shape), "bytes": base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()}


def decode_components(components: dict[str, Any]) -> Any:
    """Return encoded components as an array."""
    return np.frombuffer(base64.b64decode(components["bytes"]), dtype="<f4").reshape(components["shape"])


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw a panel per layer: columns are layers, rows estimators, once for each ε; many layers take several bands."""
    panels = numbers.details["panels"]
    if any("points" not in panel for panel in panels):
        raise ImportError("t-SNE needs scikit-learn: pip install 'medbn[figures]'.")
    epsilons, names = numbers.distinct("epsilon"), numbers.distinct("estimator")
    bands = split_layers(shown_layers(numbers), ACROSS_COLUMN if theme.narrow else ACROSS)
    found = {(panel["epsilon"], panel["estimator"], panel["layer"]): panel["points"] for panel in panels}
    colours = theme.series(names)
    rows = [(epsilon, band, name) for epsilon in epsilons for band in bands for name in names]
    axes = canvas.subplots(len(rows), len(bands[0]), squeeze=False)
    for place, (line, (epsilon, band, name)) in enumerate(zip(axes, rows, strict=True)):
        for axis in line[len(band) :]:
            axis.set_axis_off()
        for axis, layer in zip(line, band, strict=False):
            _draw_panel(axis, found[epsilon, name, layer], numbers.details["malicious"], theme, len(panels))
            (row,) = numbers.select(epsilon=epsilon, estimator=name, layer=layer)
            star = "*" if row["separate"] else ""
            axis.set_title(f"{round(row['silhouette'], 2) + 0.0:.2f}{star}".replace("-", "−"), fontsize=6.5, pad=2)
            if place == 0 or (len(bands) > 1 and name == names[0]):
                top = {"xycoords": "axes fraction", "xytext": (0, 11), "textcoords": "offset points"}
                title = layer.replace(".", "\n", 1) if theme.narrow else layer
                axis.annotate(title, (0.5, 1.0), ha="center", fontsize=7.5 if len(bands) == 1 else 6.5, **top)
        label = f"{estimator_label(name)}\nε = {epsilon_label(epsilon)}"
        line[0].set_ylabel(label, color=colours[name]["color"], fontsize=5.5 if theme.narrow else 7.5)
    handles = _draw_panel(axes[0][0], [], [], theme)
    theme.add_legend(canvas, handles, ["benign images", "malicious images"], across=2)


def shown_layers(numbers: Numbers) -> list[str]:
    """Return the layers that have panels, in order."""
    return list(dict.fromkeys(panel["layer"] for panel in numbers.details["panels"]))


def choose_layers(numbers: Numbers, layers: str) -> Numbers:
    """Return the numbers with the panels of ``"stages"`` or of ``"all"`` layers; each has an embedding of its own."""
    measured = numbers.settings["layers"]
    if layers == "all" and measured != "all":
        raise ValueError("these numbers have the panels of one layer per stage: measure them with --layers all.")
    chosen = numbers.distinct("layer") if layers == "all" else one_per_stage(numbers.distinct("layer"))
    panels = [panel for panel in numbers.details["panels"] if panel["layer"] in chosen]
    settings, details = {**numbers.settings, "layers": layers}, {**numbers.details, "panels": panels}
    return replace(numbers, settings=settings, details=details)


def split_layers(layers: list[str], most: int = ACROSS) -> list[list[str]]:
    """Return layers in as few bands of ``most`` as possible, of about the same length; the first is the longest.

    >>> [len(band) for band in split_layers([f"bn{number}" for number in range(9)])]
    [5, 4]
    """
    across = math.ceil(len(layers) / math.ceil(len(layers) / most))
    return [layers[start : start + across] for start in range(0, len(layers), across)]


def _draw_panel(
    axis: Axes, points: list[list[float]], malicious: list[bool], theme: Theme, panels: int = 1
) -> list[Any]:
    """Draw benign images as dots below malicious ones as crosses, as pixels if there are many panels; return both."""
    scale = 0.6 if theme.narrow else 1.0
    many = {"rasterized": len(points) * panels > MANY}
    styles: list[dict[str, Any]] = [
        {"marker": "o", "s": 5 * scale, "color": theme.benign, "linewidths": 0, **many},
        {"marker": "x", "s": 9 * scale, "color": theme.malicious, "linewidths": 0.8 * scale, **many},
    ]
    drawn = []
    for side, style in enumerate(styles):
        chosen = [point for point, is_malicious in zip(points, malicious, strict=True) if is_malicious == bool(side)]
        drawn.append(axis.scatter([x for x, _ in chosen], [y for _, y in chosen], **style))
    axis.set_xticks([])
    axis.set_yticks([])
    axis.margins(0.08)
    for spine in axis.spines.values():
        spine.set_visible(True)
    return drawn


def size(numbers: Numbers, theme: Theme) -> tuple[float, float]:
    """Return a width and a height that give every panel the same size."""
    bands = split_layers(shown_layers(numbers), ACROSS_COLUMN if theme.narrow else ACROSS)
    across = len(bands[0])
    rows = len(bands) * len(numbers.distinct("epsilon")) * len(numbers.distinct("estimator"))
    panel = min(PANEL, (theme.width - 0.4) / across)
    return max(COLUMN, panel * across + 0.4), (panel + 0.17) * rows + 0.5


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    return (
        "t-SNE of the features before normalisation layers, one embedding per panel. Above each: the silhouette of"
        f" malicious against benign images in the features themselves; * above the 95 % interval of {PERMUTATIONS:,}"
        f" random labellings. {describe(numbers, batches=1)}"
    )


register(
    "tsne",
    Figure(
        title="where malicious images lie among the benign ones",
        paper="4, 8, 9",
        measure=measure,
        draw=draw,
        caption=caption,
        size=size,
        version=2,
        parts=lambda settings: len(settings.epsilons) * len(settings.estimators) + 1,
        complete=embed_panels,
        choose=choose_layers,
    ),
)
