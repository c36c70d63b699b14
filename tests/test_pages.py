"""Everything that has a name is on the page where a reader looks for it."""

from pathlib import Path

import pytest

from medbn import analysis, attacks, bench, data, estimators, methods, models, monitor, policies, report

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    "methods": ("guide", methods.available),
    "estimators": ("guide", estimators.available),
    "policies": ("guide", policies.available),
    "objectives": ("threat-model", attacks.objectives.available),
    "scenarios": ("threat-model", attacks.scenarios.available),
    "attacks": ("threat-model", attacks.available),
    "recipes": ("bench", bench.recipes.available),
    "report formats": ("bench", lambda: list(report.FORMATS)),
    "figures": ("figures", analysis.available),
    "datasets": ("data", data.available),
    "models": ("data", models.available),
    "signals": ("deploying", monitor.signals.available),
}


@pytest.mark.parametrize("kind", PAGES)
def test_what_is_registered_is_on_its_page(kind):
    page, available = PAGES[kind]
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    # A signal or a policy may have something behind its name: `pressure/LAYER`, `ema(momentum=0.2)`.
    assert [name for name in available() if not any(f"`{name}{end}" in text for end in ("`", "/", "("))] == []
