"""Running: what is finished stays finished, and a killed run ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medbn import bench
from medbn.bench import cell_stream, executors, loading
from medbn.bench.cell import Cell
from medbn.bench.poison_cache import CachedAttack, PoisonCache

SCRIPT = """
import json, sys
from medbn import bench
from medbn.bench import recipe_file
recipe = recipe_file.read(sys.argv[1])
executor = bench.Processes(bench.Place(), int(sys.argv[3])) if int(sys.argv[3]) > 1 else None
if __name__ == "__main__":
    bench.run(recipe, sys.argv[2], place=bench.Place(threads=1), executor=executor)
"""

TOML = """
data = "digits"
model = "resnet-small"
weights = "shipped"
clean = "digits"
frost = "synthetic"
batch_size = 30
malicious = 6
methods = ["tebn", "tent", "eata", "sar", "sotta", "sema"]
estimators = ["median"]
corruptions = ["contrast"]
batches = 4
scenario = "{scenario}"
[[attacks]]
objective = "indiscriminate"
steps = 2
step_size = 0.1
"""


def numbers(path) -> dict[str, list[dict[str, object]]]:
    """Everything that a store holds but times."""
    with bench.Store(path) as store:
        timed = ("attack_s", "adapt_s", "shared")
        return {c.key: [{k: v for k, v in b.items() if k not in timed} for b in c.batches] for c in store.cells()}


def launch(tmp_path, recipe: str, store, jobs: int = 1) -> subprocess.Popen:
    (tmp_path / "recipe.toml").write_text(recipe)
    (tmp_path / "go.py").write_text(SCRIPT)
    arguments = [sys.executable, str(tmp_path / "go.py"), str(tmp_path / "recipe.toml"), str(store), str(jobs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, start_new_session=True)


def finished(path) -> int:
    """How many batches a store has, by a look that leaves no trace."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM batches").fetchone()[0]
    except sqlite3.OperationalError:  # not there yet
        return 0


@pytest.mark.parametrize("scenario", ["instant", "cumulative"])
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path, scenario):
    recipe = TOML.format(scenario=scenario)
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    child = launch(tmp_path, recipe, whole)
    assert child.wait(120) == 0, child.stderr.read()
    child.stderr.close()
    chance = random.Random(scenario)
    kills, seen = 0, [0]
    for _ in range(40):
        child = launch(tmp_path, recipe, killed)
        upto = seen[-1] + chance.randint(3, 6)
        while child.poll() is None and finished(killed) < upto:
            time.sleep(0.01)
        try:
            code = child.wait(chance.uniform(0.0, 0.2))  # somewhere in the batches after that
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kills += 1
            code = None
        child.stderr.close()
        if killed.exists():
            with bench.Store(killed) as store:
                seen.append(sum(len(cell.batches) for cell in store.cells()))
        if code is not None:
            assert code == 0
            break
    assert kills >= 2
    assert seen == sorted(seen)  # nothing that was finished is ever lost
    assert numbers(killed) == numbers(whole)


def test_two_runs_at_once_share_the_work(tmp_path):
    recipe = TOML.format(scenario="instant").replace("batches = 4", "batches = 3")
    together, alone = tmp_path / "together.db", tmp_path / "alone.db"
    children = [launch(tmp_path, recipe, together) for _ in range(2)]
    for child in children:
        assert child.wait(120) == 0, child.stderr.read()
        child.stderr.close()
    child = launch(tmp_path, recipe, together)  # what one found busy, it left to the other
    assert child.wait(120) == 0
    child.stderr.close()
    child = launch(tmp_path, recipe, alone)
    assert child.wait(120) == 0
    child.stderr.close()
    assert numbers(together) == numbers(alone)


def test_processes_give_the_numbers_of_one(tmp_path, tiny):
    bench.run(tiny, tmp_path / "one.db", place=bench.Place(threads=1))
    events = []
    place = bench.Place(threads=1)
    bench.run(tiny, tmp_path / "two.db", place=place, executor=bench.Processes(place, 2), on_event=events.append)
    assert numbers(tmp_path / "one.db") == numbers(tmp_path / "two.db")
    assert sum(event.kind == "finished" for event in events) == 4
    assert sum(event.kind == "batch" for event in events) == 12


def test_an_error_in_one_process_is_raised_and_the_others_finish(tmp_path, tiny):
    broken = replace(tiny, options={"tent": {"lr": -1.0}})
    place = bench.Place(threads=1)
    with pytest.raises(ValueError, match=r"tent .*learning rate"):
        bench.Processes(place, 2).run([(cell, 3) for cell in broken.cells()], tmp_path / "x.db", lambda event: None)
    assert [len(batches) for batches in numbers(tmp_path / "x.db").values()] == [3, 3]  # TeBN's
    with pytest.raises(ValueError, match="jobs must be"):
        bench.Processes(place, 0)


