"""What GitHub runs: pinned actions, the supported versions of Python, targets and files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_actions_are_pinned_and_the_same_everywhere():
    pins: dict[str, set[str]] = {}
    for workflow in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([\w.-]+/[\w.-]+)@(.+)", workflow.read_text(encoding="utf-8")):
            pins.setdefault(action, set()).add(pin)
            # The hash of this one could not be read from a clone of a version that knows today's metadata.
            by_tag = r"v\d+\.\d+\.\d+" if action == "pypa/gh-action-pypi-publish" else r"[0-9a-f]{40} # v\d+\.\d+\.\d+"
            assert re.fullmatch(by_tag, pin), (workflow.name, action, pin)
    assert pins
    assert {action for action, found in pins.items() if len(found) > 1} == set()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_and_no_more(workflow):
    text = workflow.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read$", text, flags=re.MULTILINE)
    rights = set(re.findall(r"^ +([\w-]+: write)$", text, flags=re.MULTILINE))
    assert rights == {"docs.yml": {"pages: write", "id-token: write"}, "release.yml": {"id-token: write"}}.get(
        workflow.name, set()
    )


def test_supported_versions_of_python_are_tested():
    classified = re.findall(r"Python :: (3\.\d+)", read("pyproject.toml"))
    (tested,) = re.findall(r"python: \[(.+)\]", read(".github/workflows/tests.yml"))
    assert [version.strip(' "') for version in tested.split(",")] == classified
    assert f'requires-python = ">={classified[0]}"' in read("pyproject.toml")


def test_oldest_torch_that_is_tested_is_the_oldest_that_is_allowed():
    (oldest,) = re.findall(r"^torch==(\S+); python_version < ", read(".ci/oldest.txt"), flags=re.MULTILINE)
    (allowed,) = re.findall(r'"torch>=([\d.]+)"', read("pyproject.toml"))
    assert oldest.startswith(allowed + ".")


def test_what_lint_and_typecheck_run_is_run_before_a_commit():
    makefile, hooks = read("Makefile"), read(".pre-commit-config.yaml")
    recipes = re.findall(r"^(?:lint|typecheck): .*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)
    tools = set(re.findall(r"\$\(BIN\)/([\w-]+(?: format)?)", "".join(recipes)))
    assert {"ruff", "ruff format", "codespell", "mypy", "check-jsonschema"} <= tools
    assert set(re.findall(r"entry: \.venv/bin/([\w-]+(?: format)?)", hooks)) == tools


def test_targets_and_scripts_that_workflows_run_exist():
    targets = set(re.findall(r"^(\w+):", read("Makefile"), flags=re.MULTILINE))
    commands = "\n".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, ROOT / ".ci" / "run"])
    assert {name for names in re.findall(r"\bmake ((?:\w+ ?)+)", commands) for name in names.split()} <= targets
    assert all((ROOT / name).stat().st_mode & 0o111 for name in re.findall(r"run: (\.ci/\w+)", commands))


@pytest.mark.skipif(sys.platform == "win32", reason="a script for bash")
@pytest.mark.parametrize(
    ("tag", "heading", "complaint"),
    [
        ("v1.2.3", "## 1.2.3 (2024-05-06)", ""),
        ("v1.2.4", "## 1.2.3 (2024-05-06)", "_version.py"),
        ("1.2.3", "## 1.2.3 (2024-05-06)", "_version.py"),
        ("v1.2.3", "## 1.2.3 (unreleased)", "CHANGELOG.md"),
    ],
)
def test_release_needs_the_tag_of_its_version_and_a_date(tag, heading, complaint, tmp_path):
    for name, text in {
        ".ci/release": read(".ci/release"),
        "src/medbn/_version.py": re.sub(r'"[\d.]+"', '"1.2.3"', read("src/medbn/_version.py")),
        "CHANGELOG.md": f"# Changelog\n\n{heading}\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(["bash", ".ci/release", tag], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (not complaint)
    assert complaint in done.stderr
