"""Executors: a run that is killed, shared or spread over processes ends with the bits of an undisturbed one."""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from medbn import bench
from medbn.bench import executors

from .stored import stored_metrics

SCRIPT = """
import os, signal, sys, torch
from medbn import bench
recipe, store, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
passes = 0

def count(*_):
    global passes
    passes += 1
    if passes == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

torch.nn.modules.module.register_module_forward_hook(count)
bench.run(bench.recipes.get(recipe), store, place=bench.Place(threads=1))
print(passes)
"""

TOML = """
data = "digits"
model = "resnet-small"
weights = "shipped"
clean = "digits"
frost = "synthetic"
batch_size = 30
malicious = 6
methods = ["tent", "eata", "sar", "sotta", "sema"]
estimators = ["median"]
corruptions = ["contrast"]
batches = 3
scenario = "cumulative"
[[attacks]]
objective = "indiscriminate"
steps = 2
step_size = 0.1
"""


def launch(folder, store, kill_at: int = 0) -> subprocess.Popen:
    """Start a process that runs the recipe, and kills itself in the forward pass of that number."""
    (folder / "run.py").write_text(SCRIPT)
    recipe = folder / "recipe.toml"
    recipe.write_text(TOML)
    command = [sys.executable, str(folder / "run.py"), str(recipe), str(store), str(kill_at)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen) -> int:
    """Wait for a process that ends well, and return how many forward passes it had."""
    out, errors = child.communicate()
    assert child.returncode == 0, errors
    return int(out)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The metrics of an undisturbed run, and its number of forward passes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    passes = finish(launch(folder, folder / "x.db"))
    return stored_metrics(folder / "x.db"), passes


@pytest.mark.slow
def test_a_run_that_is_killed_repeatedly_ends_with_the_same_bits(tmp_path, undisturbed):
    """At moments that every run of the tests repeats; ``tests/torture`` kills at random ones."""
    expected, passes = undisturbed
    store, rng = tmp_path / "killed.db", random.Random(0)
    finished = [0]
    for part in (0.2, 0.4, 0.4):
        child = launch(tmp_path, store, kill_at=int(passes * part * rng.uniform(0.7, 1.0)))
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        finished.append(sum(map(len, stored_metrics(store).values())))
    assert finished == sorted(finished)  # no stored batch is ever lost
    assert 0 < finished[1] < finished[-1] < sum(map(len, expected.values()))
    finish(launch(tmp_path, store))
    assert stored_metrics(store) == expected


@pytest.mark.slow
def test_two_runs_at_once_share_the_work(tmp_path, undisturbed):
    store = tmp_path / "together.db"
    passes = [finish(child) for child in [launch(tmp_path, store) for _ in range(2)]]
    passes.append(finish(launch(tmp_path, store)))  # runs what both left to the other
    expected, alone = undisturbed
    assert stored_metrics(store) == expected
    assert sum(passes) < 2 * alone


@pytest.mark.slow
def test_processes_give_the_numbers_of_one(tmp_path, tiny):
    place, events = bench.Place(threads=1), []
    bench.run(tiny, tmp_path / "one.db", place=place)
    executor = bench.Processes(place, 2)
    bench.run(tiny, tmp_path / "two.db", place=place, executor=executor, on_event=events.append)
    assert stored_metrics(tmp_path / "one.db") == stored_metrics(tmp_path / "two.db")
    assert sum(event.kind == "finished" for event in events) == 4
    assert sum(event.kind == "batch" for event in events) == 12


@pytest.mark.slow
def test_an_error_in_one_process_is_raised_after_the_other_cells_have_finished(tmp_path, tiny):
    broken = replace(tiny, options={"tent": {"lr": -1.0}})
    executor = bench.Processes(bench.Place(threads=1), 2)
    with pytest.raises(ValueError, match=r"tent .*lr is"):
        executor.run([(cell, 3) for cell in broken.cells()], tmp_path / "x.db", lambda event: None)
    assert [len(batches) for batches in stored_metrics(tmp_path / "x.db").values()] == [3, 3]  # TeBN's


