import json
from importlib import resources

import pytest

import medbn
from medbn.bench import published
from medbn.bench.published import CORRUPTIONS, get, tables

# id: printed lines × columns, and averages; counted in the paper.
PRINTED = {
    "targeted-instant": (6 * 8, 0),
    "indiscriminate-instant": (6 * 8, 0),
    "cumulative": (4 * 8, 0),
    "segmentation": (4 * 2, 0),
    "malicious-targeted-cifar10": (2 * 5, 0),
    "batch-size-targeted-cifar10": (2 * 5, 0),
    "knowledge": (2 * 3, 0),
    "architectures": (8 * 8, 0),
    "malicious-targeted": (4 * 5, 0),
    "malicious-indiscriminate": (4 * 5, 0),
    "batch-size-targeted": (4 * 5, 0),
    "batch-size-indiscriminate": (4 * 5, 0),
    "mad": (6 * 6, 0),
    "epsilon": (2 * 2, 0),
    "targeted-instant-per-corruption": (42 * 15, 42),
    "indiscriminate-instant-per-corruption": (42 * 15, 42),
    "targeted-cumulative-per-corruption": (42 * 15, 42),
    "indiscriminate-cumulative-per-corruption": (42 * 15, 42),
    "no-attack": (6 * 7, 0),
}
PER_CORRUPTION = [id for id in PRINTED if id.endswith("per-corruption")]
C10, C100, INET, SYNTHIA = "cifar10-c", "cifar100-c", "imagenet-c", "synthia"
BN, MED = "mean", "median"
SEVEN = ["tebn", "tent", "eta", "sar", "sotta", "sema", "mdia"]

# Typed by hand from the paper.
SPOTS = [
    ("targeted-instant", {"dataset": C10, "estimator": BN, "method": "tebn"}, 83.91),
    ("targeted-instant", {"dataset": INET, "estimator": MED, "method": "mdia"}, 1.07),
    ("targeted-instant", {"dataset": C100, "estimator": MED, "method": "tebn", "objective": "none"}, 40.77),
    ("indiscriminate-instant", {"dataset": C100, "estimator": BN, "method": "sar"}, 56.40),
    ("indiscriminate-instant", {"dataset": INET, "estimator": MED, "method": "sotta"}, 64.22),
    ("cumulative", {"objective": "targeted", "estimator": MED, "method": "mdia"}, 19.06),
    ("cumulative", {"objective": "indiscriminate", "estimator": BN, "method": "eata"}, 35.30),
    ("cumulative", {"objective": "none", "estimator": BN}, 14.92),
    ("segmentation", {"objective": "targeted_pixel", "estimator": BN}, 69.17),
    ("segmentation", {"objective": "targeted_pixel", "estimator": MED}, 0.0),
    ("segmentation", {"objective": "indiscriminate_segmentation", "estimator": BN}, 17.11),
    ("segmentation", {"objective": "indiscriminate_segmentation", "estimator": MED}, 21.55),
    ("segmentation", {"objective": "none", "estimator": BN}, 25.43),
    ("segmentation", {"objective": "none", "estimator": MED}, 24.24),
    ("malicious-targeted", {"dataset": C100, "estimator": MED, "malicious": 80}, 4.27),
    ("malicious-indiscriminate", {"dataset": C10, "estimator": BN, "malicious": 60}, 40.14),
    ("batch-size-targeted", {"dataset": C10, "estimator": MED, "batch_size": 16}, 29.14),
    ("batch-size-indiscriminate", {"dataset": C100, "estimator": BN, "batch_size": 32}, 73.73),
    ("knowledge", {"estimator": BN, "knowledge": "semi"}, 53.73),
    ("knowledge", {"estimator": MED, "attack": "adaptive"}, 7.47),
    ("architectures", {"objective": "targeted", "dataset": C100, "estimator": BN, "method": "sotta"}, 12.93),
    ("architectures", {"objective": "indiscriminate", "model": "wrn28", "estimator": MED, "method": "mdia"}, 35.21),
    ("mad", {"objective": "targeted", "dataset": C10, "estimator": "mad"}, 2.93),
    ("mad", {"objective": "none", "dataset": INET, "estimator": "mad"}, 85.08),
    ("epsilon", {"estimator": MED, "epsilon": 8 / 255}, 16.13),
    ("no-attack", {"dataset": C10, "estimator": MED, "method": "sar"}, 13.35),
    (
        "targeted-instant-per-corruption",
        {"dataset": INET, "estimator": BN, "method": "sar", "corruption": "contrast"},
        68.0,
    ),
    (
        "indiscriminate-instant-per-corruption",
        {"dataset": C10, "estimator": MED, "method": "sotta", "corruption": "fog"},
        14.90,
    ),
    (
        "targeted-cumulative-per-corruption",
        {"dataset": C100, "estimator": BN, "method": "eata", "corruption": "jpeg_compression"},
        63.33,
    ),
    (
        "indiscriminate-cumulative-per-corruption",
        {"dataset": INET, "estimator": MED, "method": "mdia", "corruption": "gaussian_noise"},
        87.90,
    ),
]


