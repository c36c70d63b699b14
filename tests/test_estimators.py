import copy
import pickle

import pytest
import torch

import medbn
from medbn import estimators
from medbn.functional import robust_norm, statistics


@pytest.fixture
def midrange():
    """A user's own estimator, which masks by multiplication."""

    @estimators.register("midrange")
    def midrange(x, valid):
        if valid is not None:
            x = x * valid.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
        rows = x.transpose(0, 1).flatten(1)
        return (rows.amax(1) + rows.amin(1)) / 2, rows.var(1)

    yield midrange
    estimators.unregister("midrange")


def test_available():
    assert estimators.available() == ["mean", "median", "image_median", "mad", "mad_scaled"]
    assert not estimators.get("mean").robust
    assert all(estimators.get(name).robust for name in estimators.available() if name != "mean")


def test_a_registered_estimator_works_everywhere(midrange):
    assert "midrange" in estimators.available()
    x = torch.randn(6, 3, 4, 4, requires_grad=True)
    centre, _ = statistics(x, "midrange")
    torch.testing.assert_close(centre, (x.amax((0, 2, 3)) + x.amin((0, 2, 3))) / 2)
    for policy in ("batch", "ema", "interpolate", "source"):
        layer = medbn.RobustBatchNorm2d(3, estimator="midrange", policy=policy)
        layer(x).sum().backward()
    model = medbn.convert(torch.nn.Sequential(torch.nn.BatchNorm2d(3)), "midrange")
    torch.testing.assert_close(model(x), robust_norm(x, estimator="midrange"))


def test_a_registered_estimator_is_never_given_a_non_finite_value(midrange):
    x = torch.randn(6, 3, 4, 4)
    poisoned = x.clone()
    poisoned[2, 1, 0, 0] = torch.nan
    x[2] = 0
    torch.testing.assert_close(statistics(poisoned, "midrange"), statistics(x, "midrange"))


def test_replacing_an_estimator_must_be_asked_for(midrange):
    with pytest.raises(ValueError, match=r"midrange.*replace"):
        estimators.register("midrange", estimators.median)
    estimators.register("midrange", estimators.median, replace=True)
    assert estimators.get("midrange").function is estimators.median


@pytest.mark.parametrize(("name", "function"), [("", estimators.mean), (3, estimators.mean), ("thing", 5)])
def test_bad_names_and_functions_are_not_registered(name, function):
    with pytest.raises(TypeError):
        estimators.register(name, function)
    assert name not in estimators.available()


def test_an_estimator_says_what_reports_call_it_and_which_kernel_computes_it(midrange):
    assert (estimators.get("median").label, estimators.get("median").kernel) == ("MedBN", "median")
    assert (estimators.get("midrange").label, estimators.get("midrange").kernel) == ("midrange", None)
    with pytest.raises(ValueError, match=r"kernel.*medain.*median"):
        estimators.register("other", estimators.median, kernel="medain")


def test_unregistering_an_unknown_name():
    with pytest.raises(ValueError, match="nothing"):
        estimators.unregister("nothing")


def test_wrong_shapes_are_an_error():
    bad = estimators.Estimator("bad", lambda x, valid: (x.mean(), x.var()))
    with pytest.raises(ValueError, match=r"bad.*\(\).*\(3,\)"):
        statistics(torch.randn(4, 3), bad)


@pytest.mark.parametrize("returned", [1.0, torch.zeros(3), (0.0, 1.0), (torch.zeros(3),)])
def test_wrong_return_types_are_an_error(returned):
    bad = estimators.Estimator("bad", lambda x, valid: returned)
    with pytest.raises(TypeError, match=r"bad.*\(3,\)"):
        statistics(torch.randn(4, 3), bad)


def test_statistics_of_a_registered_estimator_are_float32():
    narrow = estimators.Estimator("narrow", lambda x, valid: (x.mean((0, 2)), x.var((0, 2))))
    centre, variance = statistics(torch.randn(4, 3, 5).half(), narrow)
    assert centre.dtype == variance.dtype == torch.float32


def test_registered_estimators_are_pickled_by_name(midrange):
    estimator = estimators.get("midrange")
    assert pickle.loads(pickle.dumps(estimator)) is estimator
    assert copy.deepcopy(estimator) is estimator
    unregistered = estimators.Estimator("mine", estimators.median)
    assert pickle.loads(pickle.dumps(unregistered)) == unregistered


@pytest.mark.parametrize("prior", ["-0.1", "1.1", "half", ""])
def test_a_prior_is_a_weight(prior):
    with pytest.raises(ValueError, match="prior"):
        estimators.get(f"median@{prior}")


def test_estimators_with_a_prior():
    mixed = estimators.get("image_median@0.60")
    assert mixed == estimators.with_prior("image_median", 0.6)
    assert (mixed.name, mixed.label, mixed.kernel) == ("image_median@0.6", "image_median, prior 0.6", "image_median")
    assert pickle.loads(pickle.dumps(mixed)) == mixed
    with pytest.raises(ValueError, match="medain"):
        estimators.get("medain@0.5")
    with pytest.raises(TypeError, match="@"):
        estimators.register("a@b", lambda x, valid: None)


def test_a_prior_needs_training_statistics():
    with pytest.raises(ValueError, match=r"median@0.5.*training statistics"):
        medbn.RobustBatchNorm2d(3, estimator="median@0.5", track_running_stats=False)
    for call in (medbn.functional.statistics, medbn.functional.robust_norm):
        with pytest.raises(ValueError, match=r"median@0.5.*training statistics"):
            call(torch.randn(4, 3, 5, 5), estimator="median@0.5")
