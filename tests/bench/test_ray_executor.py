"""A real Ray cluster of two workers on this machine: the numbers of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from medbn import bench
from medbn.bench import ray_executor, ray_worker, user_modules
from medbn.cli import main

from .stored import stored_metrics

PLACE = bench.Place(threads=1)

KILLER = """
import os, signal, torch
from pathlib import Path

FOLDER = Path(__file__).parent
passes = 0

def count(*_):
    global passes
    passes += 1
    if passes < int((FOLDER / "passes").read_text()) or os.getpid() == int((FOLDER / "driver").read_text()):
        return
    try:
        (FOLDER / "deaths").open("a" if (FOLDER / "always").exists() else "x").write("x")
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

torch.nn.modules.module.register_module_forward_hook(count)
"""

DRIVER = """
import os, signal, sys
from medbn import bench

left = int(sys.argv[3])

def on_event(event):
    global left
    left -= event.kind == "batch"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

place = bench.Place(threads=1)
recipe = bench.recipes.get(sys.argv[1])
bench.run(recipe, sys.argv[2], place=place, executor=bench.Ray(place, jobs=2), on_event=on_event)
"""

TOML = """
data = "digits"
model = "resnet-small"
weights = "shipped"
frost = "synthetic"
batch_size = 30
malicious = 6
methods = ["tebn", "tent"]
estimators = ["mean", "image_median"]
corruptions = ["contrast"]
batches = 3
[[attacks]]
objective = "indiscriminate"
steps = 2
step_size = 0.1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two workers, which all tests of this module use."""
    pytest.importorskip("ray")
    ray = ray_executor.import_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=ray_executor.OBJECT_STORE)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What one process stores."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "recipe.toml").write_text(TOML)
    bench.run(bench.recipes.get(str(folder / "recipe.toml")), folder / "x.db", place=PLACE)
    return stored_metrics(folder / "x.db")


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text(TOML)
    return bench.recipes.get(str(tmp_path / "recipe.toml"))


@pytest.fixture
def killer(tmp_path, monkeypatch):
    """Make workers import a module that kills them in a forward pass; return a function that says in which."""
    name = f"killer_of_{tmp_path.name}"  # workers outlive a test and keep its modules
    monkeypatch.setattr(user_modules, "_files", {name: tmp_path / "killer.py"})
    monkeypatch.setattr(user_modules, "_imported", [name])
    (tmp_path / "killer.py").write_text(KILLER)
    (tmp_path / "driver").write_text(str(os.getpid()))

    def arm(passes: int, always: bool = False):
        (tmp_path / "passes").write_text(str(passes))
        if always:
            (tmp_path / "always").touch()
        return tmp_path / "deaths"

    return arm


@pytest.mark.slow
def test_two_workers_give_the_numbers_of_one_process(tmp_path, cluster, expected, recipe):
    events: list[bench.Event] = []
    assert bench.run(recipe, tmp_path / "x.db", place=PLACE, executor=bench.Ray(PLACE), on_event=events.append)
    assert stored_metrics(tmp_path / "x.db") == expected
    assert [event.kind for event in events].count("batch") == 12
    assert [event.kind for event in events].count("finished") == 4
    with bench.Store(tmp_path / "x.db") as store:
        assert store.connection.execute("SELECT count(*) FROM cells WHERE host IS NOT NULL").fetchone() == (0,)
        assert all(run.ended for run in store.runs())
        assert store.examples(store.cells()[0].key)
    assert cluster.is_initialized()  # the user's own connection is kept


@pytest.mark.slow
def test_a_killed_worker_loses_what_it_has_not_sent_and_nothing_else(tmp_path, cluster, expected, recipe, killer):
    deaths, events = killer(60), []
    assert bench.run(recipe, tmp_path / "x.db", place=PLACE, executor=bench.Ray(PLACE), on_event=events.append)
    assert deaths.read_text() == "x"
    assert stored_metrics(tmp_path / "x.db") == expected
    assert [event.kind for event in events].count("batch") == 12  # lost batches were never reported


@pytest.mark.slow
def test_a_worker_that_always_dies_is_given_up_and_the_rest_is_stored(tmp_path, cluster, expected, recipe, killer):
    deaths, one = killer(1, always=True), replace(recipe, estimators=("mean",))
    with pytest.raises(ValueError, match=r"worker has died 3 times"):
        bench.run(one, tmp_path / "x.db", place=PLACE, executor=bench.Ray(PLACE))
    assert deaths.read_text() == "xxx"
    deaths.with_name("passes").write_text("1000000")
    assert bench.run(recipe, tmp_path / "x.db", place=PLACE, executor=bench.Ray(PLACE))
    assert stored_metrics(tmp_path / "x.db") == expected


@pytest.mark.slow
def test_an_error_in_one_cell_is_raised_after_the_others_have_finished(tmp_path, cluster, tiny):
    broken = replace(tiny, options={"tent": {"lr": -1.0}})
    with pytest.raises(ValueError, match=r"tent .*lr is"):
        bench.Ray(PLACE).run([(cell, 3) for cell in broken.cells()], tmp_path / "x.db", lambda event: None)
    assert [len(batches) for batches in stored_metrics(tmp_path / "x.db").values()] == [3, 3]  # TeBN's


@pytest.mark.slow
def test_streams_are_continued_and_those_of_another_process_left_alone(tmp_path, cluster, expected, recipe):
    store, events = tmp_path / "x.db", []
    bench.run(replace(recipe, batches=2), store, place=PLACE, executor=bench.Ray(PLACE))
    key = next(iter(stored_metrics(store)))
    with bench.Store(store) as other:
        other.owner = ("another", 1, "7")
        other.claim(key, {}, {})
        assert not bench.run(recipe, store, place=PLACE, executor=bench.Ray(PLACE), on_event=events.append)
    assert [event.key for event in events if event.kind == "busy"] == [key]
    assert [event.kind for event in events].count("batch") == 3
    short = {one: batches[: 2 if one == key else 3] for one, batches in expected.items()}
    assert stored_metrics(store) == short


@pytest.mark.slow
def test_a_worker_with_other_data_is_an_error(tmp_path, cluster, tiny):
    """The key of a cell says which images, weights and code it has."""
    cell = next(tiny.cells())
    (message,) = ray_worker.run_group([(cell.to_dict(), 1, "another key")], [], PLACE, ({}, []))
    assert "data, the weights or the code" in message.error
    assert message.rows is None


@pytest.mark.slow
def test_what_no_machine_has_is_refused_at_once(tmp_path, cluster, tiny):
    work = [(cell, 1) for cell in tiny.cells()]
    for place, gpus in [(bench.Place(threads=64), None), (bench.Place(device="cuda"), 0.5)]:
        with pytest.raises(ValueError, match="machines of the cluster have"):
            bench.Ray(place, gpus=gpus).run(work, tmp_path / "x.db", lambda event: None)


@pytest.mark.slow
def test_a_killed_driver_continues_from_what_arrived(tmp_path, cluster, expected, recipe):
    (tmp_path / "driver.py").write_text(DRIVER)
    store = tmp_path / "x.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "recipe.toml"), str(store), "4"]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    stored = stored_metrics(store)
    done = sum(map(len, stored.values()))
    assert 4 <= done < 12
    events: list[bench.Event] = []
    assert bench.run(recipe, store, place=PLACE, executor=bench.Ray(PLACE), on_event=events.append)
    assert stored_metrics(store) == expected
    assert [event.kind for event in events].count("batch") == 12 - done


@pytest.mark.slow
def test_ctrl_c_is_that_of_a_local_run(tmp_path):
    pytest.importorskip("ray")
    arguments = ["run", "worst-case", "--smoke", "--methods", "tebn", "sotta", "--estimators", "mean", "median"]
    arguments += ["--store", str(tmp_path / "x.db"), "--executor", "ray", "--jobs", "2"]
    child = subprocess.Popen(
        [sys.executable, "-m", "medbn", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in child.stderr:
        if "%" in line and "  0 %" not in line:  # the first streams are done
            break
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert f"To continue: medbn {' '.join(arguments)}" in errors
    assert "Traceback" not in errors
    with bench.Store(tmp_path / "x.db") as store:
        assert store.connection.execute("SELECT count(*) FROM cells WHERE host IS NOT NULL").fetchone() == (0,)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nothing_listens_is_refused_at_once(address):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ray_executor.check_reachable(address.format(port))  # it asks whether something listens, not what
    with pytest.raises(ValueError, match=f"127.0.0.1:{port}"):
        ray_executor.check_reachable(address.format(port))
    with pytest.raises(ValueError, match="99999"):
        ray_executor.check_reachable(address.format(99999))
    for other in ("local", "auto", ""):
        ray_executor.check_reachable(other)


def test_without_ray_the_extra_is_named(monkeypatch, refusal, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["run", "demo", "--smoke", "--executor", "ray", "--quiet", "--store", str(tmp_path / "x.db")]
    assert "medbn[ray]" in refusal(arguments)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--address", "auto"], "--executor ray"),
        (["--gpus-per-task", "0.5"], "--executor ray"),
        (["--executor", "ray", "--device", "cpu", "--gpus-per-task", "0.5"], "GPUs"),
        (["--executor", "dask"], "dask"),
    ],
)
def test_wrong_arguments_are_refused(arguments, word, refusal, tmp_path):
    assert word in refusal(["run", "demo", "--smoke", "--store", str(tmp_path / "x.db"), *arguments])


def test_a_run_that_is_done_needs_no_cluster(tmp_path, monkeypatch, capsys):
    arguments = [
        "run",
        "demo",
        "--smoke",
        "--methods",
        "tebn",
        "--estimators",
        "mean",
        "--store",
        str(tmp_path / "x.db"),
    ]
    assert main([*arguments, "--quiet"]) == 0
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*arguments, "--quiet", "--executor", "ray"]) == 0
    assert capsys.readouterr().err == ""
