"""What do the committed stores say? Every table of docs/results.md and docs/results/ that is made from them.

    python experiments/tables.py             # print them
    python experiments/tables.py --write     # write them into the pages, between their marks
    python experiments/tables.py --check     # exit with 2 if a page says something else

It takes seconds on a CPU: nothing is attacked again. A table is between ``<!-- table NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import lzma
import math
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from medbn import bench, cli
from medbn.bench import Cell, Interval, Results, published

REPOSITORY = Path(__file__).parents[1]
PAGES = ("docs/results.md", "docs/results/cifar10-c.md")
NAMES = {
    "mean": "BatchNorm",
    "median": "MedBN",
    "mad": "MAD",
    "mad_scaled": "scaled MAD",
    "image_median": "`image_median`",
}
METHODS = {
    "source": "Source",
    "tebn": "TeBN",
    "tent": "TENT",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "sotta": "SoTTA",
    "sema": "sEMA",
    "mdia": "mDIA",
}
SEVEN = ("tebn", "tent", "eta", "sar", "sotta", "sema", "mdia")
THREE = ("mean", "median", "image_median")
GRADIENTS = ("exact", "straight_through", "smooth")
HEADER = [NAMES[estimator] for estimator in THREE]
SAME, NOTHING = "the same", "–"

Rows = list[list[str]]
TABLES: dict[str, Callable[[], Rows]] = {}


def table(name: str) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Return a decorator that adds a table; its function returns the header and the rows."""

    def add(function: Callable[[], Rows]) -> Callable[[], Rows]:
        TABLES[name] = function
        return function

    return add


# --- what is stored ---------------------------------------------------------------------------------------------------


