"""Tests hold on a busy machine: one torch thread per process, and no time limits."""

import ast
import os
from pathlib import Path

import torch

TESTS = Path(__file__).parent


def test_this_process_and_those_that_it_starts_have_one_torch_thread():
    assert torch.get_num_threads() == 1
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"  # child processes inherit these


def test_no_test_sleeps_or_sets_a_time_limit():
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "timeout" in text or "sleep" in text else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                limited = any(k.arg == "timeout" and ast.unparse(k.value) != "None" for k in node.keywords)
                if name == "init_process_group":  # a group's own limit, after which a process that hangs is an error
                    continue
                if limited or name == "sleep":
                    found.append(f"{file.relative_to(TESTS)}:{node.lineno} {name}")
    assert found == []
