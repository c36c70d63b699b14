"""The Triton kernels without a GPU: through Triton's interpreter, and where the package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from medbn.kernels import triton


@pytest.mark.slow
@pytest.mark.parametrize("module", ["interpreted", "activated"])
def test_all_kernels_agree_with_the_reference_in_the_interpreter(module: str) -> None:
    """Run a module in a process of its own: Triton decides at its import whether it interprets."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-m", f"tests.kernels.{module}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all agree" in done.stdout


def test_a_triton_that_does_not_load_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "medbn.kernels.triton.orchestration", None)
    monkeypatch.delattr(triton, "orchestration", raising=False)  # set on the package once it was imported
    triton._load.cache_clear()
    try:
        with pytest.warns(UserWarning, match="GPU kernels are off"):
            assert not triton.available()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not triton.available()
            assert "orchestration" in triton.reason()
    finally:
        triton._load.cache_clear()


@pytest.mark.slow
def test_importing_medbn_does_not_import_triton() -> None:
    code = "import sys, medbn; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_an_unknown_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from medbn.kernels.triton import program

    monkeypatch.setattr(program, "_by_driver", None)
    for launcher in ("triton", "driver"):
        monkeypatch.setenv("MEDBN_LAUNCH", launcher)
        monkeypatch.setattr(program, "_by_driver", None)
        assert program.launches_by_driver() == (launcher == "driver")
    monkeypatch.setattr(program, "_by_driver", None)
    monkeypatch.setenv("MEDBN_LAUNCH", "drivers")
    with pytest.raises(ValueError, match="Did you mean 'driver'"):
        program.launches_by_driver()
    with pytest.raises(ValueError, match="driver, triton"), program.use_launcher("cuda"):
        pass