@cache
def stored(store: str = "cifar10-c") -> dict[str, Results]:
    """Return the results of a committed store by the name of the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        path.write_bytes(lzma.decompress((REPOSITORY / "results" / f"{store}.db.xz").read_bytes()))
        with bench.Store(path, create=False) as opened:
            return {results.recipe["name"]: results for results in bench.results.read(opened)}


def pick(recipe: str, store: str = "cifar10-c", objective: str | None = None, **fields: object) -> Results:
    """Return the cells of a recipe whose fields, those of the setting or those of the attack have these values."""

    def fits(cell: Cell) -> bool:
        if objective is not None and (cell.attack is None or cell.attack.objective != objective):
            return False
        parts = (cell, cell.setting, cell.attack)
        return all(any(getattr(part, name, None) == value for part in parts) for name, value in fields.items())

    return stored(store)[recipe].select(fits)


def worst_of(results: Results) -> Results:
    """Return the worst of the gradients for each batch, compared with other estimators as the exact one."""
    attacks = sorted(results.values(lambda cell: cell.attack), key=lambda attack: GRADIENTS.index(attack.gradient))
    return results.hardest(attacks)


def first_batches(results: Results, count: int, skip: int = 0) -> Results:
    """Return the batches of every stream from ``skip`` to ``count``."""
    return results.only({one for one in results.batch_ids() if skip <= one[-1] < count})


# --- how it is written ------------------------------------------------------------------------------------------------


def percent(interval: Interval | None, digits: int = 1, signed: bool = False) -> str:
    """Return an interval in per cent, as ``12.3 (11.0–14.0)``; signed with "to" between its limits."""
    if interval is None:
        return NOTHING
    texts = [f"{100 * value + 0.0:.{digits}f}".replace("-", "−") for value in interval if not math.isnan(value)]
    texts = [re.sub(r"^−(0(\.0)?)$", r"\1", text) for text in texts]
    if len(texts) == 1:
        return texts[0]
    between = " to " if signed else "–"
    return f"{texts[0]} ({texts[1]}{between}{texts[2]})"


def rate(results: Results) -> str:
    """Return a success rate; with a decimal from a hundred targets on."""
    return percent(results.success(), 1 if len(results.batches) > 100 else 0)


def difference(first: Results, second: Results, digits: int = 1, which: str = "wrong") -> str:
    """Return how much higher the measure is in the second, on the same batches."""
    return percent(second.minus(first, which), digits, signed=True)


def gradients_of(results: Results, estimator: str, measure: Callable[[Results], str]) -> list[str]:
    """Return the measure under each gradient and under the worst of the three, on the batches that have all."""
    if estimator.partition("@")[0] == "mean":
        text = measure(results)
        return [text, SAME, SAME, text]
    complete = results.complete()
    each = [measure(complete.select(lambda cell, g=gradient: cell.attack.gradient == g)) for gradient in GRADIENTS]
    return [*each, measure(results.hardest())]


def error(results: Results) -> str:
    """Return the error of the benign images under attack, or of all images without one."""
    return percent(results.error())


def name_of(estimator: str) -> str:
    """Return what pages call an estimator."""
    base, _, prior = estimator.partition("@")
    return NAMES[base] + (f", prior {prior}" if prior else "")


# --- the tables -------------------------------------------------------------------------------------------------------


@table("no-attack")
def no_attack() -> Rows:
    """Return the error of every method on the first ten batches of each corruption, and of TeBN on all."""
    whole = [error(pick("no-attack", method="tebn", estimator=one)) for one in THREE]
    rows = [["", *HEADER], ["TeBN, all 150,000 images", *whole]]
    for method in ("source", *SEVEN[:3], "eata", *SEVEN[3:]):
        results = [first_batches(pick("no-attack", method=method, estimator=one), 10) for one in THREE]
        rows.append([METHODS[method], *(error(one) for one in results)])
    return rows


def instant(recipe: str, measure: Callable[[Results], str], digits: int) -> Rows:
    """Return a table of the seven methods with the differences to BatchNorm on the same batches."""
    rows = [["", *HEADER, *(f"{NAMES[one]} − BatchNorm" for one in THREE[1:])]]
    for method in SEVEN:
        base, *others = (pick(recipe, method=method, estimator=one) for one in THREE)
        differences = [difference(base, other, digits) for other in others]
        rows.append([METHODS[method], *(measure(one) for one in (base, *others)), *differences])
    return rows


@table("targeted-instant")
def targeted_instant() -> Rows:
    """Return the success of the targeted attack with exact gradients on 60 targets."""
    return instant("targeted-instant", rate, 0)


@table("indiscriminate-instant")
def indiscriminate_instant() -> Rows:
    """Return the error under the indiscriminate attack with exact gradients."""
    return instant("indiscriminate-instant", error, 1)


@table("grey")
def grey() -> Rows:
    """Return what forty grey images do without a step of an attack."""
    rows = [["", "error without", "error with 40 grey images", "targets hit"]]
    for estimator in THREE:
        results = pick("grey", "grey-cpu", estimator=estimator)
        without = percent(results.error("wrong_without"))
        hits = sum(batch["hit"] for batch in results.batches)
        rows.append([NAMES[estimator], without, error(results), f"{hits} of {len(results.batches)}"])
    return rows


@table("cumulative")
def cumulative() -> Rows:
    """Return both attacks where the poison stays."""
    rows = [["", *(f"targeted: {one}" for one in HEADER), *(f"indiscriminate: {one}" for one in HEADER)]]
    for method in ("tebn", "tent", "eata", *SEVEN[3:]):
        cells = [
            measure(pick("cumulative", objective=objective, method=method, estimator=one))
            for objective, measure in (("targeted", rate), ("indiscriminate", error))
            for one in THREE
        ]
        rows.append([METHODS[method], *cells])
    return rows


def worst_case(objective: str, measure: Callable[[Results], str], estimators: Sequence[str], **fields: object) -> Rows:
    """Return the attacks on TeBN with each gradient and the worst of them."""
    rows = [["", "exact", "straight-through", "smooth", "worst", "batches"]]
    for estimator in estimators:
        results = pick("worst-case", objective=objective, method="tebn", estimator=estimator, **fields)
        count = len(results.hardest().batches)
        rows.append([NAMES[estimator], *gradients_of(results, estimator, measure), str(count)])
    return rows


FIVE = (*THREE, "mad", "mad_scaled")
table("worst-case-targeted")(lambda: worst_case("targeted", rate, THREE))
table("worst-case-mad")(lambda: worst_case("targeted", rate, FIVE, seed=1))
table("worst-case-indiscriminate")(lambda: worst_case("indiscriminate", error, FIVE))


@table("worst-case-difference")
def worst_case_difference() -> Rows:
    """Return how the worst of three gradients differs from the attack on BatchNorm, on the same batches."""
    rows = [["", "targeted, points of success", "indiscriminate, points of error"]]
    for estimator in ("median", "image_median"):
        cells = []
        for objective, digits in (("targeted", 0), ("indiscriminate", 1)):
            base, other = (
                worst_of(pick("worst-case", objective=objective, method="tebn", estimator=one))
                for one in ("mean", estimator)
            )
            cells.append(difference(base, other, digits))
        rows.append([f"{NAMES[estimator]} − BatchNorm", *cells])
    return rows


def sweep(recipe: str, axis: str, values: Sequence[int], measure: Callable[[Results], str]) -> Rows:
    """Return a table of TeBN with sizes of a batch in its rows, beside what the paper prints."""
    paper = published.get(recipe)
    labels = {"malicious": "malicious of 200", "batch_size": "images in a batch"}
    rows = [[labels[axis], "BatchNorm", "paper", "MedBN", "paper", "`image_median`"]]
    for value in values:
        row = [str(value)]
        for estimator in THREE:
            row.append(measure(pick(recipe, estimator=estimator, **{axis: value})))
            if estimator != "image_median":
                row.append(f"{paper.lookup(dataset='cifar10-c', estimator=estimator, **{axis: value}):.1f}")
        rows.append(row)
    return rows


MALICIOUS, SIZES = (10, 20, 40, 60, 80), (16, 32, 64, 128, 200)
table("malicious-targeted")(lambda: sweep("malicious-targeted", "malicious", MALICIOUS, rate))
table("malicious-indiscriminate")(lambda: sweep("malicious-indiscriminate", "malicious", MALICIOUS, error))
table("batch-size-targeted")(lambda: sweep("batch-size-targeted", "batch_size", SIZES, rate))
table("batch-size-indiscriminate")(lambda: sweep("batch-size-indiscriminate", "batch_size", SIZES, error))


@table("malicious-gradients")
def malicious_gradients() -> Rows:
    """Return the targeted attack with 60 and 80 malicious images and each gradient."""
    rows = [["malicious of 200", "", "exact", "straight-through", "smooth", "worst"]]
    for count in (60, 80):
        for estimator in THREE[1:]:
            results = pick("malicious-gradients", estimator=estimator, malicious=count)
            rows.append([str(count), NAMES[estimator], *gradients_of(results, estimator, rate)])
    return rows


@table("epsilon")
def epsilon() -> Rows:
    """Return the targeted attack with a small and without a bound on the perturbation."""
    paper = published.get("epsilon")
    rows = [["ε", "BatchNorm", "paper", "MedBN", "paper", "`image_median`"]]
    for label, bound in (("8/255", 8 / 255), ("1", 1.0)):
        row = [label]
        for estimator in THREE:
            row.append(rate(pick("epsilon", estimator=estimator, epsilon=bound)))
            if estimator != "image_median":
                row.append(f"{paper.lookup(estimator=estimator, epsilon=bound):.1f}")
        rows.append(row)
    return rows


@table("priors")
def priors() -> Rows:
    """Return the error of estimators that are mixed with training statistics."""
    base = pick("no-attack", method="tebn", estimator="mean")
    rows = [["TeBN with", "error", "difference to BatchNorm"]]
    for estimator in ("mean@0.6", "median@0.6", *(f"image_median@{prior}" for prior in (0.5, 0.6, 0.7, 0.8))):
        results = pick("no-attack", method="tebn", estimator=estimator)
        rows.append([name_of(estimator), error(results), percent(results.minus(base), 2, signed=True)])
    return rows


@table("priors-worst-case")
def priors_worst_case() -> Rows:
    """Return the targeted attack on `image_median` without and with a prior."""
    rows = [["TeBN with", "exact", "straight-through", "smooth", "worst"]]
    for estimator in ("image_median", "image_median@0.6"):
        results = first_batches(pick("frontier", estimator=estimator), 1)
        rows.append([name_of(estimator), *gradients_of(results, estimator, rate)])
    return rows


@table("memory")
def memory() -> Rows:
    """Return moving averages in which a batch has little weight while it is served."""
    rows = [["sEMA with", "error", "exact", "targets", "predicted so anyway"]]
    for estimator in ("mean", "median", "image_median", "image_median@0.5"):
        recipe = "foresight" if "@" in estimator else "memory"
        attacked = pick(recipe, estimator=estimator, gradient="exact")
        already = bench.intervals.wilson(sum(b["already"] for b in attacked.batches), len(attacked.batches))
        whole = error(pick("memory-no-attack", estimator=estimator))
        digits = 1 if len(attacked.batches) > 100 else 0
        rows.append([name_of(estimator), whole, rate(attacked), str(len(attacked.batches)), percent(already, digits)])
    return rows


LASTING = ("mean", "median", "image_median", "image_median@0.5")


@table("past")
def past() -> Rows:
    """Return the error of ``past``, and how often the target class is predicted without any attack."""
    rows = [["`past` with", "error", "targets that are predicted so anyway", "targets"]]
    for estimator in LASTING:
        results = pick("past-no-attack", estimator=estimator)
        already = [batch["already"] for batch in results.batches]
        chance = percent(bench.intervals.wilson(sum(already), len(already)))
        rows.append([name_of(estimator), error(results), chance, str(len(already))])
    return rows


def poison(recipe: str, store: str) -> Rows:
    """Return the points of error that poison of earlier batches adds to ``past``, from the second batch on."""

    def added(results: Results) -> str:
        return percent(added_error(first_batches(results, sys.maxsize, skip=1)), signed=True)

    rows = [["`past` with", "exact", "straight-through", "smooth", "worst", "batches"]]
    for estimator in LASTING:
        results = pick(recipe, store, estimator=estimator)
        later = first_batches(results.hardest(), sys.maxsize, skip=1)
        rows.append([name_of(estimator), *gradients_of(results, estimator, added), str(len(later.batches))])
    return rows


table("poison")(lambda: poison("past-cumulative", "cifar10-c"))
table("poison-digits")(lambda: poison("poison", "poison-cpu"))
table("poison-one-pass")(lambda: poison("poison-one-pass", "poison-one-pass-cpu"))


@table("in-order")
def in_order() -> Rows:
    """Return the targeted attack on streams in the order of the file, which have two targets."""
    rows = [["", *HEADER]]
    return [*rows, ["TeBN", *(rate(pick("in-order", estimator=estimator)) for estimator in THREE)]]


def printed(name: str, method: str, estimator: str) -> float:
    """Return a number that the paper prints for CIFAR-10-C."""
    value = published.get(name).lookup(dataset="cifar10-c", method=method, estimator=estimator)
    return math.nan if value is None else value


def printed_harm(method: str, estimator: str) -> float:
    """Return the error that the indiscriminate attack adds in the paper."""
    return printed("indiscriminate-instant", method, estimator) - printed("no-attack", method, estimator)


def added_error(results: Results) -> Interval:
    """Return the error that attacks add to that of the same images without one."""
    wrong, without = results.by_batch("wrong"), results.by_batch("wrong_without")
    # Without an attack a batch is the same for all attacks: its key lacks the attack.
    pairs = [(without[(*key[:-2], None, key[-1])], value) for key, value in wrong.items()]
    return bench.intervals.paired_difference(*zip(*pairs, strict=True))


def arrow(values: Sequence[str]) -> str:
    """Return two values as a change."""
    return " → ".join(values)


def beside_paper(method: str) -> list[tuple[str, str, str]]:
    """Return for one method what is compared, the paper's numbers and ours, of BatchNorm and of MedBN."""
    pair = THREE[:2]
    hits = [rate(pick("targeted-instant", method=method, estimator=one)) for one in pair]
    harm = [percent(added_error(pick("indiscriminate-instant", method=method, estimator=one))) for one in pair]
    base, median = (pick("no-attack", method=method, estimator=one) for one in pair)
    theirs = [printed("no-attack", method, one) for one in pair]
    return [
        ("targeted success", arrow([f"{printed('targeted-instant', method, one):.1f}" for one in pair]), arrow(hits)),
        (
            "error that the indiscriminate attack adds",
            arrow([f"{printed_harm(method, k):.1f}" for k in pair]),
            arrow(harm),
        ),
        (
            "error that MedBN adds without attack",
            f"{theirs[1] - theirs[0]:.1f}".replace("-", "−"),
            difference(base, median),
        ),
    ]


