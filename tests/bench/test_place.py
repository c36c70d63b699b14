"""Where a run happens: deterministic settings, and the facts that are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medbn import bench

from .stored import stored_metrics


def test_deterministic_settings_are_restored():
    def settings():
        algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return *algorithms, torch.get_num_threads(), torch.backends.cudnn.benchmark

    before = settings()
    with bench.deterministic(bench.Place(threads=1)):
        assert settings() == (True, True, 1, False)
    assert settings() == before


def test_facts_name_the_machine_and_the_versions():
    facts = bench.machine_facts(bench.Place())
    assert set(facts) == {"device", "threads", "medbn", "torch", "numpy", "python", "system"}


@pytest.mark.gpu
def test_a_run_on_a_gpu_continues_to_the_same_bits(tmp_path, tiny):
    place = bench.Place(device="cuda")
    recipe = replace(tiny, methods=("tent", "sotta"))
    bench.run(recipe, tmp_path / "whole.db", place=place)
    bench.run(replace(recipe, batches=1), tmp_path / "parts.db", place=place)
    bench.run(recipe, tmp_path / "parts.db", place=place)
    assert stored_metrics(tmp_path / "whole.db") == stored_metrics(tmp_path / "parts.db")
