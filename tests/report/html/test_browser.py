"""The page in a real browser: Debian's Chromium, driven by selenium. No network is needed, and none is used."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medbn import bench
from medbn.report import FORMATS, build
from tests.report.documents import ERRORS, demo, nasty

REQUIRED = os.environ.get("MEDBN_BROWSER") == "required"
MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
MISSING += ["selenium"] if importlib.util.find_spec("selenium") is None else []

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING) and not REQUIRED,
        reason=f"no {', '.join(MISSING)}: apt-get install chromium chromium-driver; pip install selenium",
    ),
]

SIZES = {"screen": (1280, 900), "phone": (360, 740)}
MODES = ("light", "dark")

# The contrast of each visible text with the nearest background that is not transparent.
CONTRASTS = """
const parse = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return n.length > 3 && n[3] === 0 ? null : n; };
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const contrasts = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.checkVisibility() || e.closest(".unseen, .skip, script, title, desc")) continue;
  const style = getComputedStyle(e);
  const ink = parse(e instanceof SVGElement ? style.fill : style.color);
  let behind = e, ground = null;
  while (behind && !(ground = parse(getComputedStyle(behind).backgroundColor))) behind = behind.parentElement;
  const [low, high] = [luminance(ink), luminance(ground)].sort((a, b) => a - b);
  contrasts.push([(high + 0.05) / (low + 0.05), `${e.tagName}.${e.getAttribute("class")}`, e.textContent.slice(0, 40)]);
}
return contrasts;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert not MISSING, f"MEDBN_BROWSER=required, but {', '.join(MISSING)} is missing"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    bench.run(bench.recipes.get("demo").smoke(), folder / "measured.db")
    with bench.Store(folder / "measured.db") as store:
        documents = {"demo": demo(), "nasty": nasty(), "measured": build(store)}
    for name, document in documents.items():
        (folder / f"{name}.html").write_text(FORMATS.get("html").write(document), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in documents}


def _open(browser: Any, page: Path, size: str = "screen", mode: str = "light") -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    # Without reduced motion the page scrolls smoothly to what is clicked, and the click misses it.
    preferences = {"prefers-color-scheme": mode, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in preferences.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())


@pytest.mark.parametrize("name", ["demo", "nasty", "measured"])
def test_no_errors_and_no_requests(browser: Any, pages: dict[str, Path], name: str) -> None:
    _open(browser, pages[name])
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert {url for url in requests if not url.startswith("data:")} == {pages[name].as_uri()}
    assert browser.execute_script("return [...document.images].every((i) => i.complete && i.naturalWidth === 16)")


def _column(browser: Any, column: int) -> list[str]:
    script = (
        """return [...document.querySelectorAll(".headline tbody tr")].map((r) => r.cells[arguments[0]].innerText)"""
    )
    return [text.split("\n")[0].strip() for text in browser.execute_script(script, column)]