@table("paper")
def paper() -> Rows:
    """Return what the paper prints beside what was measured: compare effects, since the weights are others."""
    header = [f"{what}, {who}" for what, *_ in beside_paper("tebn") for who in ("paper", "here")]
    rows = [["BatchNorm → MedBN", *header]]
    return [*rows, *([METHODS[k], *(text for _, *two in beside_paper(k) for text in two)] for k in SEVEN)]


# --- the summary ------------------------------------------------------------------------------------------------------


@table("summary-beats")
def summary_beats() -> Rows:
    """Return what the paper's attack does to TeBN, and to the other methods as the range of their values."""
    rows = [["MedBN − BatchNorm", "targeted, points of success", "indiscriminate, points of error"]]
    for method in SEVEN:
        cells = [
            difference(*(pick(recipe, method=method, estimator=one) for one in THREE[:2]), digits)
            for recipe, digits in (("targeted-instant", 0), ("indiscriminate-instant", 1))
        ]
        rows.append([METHODS[method], *cells])
    return rows


@table("summary-survives")
def summary_survives() -> Rows:
    """Return exact gradients beside the worst of three."""
    rows = [["TeBN with", "targeted, exact", "worst of three", "indiscriminate, exact", "worst of three"]]
    for estimator in THREE:
        cells = []
        for objective, measure in (("targeted", rate), ("indiscriminate", error)):
            exact, *_, worst = gradients_of(
                pick("worst-case", objective=objective, method="tebn", estimator=estimator), estimator, measure
            )
            cells += [exact, worst]
        rows.append([NAMES[estimator], *cells])
    return rows


