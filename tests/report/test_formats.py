"""The registry of formats."""

import sys

import pytest

from medbn.report import FORMATS, register_format
from tests.report.documents import demo, empty, nasty


def test_every_format_writes_every_document_as_text():
    pytest.importorskip("jinja2")
    assert {"csv", "html", "json", "latex", "markdown"} <= set(FORMATS)
    for name in FORMATS:
        for make in (demo, nasty, empty):
            FORMATS.get(name).write(make()).encode("utf-8")


def test_users_add_formats_with_a_decorator():
    @register_format("titles", ".txt")
    def titles(document):
        return "\n".join(section.title for section in document.sections)

    try:
        assert FORMATS.get("titles").suffix == ".txt"
        assert FORMATS.get("titles").write(demo()).startswith("Which defence holds\nPer corruption\n")
    finally:
        FORMATS.unregister("titles")


def test_a_page_without_jinja2_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"medbn\[bench\]"):
        FORMATS.get("html").write(demo())