def test_finished_cells_are_not_run_again_and_streams_are_continued(tmp_path, tiny):
    store, events = tmp_path / "x.db", []
    bench.run(replace(tiny, batches=1), store)
    first = numbers(store)
    bench.run(tiny, store, on_event=events.append)
    assert sum(event.kind == "batch" for event in events) == 4 * 2
    second = numbers(store)
    assert all(second[key][:1] == batches for key, batches in first.items())
    events.clear()
    bench.run(tiny, store, on_event=events.append)
    assert {event.kind for event in events} == {"finished"}
    bench.run(tiny, tmp_path / "whole.db")
    assert numbers(tmp_path / "whole.db") == second


def test_a_run_stopped_by_hand_keeps_what_is_finished(tmp_path, tiny):
    def stop(event: bench.Event) -> None:
        if event.kind == "batch" and event.batch == 2:
            raise KeyboardInterrupt

    store = tmp_path / "x.db"
    with pytest.raises(KeyboardInterrupt):
        bench.run(tiny, store, on_event=stop)
    assert [len(batches) for batches in numbers(store).values()] == [2]
    with bench.Store(store) as opened:
        assert opened.runs()[0].ended is None
        assert opened.connection.execute("SELECT count(*) FROM cells WHERE host IS NOT NULL").fetchone() == (0,)


def test_keys_follow_everything_that_determines_the_numbers(tiny):
    cell = next(tiny.cells())
    other = [
        replace(cell, method="tent"),
        replace(cell, estimator="median"),
        replace(cell, corruption="fog"),
        replace(cell, seed=1),
        replace(cell, scenario="cumulative"),
        replace(cell, predict="before"),
        replace(cell, options={"lr": 1.0}),
        replace(cell, attack=None),
        replace(cell, attack=replace(cell.attack, steps=3)),
        replace(cell, setting=replace(cell.setting, batch_size=31)),
        replace(cell, setting=replace(cell.setting, malicious=7)),
        replace(cell, setting=replace(cell.setting, severity=4)),
    ]
    keys = {cell.key("d", "w"), cell.key("e", "w"), cell.key("d", "v"), *(one.key("d", "w") for one in other)}
    keys |= {cell.key("d", "w", "c"), cell.key("d", "w", "", "code")}
    assert len(keys) == 5 + len(other)
    moved = replace(cell, setting=replace(cell.setting, weights="elsewhere.safetensors"))
    assert moved.key("d", "w") == cell.key("d", "w")
    assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell


def test_what_a_batch_stores(tmp_path, tiny):
    targeted = replace(tiny, attacks=(bench.Attack("targeted", steps=1),), batches=1, methods=("tebn",))
    bench.run(targeted, tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        stored = store.cells()[0]
        (batch,) = stored.batches
        assert len(store.examples(stored.key)) == 6
    assert batch["images"] == 30
    assert batch["benign"] == 24
    assert batch["hit"] in (0, 1)
    assert batch["wrong_without"] <= batch["wrong_clean"]
    assert batch["attack_s"] > 0
    assert batch["adapt_s"] > 0
    assert {"device", "torch", "medbn", "threads", "python"} <= set(stored.facts)


def test_numbers_are_those_of_the_library(tmp_path, tiny):
    import medbn
    from medbn import data, models

    single = replace(tiny, methods=("tent",), estimators=("median",))
    bench.run(single, tmp_path / "x.db")
    (batches,) = numbers(tmp_path / "x.db").values()
    model = models.get("resnet-small", weights="shipped")
    adapter = medbn.adapt(model, "tent", "median", predict="after")
    stream = data.load("digits", corruption="contrast", frost="synthetic").batches(30, limit=3)
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=2, step_size=0.1)
    for batch, outcome in zip(batches, medbn.attacks.instant(adapter, stream, attack, slice(24, 30)), strict=True):
        assert batch["wrong"] == round(outcome.harm() * 24)
        assert batch["wrong_without"] == round(outcome.harm_without() * 24)


