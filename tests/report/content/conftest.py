from collections.abc import Callable

import pytest

from medbn.bench import Recipe, Store, recipes
from medbn.report import Document, build
from tests.report.stores import fill

Report = Callable[..., tuple[Document, Recipe]]


@pytest.fixture
def report(tmp_path) -> Report:
    """Return a function that makes the report on a narrowed recipe, and returns both."""

    def make(name: str, **narrow: object) -> tuple[Document, Recipe]:
        recipe = recipes.get(name).narrow(**narrow)
        fill(tmp_path / "x.db", recipe)
        with Store(tmp_path / "x.db") as store:
            return build(store), recipe

    return make
