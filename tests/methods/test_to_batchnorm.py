"""Plain models of adapters: they predict as the adapter does, in torch and in other runtimes."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from itertools import product

import pytest
import torch
from torch import nn

import medbn

from ..tiers import slow
from .conftest import Dense, small_model
from .table import METHODS, assert_same, make, one_of_each_kind, state

HELD = ["source", "past", "rotta", "sema", "sotta"]
"""They predict with statistics that they have; sEMA and SoTTA with a mixture of these and the batch's."""
CORRECTING = ["lame", "note", "roid"]
"""They change what the model returns."""
PLAIN = [method for method in METHODS if method not in CORRECTING]


def paused_prediction(tta, images):
    """What the adapter predicts in its state, without adapting."""
    tta.paused = True
    logits = tta(images)
    tta.paused = False
    return logits


@pytest.fixture
def adapted(batches):
    """A function that returns an adapter that has adapted to four batches."""

    def adapt(method, estimator="median", **options):
        tta = make(small_model(), method, estimator, **options)
        for batch in batches[:4]:
            tta(batch)
        return tta

    return adapt


def assert_plain(model):
    """Nothing of medbn is left, so that others can load it."""
    assert b"medbn" not in pickle.dumps(model).replace(b"tests.methods", b"")
    kinds = {type(layer) for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    assert kinds == {nn.BatchNorm2d}
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("method", "estimator"),
    [*one_of_each_kind(PLAIN, "median"), *slow(*product(PLAIN, ["mean", "image_median@0.5"]))],
)
def test_the_batch_of_the_statistics_is_predicted_as_the_adapter_does(method, estimator, adapted, batches):
    tta = adapted(method, estimator)
    before = state(tta)
    plain = medbn.to_batchnorm(tta, batches[4])
    assert_same(before, state(tta))
    assert_plain(plain)
    torch.testing.assert_close(plain(batches[4]), paused_prediction(tta, batches[4]), rtol=1e-4, atol=1e-4)
    # Statistics are fixed: an image's prediction does not depend on the others.
    torch.testing.assert_close(plain(batches[4][:1]), plain(batches[4])[:1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", HELD)
def test_methods_with_held_statistics_need_no_images(method, adapted, batches):
    tta = adapted(method)
    plain = medbn.to_batchnorm(tta)
    assert_plain(plain)
    logits = plain(batches[4])
    if method in ("source", "past", "rotta"):
        torch.testing.assert_close(logits, paused_prediction(tta, batches[4]), rtol=1e-4, atol=1e-4)
    else:  # with the average before the batch
        layer, bn = tta.model.bn, plain.bn
        assert torch.equal(bn.running_mean, layer.ema_mean)
        assert torch.equal(bn.running_var, layer.ema_var)


@pytest.mark.parametrize("method", sorted(set(PLAIN) - set(HELD)))
def test_methods_with_statistics_of_the_batch_ask_for_images(method, adapted):
    with pytest.raises(ValueError, match="images="):
        medbn.to_batchnorm(adapted(method))


def test_it_shares_nothing_with_the_adapter(adapted, batches):
    tta = adapted("tent")
    medbn.Monitor(tta, reference=2)
    plain = medbn.to_batchnorm(tta, batches[4])
    assert_plain(plain)
    expected = plain(batches[0])
    for batch in batches:
        tta(batch)
    assert torch.equal(plain(batches[0]), expected)


def test_layers_without_running_statistics_get_some(batches):
    model = small_model()
    model.bn = nn.BatchNorm2d(4, track_running_stats=False)
    tta = medbn.adapt(model, "tebn", "image_median")
    plain = medbn.to_batchnorm(tta, batches[0])
    torch.testing.assert_close(plain(batches[0]), tta(batches[0]), rtol=1e-4, atol=1e-4)
    nn.Sequential(plain).load_state_dict(nn.Sequential(copy.deepcopy(plain)).state_dict())


def test_a_converted_model_and_dense_outputs(batches):
    model = medbn.convert(Dense(small_model()), "median@0.5")
    plain = medbn.to_batchnorm(model, batches[0])
    assert_plain(plain)
    torch.testing.assert_close(plain(batches[0]), model(batches[0]), rtol=1e-4, atol=1e-4)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, x):
        return self.inner(x) + self.inner(2 * x + 1)


def test_what_a_plain_model_cannot_do_is_refused(adapted, batches):
    with pytest.raises(ValueError, match="LAME"):
        medbn.to_batchnorm(adapted("lame"))
    with pytest.raises(ValueError, match="NOTE"):
        medbn.to_batchnorm(adapted("note"))
    with pytest.raises(ValueError, match="ROID"):
        medbn.to_batchnorm(adapted("roid"))
    assert_plain(medbn.to_batchnorm(adapted("roid", prior="none"), batches[4]))
    with pytest.raises(ValueError, match="CoTTA"):
        medbn.to_batchnorm(adapted("cotta", augmented_output=True), batches[0])
    with pytest.raises(ValueError, match="several times"):
        medbn.to_batchnorm(medbn.adapt(Twice(), "tebn", "median"), batches[0])
    with pytest.raises(ValueError, match="not finite"):
        medbn.to_batchnorm(adapted("tebn", "mean"), torch.full_like(batches[0], torch.nan))
    with pytest.raises(ValueError, match="plain model already"):
        medbn.to_batchnorm(small_model())
    with pytest.raises(TypeError, match="adapt"):
        medbn.to_batchnorm(lambda x: x)


# --- other runtimes ---------------------------------------------------------------------------------------------------


def run_onnx(model, example, inputs, dynamic=True):
    """What onnxruntime computes for several inputs, after ``torch.onnx.export`` with any batch size."""
    pytest.importorskip("onnxscript")
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        program = torch.onnx.export(model, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    file = io.BytesIO()
    program.save(file)
    onnx.checker.check_model(onnx.load_from_string(file.getvalue()))
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [torch.from_numpy(session.run(None, {name: x.numpy()})[0]) for x in inputs]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "estimator"), [("past", "image_median@0.5"), ("tent", "median")])
def test_onnxruntime_predicts_alike(method, estimator, adapted, batches):
    plain = medbn.to_batchnorm(adapted(method, estimator), batches[4])
    inputs = [batches[4], batches[0][:5]]
    for found, x in zip(run_onnx(plain, batches[0], inputs), inputs, strict=True):
        torch.testing.assert_close(found, plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_torch_export_fx_and_torchscript_predict_alike(adapted, batches):
    plain, x = medbn.to_batchnorm(adapted("tent"), batches[4]), batches[1]
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    exported = torch.export.export(plain, (batches[0],), dynamic_shapes=shapes).module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is going
        scripted, traced = torch.jit.script(plain), torch.jit.trace(plain, batches[0])
    for other in (exported, torch.fx.symbolic_trace(plain), scripted, traced):
        torch.testing.assert_close(other(x[:7]), plain(x[:7]), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_saved_plain_model_runs_without_medbn(adapted, batches, tmp_path):
    plain = medbn.to_batchnorm(adapted("past"))
    torch.export.save(torch.export.export(plain, (batches[0],)), tmp_path / "model.pt2")
    torch.save({"x": batches[0], "y": plain(batches[0])}, tmp_path / "pair.pt")
    code = """
import sys, torch
pair = torch.load("pair.pt", weights_only=True)
torch.testing.assert_close(torch.export.load("model.pt2").module()(pair["x"]), pair["y"])
assert "medbn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


# --- models that keep batch statistics --------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["mean", "median", "mad", "mad_scaled", "image_median", "median@0.3"])
def test_exportable_layers_compute_the_same(estimator, batches):
    fast = medbn.convert(small_model(), estimator)
    plain = medbn.convert(small_model(), estimator, exportable=True)
    x = torch.cat([batches[0].round(), batches[1]])
    x[3, 1, 2, 2] = torch.nan
    for images in (x, x[:5], torch.full_like(x[:6], torch.nan)):
        torch.testing.assert_close(plain(images), fast(images), rtol=1e-4, atol=1e-4, equal_nan=True)
    gradients = []
    for model in (fast, plain):
        leaf = batches[2].clone().requires_grad_()
        model(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
    copied = pickle.loads(pickle.dumps(plain))
    torch.testing.assert_close(copied(batches[0]), plain(batches[0]), rtol=0, atol=0)
    assert medbn.convert(plain, "median").bn.estimator is medbn.estimators.get("median")


def two_layers(estimator, **options):
    """A model that is exported in a second."""
    torch.manual_seed(2)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3), nn.BatchNorm1d(3)
    return medbn.convert(nn.Sequential(*layers).eval(), estimator, **options)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["median", "image_median@0.5"])
def test_onnx_takes_exportable_layers(estimator, batches):
    model = two_layers(estimator, exportable=True)
    with_nan = batches[1].clone()
    with_nan[2] = torch.nan
    inputs = [batches[0], batches[1][:7], with_nan, batches[2].round()]
    for found, x in zip(run_onnx(model, batches[0], inputs), inputs, strict=True):
        torch.testing.assert_close(found, model(x), rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.slow
def test_onnx_does_not_take_kernels(batches):
    with pytest.raises(Exception, match=r"(?i)onnx"):
        run_onnx(two_layers("median"), batches[0], [], dynamic=False)