def test_methods_with_the_same_surrogate_share_what_is_crafted(tmp_path, tiny):
    recipe = replace(tiny, methods=("tebn", "tent", "eta", "sar", "sema"), estimators=("mean",), batches=2)
    events = []
    cell_stream._poison_cache.batches.clear()
    bench.run(recipe, tmp_path / "x.db", on_event=lambda e: events.append(e) if e.kind == "batch" else None)
    shared = {(e.cell.method, e.batch): e.metrics["shared"] for e in events}
    assert shared[("tebn", 1)] is False
    assert all(shared[(method, 1)] for method in ("tent", "eta", "sar"))
    assert not shared[("sema", 1)]  # normalises with other statistics
    assert not any(shared[(method, 2)] for method in ("tent", "eta", "sema"))  # has moved since
    cell_stream._poison_cache.batches.clear()
    alone = replace(recipe, methods=("tent",))
    bench.run(alone, tmp_path / "alone.db")
    assert set(map(repr, numbers(tmp_path / "alone.db").values())) <= set(
        map(repr, numbers(tmp_path / "x.db").values())
    )


def test_what_an_attacker_of_past_sees_is_shared_by_its_weight(tiny):
    from medbn import methods, models

    model = models.get("resnet-small", weights="shipped")
    attack = CachedAttack(tiny.attacks[0].build(0), PoisonCache(), "weights")
    images, labels = torch.rand(4, 1, 16, 16), torch.arange(4)
    keys = [
        attack.key(methods.adapt(model, "past", **options), images, labels, slice(3, 4))
        for options in ({}, {"momentum": 0.9}, {"batch_size": 20})
    ]
    assert keys[0] == keys[1] != keys[2]  # the first batch weighs by its images alone, whatever the momentum


def test_a_memo_forgets_the_oldest():
    memo = PoisonCache()
    for number in range(40):
        memo.put(str(number), torch.tensor(number))
    assert memo.get("0") is None
    assert memo.get("39") == 39


def test_unrolled_attacks_and_later_batches_are_never_shared(tmp_path, tiny):
    unrolled = replace(tiny, methods=("tebn", "tent"), estimators=("mean",), batches=1)
    unrolled = replace(unrolled, attacks=(replace(tiny.attacks[0], unroll=1),))
    seen = []
    cell_stream._poison_cache.batches.clear()
    for rate in (1e-3, 0.3):
        options = {"tent": {"lr": rate}}
        bench.run(replace(unrolled, options=options), tmp_path / f"{rate}.db", on_event=seen.append)
    assert not any(event.metrics["shared"] for event in seen if event.kind == "batch")
    assert not cell_stream._poison_cache.batches
    bench.run(replace(tiny, estimators=("mean",)), tmp_path / "x.db")
    assert len(cell_stream._poison_cache.batches) == 1  # of three batches of two methods


def test_knowledge_is_part_of_what_is_shared(tiny):
    import medbn
    from medbn import data, models

    model = models.get("resnet-small", weights="shipped")
    images, labels = next(data.load("digits").batches(20))
    tent, tebn = medbn.adapt(model, "tent", "mean"), medbn.adapt(model, "tebn", "mean")
    attack = bench.Attack("targeted").build(0)

    def key(adapter, attack) -> str:
        return CachedAttack(attack, PoisonCache(), "model").key(adapter, images, labels, slice(15, 20))

    assert key(tent, attack) == key(tebn, attack)
    semi = replace(attack, knowledge="semi")
    before = key(tent, semi)
    tent(images)
    assert key(tent, semi) == before
    assert key(tent, attack) != key(tebn, attack)