@table("summary-what-does")
def summary_what_does() -> Rows:
    """Return the worst targeted attack within a batch on the strongest defences, and poison for later batches."""
    rows = [["", "targets hit within a batch, worst of three", "targets"]]
    mixed = first_batches(pick("frontier", estimator="image_median@0.6"), 1).hardest()
    alone = pick("worst-case", objective="targeted", method="tebn", estimator="image_median").hardest()
    for label, results in (("TeBN, `image_median`", alone), ("TeBN, `image_median@0.6`", mixed)):
        rows.append([label, rate(results), str(len(results.batches))])
    anyway = next(row for row in past() if "prior" in row[0])
    return [*rows, ["`past`, `image_median@0.5`", f"{anyway[2]}, all of them without any attack too", anyway[3]]]


@table("summary-cost")
def summary_cost() -> Rows:
    """Return the errors without attack on all images, and the differences to BatchNorm on the same batches."""
    rows = [["", "error without attack", "difference to the first row"]]
    base = pick("no-attack", method="tebn", estimator="mean")
    errors = {(*key[:-3], key[-1]): value for key, value in base.by_batch().items()}  # without method and attack
    chosen = [(f"TeBN, {NAMES[one]}", pick("no-attack", method="tebn", estimator=one)) for one in THREE]
    chosen.append(("`past`, `image_median@0.5`", pick("past-no-attack", estimator="image_median@0.5")))
    for label, results in chosen:
        pairs = [(errors[(*key[:-3], key[-1])], value) for key, value in results.by_batch().items()]
        change = percent(bench.intervals.paired_difference(*zip(*pairs, strict=True)), signed=True)
        rows.append([label, error(results), NOTHING if results.cells == base.cells else change])
    return rows


