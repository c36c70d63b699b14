"""What is published: the source archive and the wheels, and a fresh environment that has nothing but a wheel."""

from __future__ import annotations

import bisect
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import medbn
from medbn.kernels import c

ROOT = Path(__file__).parents[1]
LIBRARY = "medbn/kernels/c/_kernels.abi3.so"
STRAY = ("src/medbn/notes.txt", "src/medbn/bench/medbn.db", "build/lib/medbn/removed.py", "tests/stray.py")
"""Files of a working checkout that belong into nothing published."""

pytestmark = pytest.mark.slow
pytest.importorskip("build")
linux = pytest.mark.skipif(sys.platform != "linux", reason="file names and tools of Linux")


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("git knows the files of a checkout")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, tracked: set[str]) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name in STRAY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


@pytest.fixture(scope="module")
def published(checkout: Path) -> tuple[Path, Path]:
    """The source archive, and the wheel that is built from it."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", ".", cwd=checkout)
    (archive,) = (checkout / "dist").glob("*.tar.gz")
    (wheel,) = (checkout / "dist").glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def library(published: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not c.available():
        pytest.skip(c.reason())
    return Path(zipfile.ZipFile(published[1]).extract(LIBRARY, tmp_path_factory.mktemp("wheel")))


def install(wheel: Path, folder: Path) -> Path:
    """Return the ``medbn`` of a fresh environment with the wheel; all else is read from this environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    base = {"base": str(folder), "platbase": str(folder)}
    python = Path(sysconfig.get_path("scripts", "venv", base)) / Path(sys.executable).name
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    packages = Path(sysconfig.get_path("purelib", "venv", base))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # finds packages, runs no .pth files there
    return python.with_name("medbn")


def outside(command: list[str | Path], folder: Path) -> str:
    """Run a command where no checkout is found."""
    hidden = {"PYTHONPATH", "MEDBN_KERNELS", "MEDBN_C_ISA"}
    return run(*command, cwd=folder, env={name: os.environ[name] for name in os.environ if name not in hidden})


def test_source_archive_has_the_package_and_what_describes_it(published, tracked):
    with tarfile.open(published[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    generated = {name for name in names if name in {"PKG-INFO", "setup.cfg"} or ".egg-info/" in name}
    described = {"README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "LICENSE", "NOTICE.md"}
    configured = {"pyproject.toml", "setup.py", "MANIFEST.in"}
    assert names - generated == {name for name in tracked if name.startswith("src/")} | described | configured


def test_wheel_has_the_package_the_library_and_the_licences(published, tracked):
    names = set(zipfile.ZipFile(published[1]).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    compiled = {name for name in package if name.endswith((".c", ".h"))}
    assert names - metadata == (package - compiled) | ({LIBRARY} if c.available() else set())
    assert {Path(name).name for name in metadata if "/licenses/" in name} == {"LICENSE", "NOTICE.md"}


def test_wheel_says_what_the_package_and_the_changelog_say(published):
    wheel = zipfile.ZipFile(published[1])
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, flags=re.MULTILINE)
    assert newest is not None
    assert metadata["Version"] == medbn.__version__ == newest.group(1)
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_licences_of_shipped_data_and_weights_are_stated(tracked):
    notice = (ROOT / "NOTICE.md").read_text(encoding="utf-8")
    stated = {f"src/{path}" for path in re.findall(r"`(medbn/\S+)`", notice)}
    code = (".py", ".c", ".h", ".css", ".js", ".html", "py.typed")
    assert stated == {name for name in tracked if name.startswith("src/") and not name.endswith(code)}


@linux
def test_wheel_serves_all_supported_versions_of_python(published):
    assert re.search(r"-cp310-abi3-linux_\w+\.whl$", published[1].name)


@linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump: apt-get install binutils")
def test_processor_without_avx_meets_no_avx_instruction(library):
    """What is compiled for AVX stands in the two files that are chosen at run time, and nowhere else."""
    functions = []  # address, file
    file = ""
    for line in run("objdump", "--syms", library).splitlines():
        if " df *ABS*" in line:
            file = line.split()[-1]
        elif (match := re.match(r"([0-9a-f]+) .{6}F \.text\s", line)) is not None:
            functions.append((int(match[1], 16), file if " l " in line[:24] else "exported"))
    functions.sort()
    files = set()
    for line in run("objdump", "--disassemble", "--section=.text", "--no-show-raw-insn", library).splitlines():
        match = re.match(r"\s+([0-9a-f]+):\s+(v[a-z0-9]+ |.*%[yz]mm)", line)
        if match is not None:
            files.add(functions[bisect.bisect(functions, (int(match[1], 16), "~")) - 1][1])
    assert files == {"avx2.c", "avx512.c"}


def test_commands_run_where_nothing_but_the_wheel_is_installed(published, tmp_path):
    """The short form of `medbn demo`; the workflow that builds the wheels runs the whole."""
    command = install(published[1], tmp_path / "fresh")
    python = command.with_name(Path(sys.executable).name)
    where = outside([python, "-c", "import medbn; print(medbn.__file__)"], tmp_path)
    assert where.startswith(str(tmp_path / "fresh"))
    outside([command, "run", "demo", "--smoke", "--quiet"], tmp_path)
    outside([command, "report"], tmp_path)
    assert "image_median" in (tmp_path / "medbn.html").read_text(encoding="utf-8")


def test_pure_wheel_needs_no_compiler_and_uses_torch(checkout, published, tmp_path):
    environment = {**os.environ, "MEDBN_PURE": "1", "CC": "false"}
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, "."]
    run(*build, cwd=checkout, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    python = install(wheel, tmp_path / "pure").with_name(Path(sys.executable).name)
    script = "import torch, medbn; print(medbn.kernels.selected(torch.ones(2, 3, 4, 4)))"
    assert outside([python, "-c", script], tmp_path).split() == ["reference"]
