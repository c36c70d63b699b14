"""What `make docs` relies on; the site itself is built there."""

import importlib
import importlib.util
import json
import re
from pathlib import Path

import medbn

DOCS = Path(__file__).parents[1] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_links_are_found_and_others_are_not(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="here">x</h1><a href="#here"></a><a href="#gone">x</a><a href="folder/page.html#there"></a>'
        '<a href="folder/page.html#nowhere"></a><img src="none.png"><a href="https://example.org/none"></a>'
    )
    (tmp_path / "folder" / "page.html").write_text(
        '<p id="there"><a href="../index.html">x</a><a href="up%20.html"></a>'
    )
    broken = load("check_links").broken_links(tmp_path)
    assert [re.sub(r".* (\S+)$", r"\1", line) for line in broken] == [
        "up%20.html",
        "#gone",
        "folder/page.html#nowhere",
        "none.png",
    ]


def test_the_reference_has_everything_that_is_public():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst"))
    named = set(re.findall(r"auto\w+:: medbn\.(\w+)", pages)) | set(re.findall(r"``medbn\.(\w+)``", pages))
    for part in re.findall(r"automodule:: (medbn\.\S+)\n   :members:", pages):
        named |= set(getattr(importlib.import_module(part), "__all__", ()))
    assert set(medbn.__all__) - {"__version__"} <= named


def test_examples_of_the_gallery_have_a_place_in_its_order():
    names = {file.stem for file in (DOCS.parent / "examples" / "gallery").glob("*.py")}
    assert set(load("gallery_order").ORDER) == names


def test_the_notebook_is_committed_without_outputs():
    cells = json.loads((DOCS / "first-try.ipynb").read_text(encoding="utf-8"))["cells"]
    assert sum(cell["cell_type"] == "code" for cell in cells) >= 4
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_pages_at_the_root_of_the_repository_lead_to_their_text():
    for page, file in load("repository").PAGES.items():
        assert f"](../{file})" in (DOCS / f"{page}.md").read_text(encoding="utf-8")