@table("summary-paper")
def summary_paper() -> Rows:
    """Return the comparison with the paper for TeBN."""
    return [["TeBN, BatchNorm → MedBN", "paper", "here"], *(list(row) for row in beside_paper("tebn"))]


# --- the pages --------------------------------------------------------------------------------------------------------


def markdown(rows: Rows) -> str:
    """Return a table in Markdown, the first column to the left."""
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(text: str) -> str:
    """Return a page with its tables as the stores say."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in TABLES:
            raise ValueError(f"there is no table {match[1]!r}; there are {', '.join(TABLES)}.")
        return f"<!-- table {match[1]} -->\n{markdown(TABLES[match[1]]())}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"only these, of {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    parser.add_argument("--check", action="store_true", help="compare the pages with the stores")
    options = parser.parse_args()
    for name in options.tables:
        if name not in TABLES:
            parser.error(f"tables are {', '.join(TABLES)}, not {name}.")
    for page in map(REPOSITORY.joinpath, PAGES if options.write or options.check else ()):
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        if options.write:
            page.write_text(filled, encoding="utf-8")
        elif filled != text:
            raise ValueError(f"{page} does not say what the stores say: python experiments/tables.py --write")
    if not (options.write or options.check):
        for name in options.tables or TABLES:
            print(f"{name}\n\n{markdown(TABLES[name]())}\n")


if __name__ == "__main__":
    sys.exit(cli.run_program("tables.py", main))