@pytest.mark.slow
def test_cells_in_turns_have_as_many_batches_when_time_is_over_and_the_numbers_of_one_after_the_other(tmp_path, tiny):
    place, counts = bench.Place(threads=1), []

    def stop(event: bench.Event) -> None:
        if event.kind == "batch":
            counts.append(event.cell)
            if len(counts) == 6:
                raise KeyboardInterrupt

    executor = bench.InTurns(place)
    with pytest.raises(KeyboardInterrupt):
        bench.run(tiny, tmp_path / "turns.db", place=place, executor=executor, on_event=stop)
    assert [counts.count(cell) for cell in tiny.cells()] == [2, 2, 1, 1]
    assert bench.run(tiny, tmp_path / "turns.db", place=place, executor=executor)
    bench.run(tiny, tmp_path / "one.db", place=place)
    assert stored_metrics(tmp_path / "turns.db") == stored_metrics(tmp_path / "one.db")


def test_in_turns_an_error_in_one_cell_leaves_the_others_alone(tmp_path, tiny):
    broken = replace(tiny, options={"tent": {"lr": -1.0}})
    executor = bench.InTurns(bench.Place())
    with pytest.raises(ValueError, match=r"tent .*lr is"):
        executor.run([(cell, 1) for cell in broken.cells()], tmp_path / "x.db", lambda event: None)
    assert [len(batches) for batches in stored_metrics(tmp_path / "x.db").values()] == [1, 1]  # TeBN's


class SameProcess:
    """A context of ``multiprocessing`` whose processes run to their end in ``start``, in this process."""

    class Queue(queue.Queue):
        close = cancel_join_thread = join_thread = lambda self: None

    class Process:
        def __init__(self, target, args, daemon):
            self.start = lambda: target(*args)

        is_alive = terminate = join = lambda self: None


def test_a_claim_that_one_process_loses_is_no_error_of_the_cell(monkeypatch, tmp_path, tiny):
    """The command line ends with 3, unfinished, as it does without ``--jobs``."""
    tried = []

    def run_cell(cell, *_):
        tried.append(cell)
        if len(tried) == 1:
            raise bench.LostClaimError("another process has taken this cell over")

    monkeypatch.setattr(executors, "get_context", lambda method: SameProcess())
    monkeypatch.setattr(executors, "run_cell", run_cell)
    with pytest.raises(bench.LostClaimError, match="another process"):
        bench.Processes(bench.Place(), 1).run([(cell, 3) for cell in tiny.cells()], tmp_path / "x.db", print)
    assert tried == list(tiny.cells())  # the others are run


@pytest.mark.parametrize(("threads", "jobs", "each"), [(6, 2, 3), (1, 4, 1)])
def test_processes_divide_the_threads_of_this_one(monkeypatch, threads, jobs, each):
    """OMP_NUM_THREADS=1 limits them too, where `cpu_count` would give every process a thread per core."""
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert bench.Processes(bench.Place(), jobs).place.threads == each
    assert bench.Processes(bench.Place(threads=5), jobs).place.threads == 5


def test_there_is_at_least_one_process():
    with pytest.raises(ValueError, match="jobs"):
        bench.Processes(bench.Place(), 0)


def test_cells_that_can_share_a_poisoned_batch_stay_together(tiny):
    groups = executors.group_by_poison([(cell, 1) for cell in tiny.cells()])
    names = [[(cell.method, cell.estimator) for cell, _ in group] for group in groups]
    assert names == [[("tebn", "mean"), ("tent", "mean")], [("tebn", "image_median"), ("tent", "image_median")]]
    apart = executors.group_by_poison([(cell, 1) for cell in replace(tiny, attacks=()).cells()])
    assert [len(group) for group in apart] == [1, 1, 1, 1]
    assert executors.group_by_poison([]) == []