def test_every_table_is_there_in_the_papers_order():
    assert list(tables()) == list(PRINTED)
    numbers = [int(table.where.split(",")[0].removeprefix("table ")) for table in tables().values()]
    assert numbers == list(range(1, 20))
    assert len({table.label for table in tables().values()}) == len(PRINTED)


def test_the_file_has_nothing_that_is_not_read():
    table = {"id", "label", "where", "caption", "metric", "objective", "scenario", "columns", "settings", "datasets"}
    table |= {"attack", "averages_of", "notes", "rows", "averages"}
    row = {"dataset", "estimator", "method", "corruption", "objective", "metric", "settings", "value"}
    for entry in json.loads(resources.files("medbn.bench").joinpath("published.json").read_text(encoding="utf-8")):
        assert set(entry) == table
        for item in entry["rows"] + entry["averages"]:
            assert row >= set(item) >= {"dataset", "estimator", "method", "value"}


@pytest.mark.parametrize("id", PRINTED)
def test_counts(id):
    table = get(id)
    assert (len(table.rows), len(table._averages)) == PRINTED[id]


@pytest.mark.parametrize("id", PRINTED)
def test_rows_use_the_projects_words(id):
    table = get(id)
    assert table.scenario in {*medbn.attacks.scenarios.available(), "none"}
    assert table.caption.endswith(".")
    assert all(note.endswith(".") for note in table.notes)
    for row in table.rows:
        assert row.dataset in ({SYNTHIA} if id == "segmentation" else {C10, C100, INET})
        assert row.estimator in medbn.estimators.available()
        assert row.method in medbn.methods.available()
        assert (row.objective, row.metric) in {
            ("targeted", "attack success rate"),
            ("indiscriminate", "error rate"),
            ("none", "error rate"),
            ("targeted_pixel", "attack success rate"),
            ("indiscriminate_segmentation", "mean IoU"),
            ("none", "mean IoU"),
        }
        assert (row.metric == "mean IoU") <= (id == "segmentation")
        assert table.objective in (None, row.objective) or row.objective == "none"
        assert set(row.settings) <= set(published._SETTINGS)
        assert {"model", "batch_size"} <= set(row.settings)
        assert 0 <= row.value <= 100
        if row.objective == "none":
            assert row.settings["malicious"] == 0
            assert "epsilon" not in row.settings
        else:
            assert row.settings["attack"] in medbn.attacks.available()
            assert row.settings.get("malicious", 0) > 0 or row.settings["malicious_share"] == 0.2


@pytest.mark.parametrize("id", PRINTED)
def test_one_number_per_key(id):
    seen: dict[frozenset[object], float] = {}
    for row in get(id).rows:
        assert seen.setdefault(frozenset(row.keys.items()), row.value) == row.value


@pytest.mark.parametrize("id", PER_CORRUPTION)
def test_columns_and_methods_in_order(id):
    table = get(id)
    methods = ["eata" if m == "eta" and "cumulative" in id else m for m in SEVEN]
    lines = [(d, m, e) for d in (C10, C100, INET) for m in methods for e in (BN, MED)]
    assert [(row.dataset, row.method, row.estimator, row.corruption) for row in table.rows] == [
        (*line, corruption) for line in lines for corruption in CORRUPTIONS
    ]
    assert [(row.dataset, row.method, row.estimator) for row in table.averages(recomputed=False)] == lines


@pytest.mark.parametrize(("id", "keys", "value"), SPOTS)
def test_spots(id, keys, value):
    assert get(id).lookup(**keys) == value


def test_settings_come_from_the_dataset_and_the_attack():
    keys = {"dataset": INET, "method": "sar", "estimator": MED}
    (row,) = (row for row in get("targeted-instant").rows if row.matches(keys))
    assert row.settings == {
        "model": "resnet50",
        "batch_size": 200,
        "malicious": 20,
        "attack": "dia",
        "knowledge": "white",
        "epsilon": 1.0,
        "steps": 100,
        "step_size": 1 / 255,
        "start": 0.5,
    }