def test_what_is_missing_is_said_before_anything_starts(tmp_path):
    recipe = bench.recipes.get("cumulative")
    place = bench.Place(root=str(tmp_path))
    with pytest.raises(bench.MissingError) as error:
        bench.run(recipe, tmp_path / "x.db", place=place)
    text = str(error.value)
    for part in ("medbn data generate cifar10-c", "medbn data fetch cifar10", "medbn train resnet26 --data cifar10"):
        assert part in text
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        ({}, "--data cifar10 --out {}/models/resnet26-cifar10.safetensors"),
        ({"weights": "no file.pt"}, "--data cifar10 --out 'no file.safetensors', and then name no file.safetensors"),
        ({"clean": None, "weights": "no.safetensors"}, "--data cifar10 --out no.safetensors;"),
    ],
)
def test_weights_that_are_missing_are_made_by_a_command_that_works(setting, command, tmp_path):
    (*_, text) = bench.missing_requirements(replace(bench.recipes.CIFAR10, **setting), (), tmp_path)
    assert f"but there is no such file (make one: medbn train resnet26 {command.format(tmp_path)}" in text


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("past", {"momentum": 2.0}, "options of past: momentum is a weight between 0 and 1"),
        ("tent", {"lr": -1.0}, "options of tent: Invalid learning rate"),
        ("eata", {"steps": 0}, "options of eata: steps"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(method, options, message, tmp_path, tiny):
    recipe = replace(tiny, methods=("tebn", method), options={method: options})
    with pytest.raises(ValueError, match=message):
        bench.run([tiny, recipe], tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


MINE = """
import torch
from medbn import models

def build():
    model = models.get("resnet-small", weights="shipped")
    return SIGNED(model)

class SIGNED(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return {sign} * self.model(x)
"""


def test_a_users_model_brings_its_weights_and_its_code_counts(tmp_path, tiny, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    mine = replace(tiny, settings=(replace(tiny.settings[0], model="my_nets:build", weights=None),), batches=1)
    mine = replace(mine, methods=("tebn",), estimators=("mean",), attacks=())
    counts = []
    for sign in ("+1", "-1"):
        (tmp_path / "my_nets.py").write_text(MINE.format(sign=sign))
        importlib.invalidate_caches()
        sys.modules.pop("my_nets", None)
        sys.dont_write_bytecode = True
        loading.load_model.cache_clear()
        bench.run(mine, tmp_path / "x.db")
        counts.append(len(numbers(tmp_path / "x.db")))
    assert counts == [1, 2]


def test_a_mean_is_attacked_with_what_there_is(tmp_path, tiny):
    only = replace(tiny, attacks=(replace(tiny.attacks[0], gradient="straight_through"),), estimators=("mean",))
    assert len(list(only.cells())) == 2
    nothing = replace(tiny, settings=(replace(tiny.settings[0], malicious=0),))
    with pytest.raises(ValueError, match="nothing to run"):
        bench.run(nothing, tmp_path / "x.db")


def test_streams_that_are_too_short_are_refused(tmp_path, tiny):
    long = replace(tiny, settings=(replace(tiny.settings[0], batch_size=900, malicious=10),))
    with pytest.raises(ValueError, match="fewer than one batch of 900"):
        bench.run(long, tmp_path / "x.db")


def test_deterministic_settings_are_put_back():
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), torch.backends.cudnn.benchmark
    with bench.deterministic(bench.Place(threads=1)):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == 1
    after = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), torch.backends.cudnn.benchmark
    assert before == after


@pytest.mark.gpu
def test_a_gpu_run_continues_to_the_same_bits(tmp_path, tiny):
    place = bench.Place(device="cuda")
    recipe = replace(tiny, methods=("tebn", "tent", "sotta"))
    bench.run(recipe, tmp_path / "whole.db", place=place)
    bench.run(replace(recipe, batches=1), tmp_path / "parts.db", place=place)
    bench.run(recipe, tmp_path / "parts.db", place=place)
    assert numbers(tmp_path / "whole.db") == numbers(tmp_path / "parts.db")


def test_several_recipes_are_one_piece_of_work(tmp_path, tiny):
    """What they share is done once, as far as any of them wants it."""
    short = replace(tiny, name="short", batches=1)
    other = replace(tiny, name="other", batches=1, attacks=())
    events = []
    assert bench.run([short, tiny, other], tmp_path / "x.db", on_event=events.append)
    with bench.Store(tmp_path / "x.db") as store:
        assert [run.recipe["name"] for run in store.runs()] == ["short", tiny.name, "other"]
        assert all(run.ended for run in store.runs())
        assert sorted(len(cell.batches) for cell in store.cells()) == [1, 1, 1, 1, 3, 3, 3, 3]
    assert sum(event.kind == "started" for event in events) == 8


@pytest.mark.parametrize("jobs", [1, 2])
def test_time_that_is_up_stops_a_run_and_loses_nothing(tmp_path, tiny, jobs):
    place = bench.Place(threads=1)
    executor = bench.Processes(place, jobs) if jobs > 1 else None
    assert not bench.run(tiny, tmp_path / "x.db", place=place, executor=executor, seconds=0)
    some = numbers(tmp_path / "x.db")
    assert some
    assert sum(map(len, some.values())) < 12
    assert bench.run(tiny, tmp_path / "x.db", place=place, executor=executor, seconds=600)
    bench.run(tiny, tmp_path / "whole.db", place=place)
    assert numbers(tmp_path / "x.db") == numbers(tmp_path / "whole.db")


def test_cells_that_share_a_crafted_batch_stay_together(tiny):
    work = [(cell, 1) for cell in tiny.cells()]
    together = [[(cell.method, cell.estimator) for cell, _ in group] for group in executors.group_by_poison(work)]
    assert together == [[("tebn", "mean"), ("tent", "mean")], [("tebn", "image_median"), ("tent", "image_median")]]
    apart = executors.group_by_poison([(cell, 1) for cell in replace(tiny, attacks=()).cells()])
    assert [len(group) for group in apart] == [1, 1, 1, 1]
    assert executors.group_by_poison([]) == []


def test_a_sealed_store_keeps_results_and_cannot_be_continued(tmp_path, tiny):
    bench.run(replace(tiny, batches=1), tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        store.seal(tmp_path / "sealed.db")
        with pytest.raises(bench.StoreError, match="exists already"):
            store.seal(tmp_path / "sealed.db")
    assert (tmp_path / "sealed.db").stat().st_size < (tmp_path / "x.db").stat().st_size
    assert numbers(tmp_path / "sealed.db") == numbers(tmp_path / "x.db")
    assert bench.run(replace(tiny, batches=1), tmp_path / "sealed.db")
    with pytest.raises(ValueError, match=r"sealed.db is sealed: .* cannot be continued"):
        bench.run(tiny, tmp_path / "sealed.db")


def test_a_seed_gives_every_corruption_an_order_of_its_own(tiny):
    setting = tiny.settings[0]
    orders = {}
    for seed, corruption in ((0, "fog"), (0, "contrast"), (1, "fog"), (1, "contrast"), (2, "fog")):
        found = loading.load_stream(setting.data, corruption, 1, setting.frost, seed, None)
        orders[seed, corruption] = found.labels.tolist()
    assert orders[0, "fog"] == orders[0, "contrast"]
    assert len({tuple(order) for order in orders.values()}) == 4


@pytest.mark.parametrize("scenario", ["instant", "cumulative"])
def test_a_warm_up_is_served_without_attack(tmp_path, tiny, scenario):
    given = {"methods": ("sema",), "estimators": ("median",), "batches": 3, "scenario": scenario}
    whole = replace(tiny, **given)
    warm = replace(whole, name="warm", warm_up=2)
    for recipe in (whole, warm):
        bench.run(recipe, tmp_path / f"{recipe.name}.db")
    (all_attacked,), (found,) = (numbers(tmp_path / f"{recipe.name}.db").values() for recipe in (whole, warm))
    assert [set(batch) for batch in found[:2]] == [{"images", "wrong_clean", "device"}] * 2
    assert [batch["wrong_clean"] for batch in found] == [batch["wrong_clean"] for batch in all_attacked]
    same = found[2] == all_attacked[2]
    assert same == (scenario == "instant")  # where no batch has seen another's poison
    with bench.Store(tmp_path / "warm.db") as store:
        (results,) = bench.results.read(store)
    assert len(results.batches) == 1
    assert results.worst().value == results.harm().value == found[2]["wrong"] / found[2]["benign"]


def test_a_warm_up_is_shorter_than_the_stream(tiny):
    for warm_up in (-1, 3):
        with pytest.raises(ValueError, match=f"fewer batches than there are, got {warm_up} of 3"):
            replace(tiny, batches=3, warm_up=warm_up)


def test_results_from_before_there_was_a_warm_up_are_taken_up(tiny):
    cell = next(iter(tiny.cells()))
    assert cell.key("data", "weights") != replace(cell, warm_up=1).key("data", "weights")
    assert "warm_up" in cell.to_dict()
    assert Cell.from_dict({name: value for name, value in cell.to_dict().items() if name != "warm_up"}) == cell


def test_the_worst_attack_is_over_batches_that_saw_all_attacks(tiny):
    cell = replace(next(iter(tiny.cells())), estimator="median")
    exact, smooth = (replace(cell, attack=replace(cell.attack, gradient=g)) for g in ("exact", "smooth"))
    hits = {exact: [1, 0, 0], smooth: [0, 1, 0, 1, 1]}
    made = [bench.results.Result("", c, [{"hit": h} for h in each], {}) for c, each in hits.items()]
    assert bench.results.Results({}, [], made).worst().value == pytest.approx(2 / 3)
    assert bench.results.Results({}, [], made[1:]).worst().value == pytest.approx(3 / 5)
    assert bench.results.Results({}, [], []).worst() is None


def test_the_script_that_reproduces_everything_runs(tmp_path):
    script = Path(__file__).parents[2] / "experiments" / "reproduce.py"
    options = (
        "priors --smoke --batches 1 --estimators mean image_median --gradients exact --store x.db --seal sealed.db"
    )
    for said in ("4 batches in", "0 batches in"):  # the second time, all is there
        run = subprocess.run(
            [sys.executable, script, *options.split()], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert said in run.stdout
        assert "all is done" in run.stdout
    assert len(numbers(tmp_path / "sealed.db")) == 4
    wrong = subprocess.run([sys.executable, script, "prior"], capture_output=True, text=True, cwd=tmp_path)
    assert wrong.returncode == 2
    assert "pieces are no-attack, instant" in wrong.stderr
