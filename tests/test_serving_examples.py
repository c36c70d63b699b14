"""The examples for Ray Serve and LitServe, over loopback: requests in batches, and a state that outlives a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

import medbn
from medbn import data, models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and signals of POSIX"),
]

ROOT = Path(__file__).parents[1]
PATIENCE = 300
"""Seconds after which a service that does not start is given up; nothing waits for it unless something is broken."""
REQUESTS = 60


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def service(name: str, port: int, state: Path, ready):
    """Run an example until it answers, and end it with everything that it has started."""
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--port", str(port), "--state", str(state)]
    # Ray Serve's workers get the environment of the process that starts them; no statistics are sent, no GPU is used.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples")]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with state.with_suffix(f".{port}.log").open("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=state.parent, start_new_session=True
        )
        try:
            wait_for(ready, process, log)
            yield process, log
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(ready, process, log):
    """Ask until ``ready`` returns something true; return it."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            answer = ready()
        except (OSError, urllib.error.URLError):
            answer = None
        if answer:
            return answer
        pause.wait(0.1)
    log.seek(0)
    raise AssertionError(f"the service does not answer:\n{log.read()[-3000:]}")


def ask(url: str, image: torch.Tensor) -> dict:
    body = json.dumps({"image": image.tolist()}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask_all(url: str) -> list[dict]:
    """The answers to many requests at once, of which most are right."""
    images, labels = next(iter(data.load("digits").batches(REQUESTS)))
    with ThreadPoolExecutor(REQUESTS) as threads:
        answers = list(threads.map(lambda image: ask(url, image), images))
    right = torch.tensor([answer["class"] for answer in answers]) == labels
    assert right.float().mean() > 0.9
    return answers


def assert_refused(url: str, image: torch.Tensor) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask(url, image)
    assert refusal.value.code == 400
    refusal.value.close()


def saved_images(state: Path) -> int:
    """How many images the average of the saved state is of."""
    tta = medbn.adapt(models.get("resnet-small", weights="shipped"), method="past", estimator="image_median@0.5")
    tta.load(state)
    return tta.memory["images"]


def test_ray_serve_forms_batches_and_a_killed_replica_is_replaced_by_one_with_its_state(tmp_path):
    pytest.importorskip("ray.serve")
    pytest.importorskip("starlette")
    state, port = tmp_path / "tta.safetensors", free_port()
    url, image = f"http://127.0.0.1:{port}/", torch.zeros(1, 16, 16)
    with service("ray_serve_service", port, state, lambda: ask(url, image)) as (process, log):
        answers = ask_all(url)
        (replica,) = {answer["process"] for answer in answers}
        assert len({answer["images"] for answer in answers}) < REQUESTS / 4  # calls had many images each
        learned = saved_images(state)
        assert 16 <= learned <= REQUESTS + 10
        assert_refused(url, image + 2)
        os.kill(replica, signal.SIGKILL)

        def ask_another():
            answer = ask(url, image)
            return answer if answer["process"] != replica else None

        assert wait_for(ask_another, process, log)["images"] >= learned


def test_litserve_forms_batches_and_the_next_process_continues(tmp_path):
    pytest.importorskip("litserve")
    state, seen = tmp_path / "tta.safetensors", [0]
    for _ in range(2):
        port = free_port()
        health = f"http://127.0.0.1:{port}/health"
        with service("litserve_service", port, state, lambda url=health: urllib.request.urlopen(url)):
            ask_all(f"http://127.0.0.1:{port}/predict")
            assert_refused(f"http://127.0.0.1:{port}/predict", torch.full((1, 16, 16), 2.0))
        seen.append(saved_images(state))
    assert 16 <= seen[1] <= REQUESTS
    assert seen[2] >= seen[1] + 16  # not from the beginning