def test_clicks_sort_in_ascending_then_descending_then_the_first_order(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    _open(browser, pages["demo"])
    names = list(ERRORS)
    head = browser.find_elements(By.CSS_SELECTOR, "table.headline thead th")[3]
    button = head.find_element(By.TAG_NAME, "button")
    up = sorted(names, key=lambda name: ERRORS[name][2])
    for order, expected in (("ascending", up), ("descending", up[::-1]), (None, names), ("ascending", up)):
        button.click()
        assert head.get_attribute("aria-sort") == order
        assert _column(browser, 0) == expected
    # From the keyboard, by names in another column.
    first = browser.find_elements(By.CSS_SELECTOR, "table.headline thead th")[0]
    first.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert _column(browser, 0) == sorted(names, key=str.lower)
    assert (first.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("ascending", None)


def test_empty_cells_are_last_in_both_orders(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    _open(browser, pages["demo"])
    table = browser.find_element(By.CSS_SELECTOR, "#beside-the-paper table")
    button = table.find_elements(By.CSS_SELECTOR, "thead button")[2]
    for expected in (["19.0", "20.7", "77.9", "81.3", "–"], ["81.3", "77.9", "20.7", "19.0", "–"]):
        button.click()
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        assert [row.find_elements(By.XPATH, "./*")[2].text.split("\n")[0] for row in rows] == expected


@pytest.mark.parametrize("name", ["demo", "nasty", "measured"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_never_scrolls_sideways(browser: Any, pages: dict[str, Path], name: str, size: str) -> None:
    _open(browser, pages[name], size)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    assert browser.execute_script("return document.documentElement.clientWidth") == SIZES[size][0]


@pytest.mark.parametrize("name", ["demo", "measured"])
def test_rows_are_cards_where_a_table_would_be_cut_off(browser: Any, pages: dict[str, Path], name: str) -> None:
    script = """
        document.querySelectorAll('details').forEach((d) => (d.open = true));
        dispatchEvent(new Event('resize'));
        const label = (t) => getComputedStyle(t.querySelector('td'), '::before').content;
        return [...document.querySelectorAll('table.sortable')].map((t) =>
            [t.classList.contains('cards'), t.parentElement.scrollWidth - t.parentElement.clientWidth, label(t)])"""
    _open(browser, pages[name], "phone")
    tables = browser.execute_script(script)
    assert any(cards for cards, _, _ in tables)
    assert all(excess <= 0 for _, excess, _ in tables)
    assert all(label.strip('"') not in ("", "none") for cards, _, label in tables if cards)
    _open(browser, pages[name], "screen")
    assert not any(cards for cards, _, _ in browser.execute_script(script))


def test_one_drawing_of_each_figure_is_shown_and_its_letters_are_readable(browser: Any, pages: dict[str, Path]) -> None:
    for size, kind in (("screen", "wide"), ("phone", "narrow")):
        _open(browser, pages["demo"], size)
        script = """return [...document.querySelectorAll(".chart")].filter((c) => c.checkVisibility()).map(
            (c) => [c.classList[1], c.querySelector(".tick").getBoundingClientRect().height])"""
        shown = browser.execute_script(script)
        assert [drawn for drawn, _ in shown] == [kind, kind]
        assert all(height >= 11 for _, height in shown)


def test_dark_mode_changes_the_background(browser: Any, pages: dict[str, Path]) -> None:
    backgrounds = []
    for mode in MODES:
        _open(browser, pages["demo"], mode=mode)
        backgrounds.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    light, dark = ([int(n) for n in ground[4:-1].split(",")] for ground in backgrounds)
    assert min(light) > 230
    assert max(dark) < 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
def test_all_text_has_enough_contrast(browser: Any, pages: dict[str, Path], size: str, mode: str) -> None:
    _open(browser, pages["demo"], size, mode)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    contrasts = browser.execute_script(CONTRASTS)
    assert len(contrasts) > 300
    assert [entry for entry in contrasts if entry[0] < 4.5] == []


@pytest.mark.parametrize("name", ["demo", "nasty", "measured"])
def test_no_table_is_cut_off_on_a_phone(browser: Any, pages: dict[str, Path], name: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    _open(browser, pages[name], "phone")
    browser.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
    # A folded part is fitted after it has opened.
    WebDriverWait(browser, 5).until(lambda _: browser.execute_script(f"return {cut}.length") == 0)


def test_commands_can_be_copied(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    _open(browser, pages["demo"])
    button = browser.find_element(By.CSS_SELECTOR, "button.copy")
    button.click()
    # A browser may keep pages from files from the clipboard; then the text is selected.
    WebDriverWait(browser, 5).until(lambda _: button.text in ("Copied", "Selected"))


@pytest.mark.parametrize("size", SIZES)
def test_a_click_on_a_number_lists_the_cells_that_it_is_made_from(
    browser: Any, pages: dict[str, Path], size: str
) -> None:
    from selenium.webdriver.common.by import By

    _open(browser, pages["measured"], size)
    numbers = browser.find_elements(By.CSS_SELECTOR, "#results button.number")
    spans = [span.partition("-") for span in numbers[0].get_attribute("data-cells").split()]
    count = sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    shown = numbers[0].text
    numbers[0].click()
    dialog = browser.find_element(By.TAG_NAME, "dialog")
    assert dialog.is_displayed()
    assert dialog.find_element(By.TAG_NAME, "h2").text == shown
    assert len(dialog.find_elements(By.CSS_SELECTOR, "tbody tr")) == count > 0
    box = "const b = document.querySelector('dialog .scroll'); return b.scrollWidth - b.clientWidth"
    assert browser.execute_script(box) <= 0
    dialog.find_element(By.TAG_NAME, "button").click()
    assert not dialog.is_displayed()


def test_contents_open_what_is_folded(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    _open(browser, pages["measured"])
    facts = browser.find_element(By.CSS_SELECTOR, "#what-was-run .facts")
    assert not facts.is_displayed()
    browser.find_element(By.CSS_SELECTOR, 'nav a[href="#what-was-run"]').click()
    assert facts.is_displayed()
