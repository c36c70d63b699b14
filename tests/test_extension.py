"""One of each registered kind, defined here and not in the package: it is listed, runs in the bench, and is reported.

Nothing else is edited for it. A second list of names anywhere in the package fails here.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medbn import attacks, bench, cli, data, estimators, gradients, methods, models, policies
from medbn.bench.loading import user_code

from .registries import registries

IMAGES = 40
NAMES = {"halves", "mixture", "margin", "alternate", "halved", "stripes", "striped-net", "own-experiment"}


def mean_of_halves(x, valid=None):
    """Return the statistics of the first half of the images."""
    half = x[: (len(x) + 1) // 2].transpose(0, 1).flatten(1)
    return half.mean(1), half.var(1, unbiased=False)


class Mixture(methods.Adapter):
    """Mixes training and batch statistics."""

    label = "Mixture of Statistics"

    def __init__(self, model, *, weight=0.5, **options):
        super().__init__(model, **options)
        self.policy = policies.interpolate(weight)


@dataclass(frozen=True)
class Margin(attacks.Objective):
    """Lower the margin of the true classes."""

    label = "margin-lowering"
    harm_label = "error under margin"

    def value(self, logits, labels, benign):
        """Return minus the mean margin of the benign images."""
        true = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
        others = logits.masked_fill(F.one_hot(labels, logits.shape[1]).bool(), -torch.inf).amax(1)
        return torch.where(benign, others - true, 0.0).sum() / benign.sum()

    def harm(self, logits, labels, benign):
        """Return the share of benign images that are classified wrongly."""
        return ((logits.argmax(1) != labels) & benign).sum() / benign.sum()


class Alternate(attacks.Scenario):
    """Attacks without ever letting the state change: prediction and clean prediction are both undone."""

    def step(self, images, labels):
        """Attack and predict, and restore the state both times."""
        before = self.adapter.snapshot()
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        attacked = methods.predict_logits(self.adapter, poisoned)
        self.adapter.restore(before)
        clean = methods.predict_logits(self.adapter, images)
        self.adapter.restore(before)
        return self.outcome(poisoned, attacked, clean, images, labels)


def open_stripes(folder, split):
    """Return striped images; the class is the direction of the stripes."""
    labels = torch.arange(IMAGES) % 2
    across = (torch.arange(16).view(16, 1) // 2 % 2 * 255).expand(16, 16)
    pair = torch.stack([across, across.T]).to(torch.uint8).unsqueeze(1)
    return data.from_tensors("stripes", split, ["across", "along"], pair[labels], labels)


def striped_net(classes=2, channels=1):
    """Return a small network with one normalisation layer."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, classes)
    )


def own_experiment():
    """Ours: everything at once."""
    return bench.Recipe(
        settings=(bench.Setting("stripes", "striped-net", weights="striped.pt", batch_size=20, malicious=4),),
        methods=("tebn", "mixture"),
        estimators=("mean", "halves"),
        attacks=(bench.Attack("margin", steps=1), bench.Attack("margin", steps=1, gradient="halved")),
        scenario="alternate",
        corruptions=("contrast",),
        options={"mixture": {"weight": 0.25}},
        batches=1,
    )


@pytest.fixture
def _extensions(tmp_path, monkeypatch):
    """Register one of each kind; remove them afterwards."""
    monkeypatch.chdir(tmp_path)
    registered = [
        (estimators, "halves", lambda: estimators.register("halves", mean_of_halves, label="Halves of the Batch")),
        (methods, "mixture", lambda: methods.register("mixture")(Mixture)),
        (attacks.objectives, "margin", lambda: attacks.objectives.register("margin")(Margin)),
        (attacks.scenarios, "alternate", lambda: attacks.scenarios.register("alternate")(Alternate)),
        (gradients, "halved", lambda: gradients.register("halved")(lambda estimator, width: estimators.get("halves"))),
        (data, "stripes", lambda: data.register("stripes", images=IMAGES, shape=(1, 16, 16))(open_stripes)),
        (models, "striped-net", lambda: models.register("striped-net")(striped_net)),
        (bench.recipes, "own-experiment", lambda: bench.recipes.register("own-experiment")(own_experiment)),
    ]
    undo = []
    try:
        for registry, name, register in registered:
            assert name not in registry.available()
            register()
            undo.append((registry, name))
            assert name in registry.available()
        torch.save(models.get("striped-net").state_dict(), "striped.pt")
        yield
    finally:
        for registry, name in undo:
            registry.unregister(name)


@pytest.mark.usefixtures("_extensions")
@pytest.mark.slow
def test_extensions_are_listed_run_and_reported(capsys):
    for command, names in [
        (["recipes"], ["own-experiment", "stripes", "striped-net"]),
        (["recipes", "own-experiment"], ["mixture", "halves", "margin", "alternate", "halved"]),
        (["data", "list"], ["stripes"]),
        (["models"], ["striped-net"]),
        (["run", "own-experiment", "--store", "own.db"], ["Mixture of Statistics", "Halves of the Batch"]),
    ]:
        assert cli.main(command) == 0
        printed = capsys.readouterr().out
        assert not [name for name in names if name not in printed], command
    with bench.Store("own.db") as store:
        cells = [bench.Cell.from_dict(stored.cell) for stored in store.cells()]
    assert len(cells) == 2 * (1 + 2)  # BatchNorm is attacked through its exact gradient alone
    shown = ["Mixture of Statistics", "Halves of the Batch", "margin-lowering", "under margin", "halved", "alternate"]
    for style in ("html", "markdown"):
        assert cli.main(["report", "own.db", "--format", style, "--out", f"own.{style}"]) == 0
        with open(f"own.{style}", encoding="utf-8") as file:
            text = file.read()
        assert not [name for name in shown if name.lower() not in text.lower()], style


@pytest.mark.usefixtures("_extensions")
def test_a_store_is_reported_where_its_extensions_are_not_registered(monkeypatch):
    assert cli.main(["run", "own-experiment", "--store", "own.db", "--quiet"]) == 0
    with monkeypatch.context() as elsewhere:
        for registry in registries():
            elsewhere.setattr(registry, "_values", {k: v for k, v in registry._values.items() if k not in NAMES})
        assert "margin" not in attacks.objectives.available()
        assert cli.main(["report", "own.db", "--format", "markdown", "--out", "own.md"]) == 0


@pytest.mark.usefixtures("_extensions")
def test_the_code_of_extensions_is_part_of_a_cells_key():
    *_, cell = (c for c in own_experiment().cells() if (c.method, c.estimator) == ("mixture", "halves"))
    code = user_code(cell)
    assert cell.attack.gradient == "halved"
    for source in (
        "class Mixture",
        "def mean_of_halves",
        "class Margin",
        "class Alternate",
        "def striped_net",
        '"halved"',
    ):
        assert source in code


@pytest.mark.usefixtures("_extensions")
def test_poison_is_reused_only_for_a_method_with_the_same_options():
    def shared(weight: float, store: str) -> list[bool]:
        options = {"mixture": {"weight": weight}}
        events = []
        recipe = own_experiment().narrow(methods=["mixture"], estimators=["mean"], options=options)
        bench.run(recipe, store, on_event=events.append)
        return [event.metrics["shared"] for event in events if event.kind == "batch"]

    assert shared(0.25, "first.db") == [False]
    assert shared(0.75, "other.db") == [False]  # the weight changes how images are normalised
    assert shared(0.25, "again.db") == [True]