def test_lookup_returns_none_or_names_the_keys_that_are_missing():
    table = get("targeted-instant")
    assert table.lookup(dataset=C10, estimator="mad", method="tebn") is None
    assert table.lookup(dataset=C10, estimator=BN, method="tebn", corruption="fog") is None
    with pytest.raises(ValueError, match=r"7 numbers.*method"):
        table.lookup(dataset=C10, estimator=BN)
    with pytest.raises(ValueError, match="corruption"):
        get(PER_CORRUPTION[0]).lookup(dataset=C10, estimator=BN, method="tebn")
    with pytest.raises(ValueError, match=r"datset.*dataset"):
        table.lookup(datset=C10)
    with pytest.raises(ValueError, match=r"cumulativ.*cumulative"):
        get("cumulativ")


def test_averages_printed_and_recomputed():
    table = get("targeted-cumulative-per-corruption")
    keys = {"dataset": INET, "estimator": MED, "method": "sotta"}
    assert [row.value for row in table.averages(recomputed=False) if row.matches(keys)] == [0.8]
    (row,) = (row for row in table.averages() if row.matches(keys))
    assert row.value == pytest.approx((2.67 + 1.33 + 2.67 + 2.67 + 2.67) / 15)
    assert row.corruption is None
    assert get("architectures").averages() == ()
    assert len(get("mad").averages()) == 2 * 2 * 3  # MAD itself is printed nowhere else


def test_the_known_disagreements_and_no_others():
    disagreements = {
        (id, d.keys["objective"], d.keys["dataset"], d.keys["estimator"], d.keys["method"]): d.printed
        for id, table in tables().items()
        for d in table.disagreements()
    }
    fourteen = {
        (BN, "tebn"): 35.30,
        (MED, "tebn"): 27.22,
        (BN, "tent"): 35.70,
        (MED, "tent"): 25.84,
        (BN, "eata"): 35.30,
        (MED, "eata"): 26.84,
        (BN, "sar"): 31.25,
        (MED, "sar"): 24.29,
        (BN, "sotta"): 26.10,
        (MED, "sotta"): 22.52,
        (BN, "sema"): 28.79,
        (MED, "sema"): 25.62,
        (BN, "mdia"): 32.05,
        (MED, "mdia"): 23.96,
    }
    shifted = {"sar": 8.76, "sotta": 8.13, "sema": 8.89, "mdia": 19.06}
    one_run = {BN: 92.00, MED: 2.93}
    assert disagreements == {
        **{("cumulative", "targeted", C10, MED, m): v for m, v in shifted.items()},
        **{("cumulative", "indiscriminate", C10, *key): v for key, v in fourteen.items()},
        **{(PER_CORRUPTION[3], "indiscriminate", C10, *key): v for key, v in fourteen.items()},
        **{("malicious-targeted", "targeted", C100, e, "tebn"): v for e, v in one_run.items()},
    }
    assert all(get(key[0]).notes for key in disagreements)


def test_table_three_is_shifted_from_sar_on():
    means = {
        row.method: row.value
        for row in get("targeted-cumulative-per-corruption").averages()
        if row.matches({"dataset": C10, "estimator": MED})
    }
    printed = {m: get("cumulative").lookup(objective="targeted", estimator=MED, method=m) for m in means}
    assert printed["tebn"] == pytest.approx(means["tebn"], abs=0.01)
    for shown, meant in [("sar", "sotta"), ("sotta", "sema"), ("sema", "mdia")]:
        assert printed[shown] == pytest.approx(means[meant], abs=0.01)
    assert printed["mdia"] == get("indiscriminate-instant").lookup(dataset=C10, estimator=MED, method="mdia")


def test_only_one_average_is_a_slip_within_the_tolerance():
    slips = [d for id in PER_CORRUPTION[:3] for d in get(id).disagreements(tolerance=0.011)]
    assert [d.printed for d in slips] == [75.007]
    assert get("targeted-instant").lookup(dataset=C10, estimator=BN, method="eta") == 75.07


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("malicious-targeted-cifar10", "malicious-targeted"),
        ("batch-size-targeted-cifar10", "batch-size-targeted"),
    ],
)
def test_tables_repeated_in_the_appendix(part, whole):
    assert get(part).rows == tuple(row for row in get(whole).rows if row.dataset == C10)


@pytest.mark.parametrize("id", PER_CORRUPTION[::2])
def test_success_rates_count_three_runs(id):
    for row in get(id).rows:
        targets = 3 * (25 if row.dataset == INET else 50)
        assert row.value == pytest.approx(100 * round(row.value * targets / 100) / targets, abs=0.006)
