"""Kernels as operators of torch: torch's own checks, and compiled programs compared with eager ones."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import medbn
from medbn import kernels
from medbn.kernels import c, dispatch
from medbn.layers import Observer

from .cases import KERNELS, needs_c

# mad_scaled compiles to the same operator as mad.
KERNELS_TO_COMPILE = [case for case in KERNELS if "mad_scaled" not in case.values]
on_each_kernel = pytest.mark.parametrize(("device", "kernel"), KERNELS_TO_COMPILE)
each_kernel = pytest.mark.parametrize("kernel", c.KERNELS)
needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
# Older versions of torch cannot tell compile from export, and compile the reference path.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch is too old"),
]
INDUCTOR_LAST = pytest.param("inductor", True, marks=needs_compiler)
INDUCTOR_EMA = pytest.param("inductor", "ema", marks=needs_compiler)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def arguments(kernel, device="cpu", last=False, affine=True, mixed=True, mean=False, dtype=torch.float32, poison=False):
    x = torch.randn(6, 3, 5, 4, device=device).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    if poison:
        x[2, 1, 0, 0] = torch.nan
    parameters = [torch.randn(3, device=device) for _ in range(2)] if affine else [None, None]
    running = [torch.randn(3, device=device), torch.rand(3, device=device) + 0.5] if mixed else [None, None]
    return [x, *parameters, *running, kernel, 0.3 if mixed else 1.0, 1e-5, mean]


CASES = {
    "plain": {},
    "channels last": {"last": True},
    "bare": {"affine": False, "mixed": False},
    "mean": {"mean": True},
    "poison": {"poison": True},
}
each_case = pytest.mark.parametrize("case", CASES)


@on_each_kernel
@each_case
@pytest.mark.filterwarnings("ignore")  # opcheck's own
def test_operators_pass_torch_s_checks(device, kernel, case):
    given = arguments(kernel, device, **CASES[case])
    for t in given[:3]:
        if t is not None:
            t.requires_grad_()
    # Compared to eager mode with NaN unequal to itself; there are tests of values below.
    tests = ["test_schema", "test_faketensor", "test_autograd_registration"]
    tests += [] if case == "poison" else ["test_aot_dispatch_dynamic"]
    torch.library.opcheck(torch.ops.medbn.norm.default, given, test_utils=tests)
    given = [t.detach() if isinstance(t, torch.Tensor) else t for t in given]
    y, *saved = torch.ops.medbn.norm(*given)
    back = [torch.randn_like(y), given[0], given[1], *saved, *given[5:]]
    torch.library.opcheck(torch.ops.medbn.norm_backward.default, back, test_utils=tests)


@pytest.mark.gpu
@each_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore")
def test_operators_pass_torch_s_checks_in_half_precision(kernel, dtype):
    given = arguments(kernel, "cuda", dtype=dtype)
    given[0].requires_grad_()
    torch.library.opcheck(torch.ops.medbn.norm.default, given, test_utils=["test_schema", "test_faketensor"])


@needs_c
@each_kernel
def test_operators_take_any_strides(kernel):
    """A compiler may choose other strides than eager mode has."""
    given = arguments(kernel)
    expected = torch.ops.medbn.norm(*given)
    wide = torch.randn(6, 3, 5, 8)
    wide[..., ::2] = given[0]
    strange = [wide[..., ::2], *given[1:]]
    assert not c.supported(strange[0])
    torch.testing.assert_close(torch.ops.medbn.norm(*strange), expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = torch.ops.medbn.norm(mode.from_tensor(strange[0]), *strange[1:])
    assert [t.stride() for t in fake] == [t.stride() for t in torch.ops.medbn.norm(*strange)]
    y, *saved = expected
    back = [torch.randn_like(y), given[0], given[1], *saved, *given[5:]]
    expected = torch.ops.medbn.norm_backward(*back)
    torch.testing.assert_close(torch.ops.medbn.norm_backward(back[0], strange[0], *back[2:]), expected)


@needs_c
def test_a_second_derivative_of_an_operator_is_an_error():
    x, *rest = arguments("median")
    x.requires_grad_()
    y = torch.ops.medbn.norm(x, *rest)[0]
    (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dx.sum().backward()


# --- compiled programs ------------------------------------------------------------------------------------------------


def network(kernel, device="cpu", policy="batch", **options):
    layers = [medbn.RobustBatchNorm2d(3, estimator=kernel, policy=policy, **options) for _ in range(2)]
    for layer in layers:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
        if layer.running_mean is not None:
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).to(device).eval()


def trace(model, x, **options):
    """Return the names of the operations that a compiler is given, and the output."""
    graphs = []

    def backend(module, example):
        graphs.append(module.graph)
        return module

    y = torch.compile(model, fullgraph=True, backend=backend, **options)(x)
    assert len(graphs) == 1
    return [str(node.target) for node in graphs[0].nodes if node.op == "call_function"], y


def count_operators(names):
    return sum("medbn" in name for name in names)


def compute_gradients(model, call, x, g):
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = call(leaf)
    return y, *torch.autograd.grad(y, [leaf, *model.parameters()], g)


def compare(model, x, backend="aot_eager"):
    """Return output and gradients of the compiled model, after comparing them with eager mode."""
    g = torch.randn_like(x)
    saved = [
        compute_gradients(model, call, x, g) for call in (torch.compile(model, fullgraph=True, backend=backend), model)
    ]
    torch.testing.assert_close(*saved, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert saved[0][0].stride() == saved[1][0].stride()
    return saved[0]


@on_each_kernel
def test_the_program_contains_the_operator(device, kernel):
    model, x = network(kernel, device), torch.randn(6, 3, 5, 4, device=device)
    names, y = trace(model, x)
    assert count_operators(names) == 2
    assert not any("median" in name or "sort" in name for name in names)
    torch.testing.assert_close(y, model(x))


@on_each_kernel
@pytest.mark.parametrize(("backend", "last"), [("aot_eager", False), INDUCTOR_LAST])
def test_values_and_gradients_are_those_of_eager_mode(device, kernel, backend, last):
    x = torch.randn(6, 3, 5, 4, device=device)
    if last:
        x = x.to(memory_format=torch.channels_last)
    compare(network(kernel, device), x, backend)


@on_each_kernel
@pytest.mark.parametrize("policy", ["ema", "interpolate"])
def test_policies(device, kernel, policy):
    model = network(kernel, device, policy)
    if policy == "ema":
        model[0].commit(torch.randn(3, device=device), torch.rand(3, device=device))
    assert count_operators(trace(model, torch.randn(6, 3, 5, 4, device=device))[0]) == 2
    compare(model, torch.randn(6, 3, 5, 4, device=device))


@on_each_kernel
def test_the_straight_through_gradient(device, kernel):
    model, x = network(kernel, device), torch.randn(6, 3, 5, 4, device=device)
    _, exact, *_ = compare(model, x)
    torch._dynamo.reset()
    with medbn.backward_through(model, "mean"):
        assert count_operators(trace(model, x)[0]) == 2
        _, through, *_ = compare(model, x)
    assert not torch.allclose(exact, through, rtol=1e-3, atol=1e-3)


@on_each_kernel
@pytest.mark.parametrize(("backend", "policy"), [("aot_eager", "batch"), INDUCTOR_EMA])
def test_images_that_are_not_finite_are_isolated(device, kernel, policy, backend):
    model = network(kernel, device, policy)
    x = torch.randn(6, 3, 5, 4, device=device)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    compiled(x.clone().requires_grad_())
    g = torch.randn_like(x)
    x[2, 1, 0, 0], x[4] = torch.nan, torch.inf
    with torch.compiler.set_stance("fail_on_recompile"):
        y, dx, *compiled_grads = compute_gradients(model, compiled, x, g)
    expected, d_expected, *eager_grads = compute_gradients(model, model, x, g)
    torch.testing.assert_close([y, dx, *compiled_grads], [expected, d_expected, *eager_grads], equal_nan=True)
    assert y.isnan().flatten(1).any(1).tolist() == [False, False, True, False, True, False]
    others = [0, 1, 3, 5]
    alone = compute_gradients(model, model, x[others], g[others])
    torch.testing.assert_close([y[others], dx[others], *compiled_grads], list(alone), rtol=1e-4, atol=1e-5)
    assert not dx[[2, 4]].any()


@on_each_kernel
@pytest.mark.parametrize("track", [True, False])
def test_a_batch_with_no_finite_image(device, kernel, track):
    model = network(kernel, device, track_running_stats=track)
    x = torch.full((4, 3, 5, 4), torch.nan, device=device)
    y, *gradients = compare(model, x)
    assert y.isnan().all()
    assert not gradients[0].any()


@needs_c
@each_kernel
def test_huge_values_affect_their_own_image_only(kernel):
    """Finite values whose squares are infinite."""
    model, x = network(kernel), torch.randn(7, 3, 5, 4)
    x[1, :, ::2] = 1e30
    y, dx, *_ = compare(model[:1], x)
    wide = x.double().requires_grad_()
    first = model[0]
    expected = medbn.functional.robust_norm(wide, first.weight.double(), first.bias.double(), kernel)
    others = [0, 2, 3, 4, 5, 6]
    torch.testing.assert_close(y[others].double(), expected[others], rtol=1e-4, atol=1e-4)
    assert dx.isfinite().all()


@on_each_kernel
def test_training_updates_running_statistics_as_eager_mode_does(device, kernel):
    compiled, eager = (network(kernel, device).train() for _ in range(2))
    eager.load_state_dict(compiled.state_dict())
    call = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 2.0):
        x = scale * torch.randn(6, 3, 5, 4, device=device)
        x[3, 0, 0, 0] = torch.nan
        call(x)
        eager(x)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value)


@on_each_kernel
@pytest.mark.parametrize("policy", ["batch", "ema"])
def test_detached_observers_observe_the_same(device, kernel, policy):
    layer, x = network(kernel, device, policy)[0], torch.randn(6, 3, 5, 4, device=device)
    x[3, 0, 0, 0] = torch.nan

    def observed():
        saved = []

        def record(p):
            saved.append((p.batch_centre, p.batch_variance, p.centre, p.variance))

        def call(x):
            layer(x)
            return saved[-1]

        layer._observers = (Observer(record, detached=True),)
        return call

    with torch.no_grad():
        eager = observed()(x)
        compiled = torch.compile(observed(), fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, eager)


@needs_c
def test_what_kernels_cannot_do_is_compiled_from_the_reference():
    x = torch.randn(6, 3, 5, 4)
    names, _ = trace(network("median").double(), x.double())
    assert count_operators(names) == 0
    names, _ = trace(network("mean"), x)
    assert count_operators(names) == 0
    model = network("median")
    with medbn.hooks.mask_images(model, torch.tensor([True] * 5 + [False])):
        names, y = trace(model, x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
    assert count_operators(names) == 0
    torch._dynamo.reset()
    with medbn.backward_through(model, medbn.gradients.get("smooth")):
        names, _ = trace(model, x)
    assert count_operators(names) == 0


@needs_c
def test_autocast_selects_as_in_eager_mode():
    model, x = network("median"), torch.randn(6, 3, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        names, y = trace(model, x)
        assert y.dtype == model(x).dtype == torch.float32
        assert count_operators(names) == 2
        torch._dynamo.reset()
        names, y = trace(model, x.bfloat16())
        assert y.dtype == model(x.bfloat16()).dtype == torch.bfloat16
        assert count_operators(names) == 0


@needs_c
def test_the_reference_can_be_forced(monkeypatch):
    model, x = network("median"), torch.randn(6, 3, 5, 4)
    monkeypatch.setenv("MEDBN_KERNELS", "reference")
    names, y = trace(model, x)
    assert count_operators(names) == 0
    torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)


@each_kernel
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_uses_the_reference(kernel, strict):
    model, x = network(kernel), torch.randn(6, 3, 5, 4)
    program = torch.export.export(model, (x,), strict=strict)
    assert count_operators([str(node.target) for node in program.graph.nodes]) == 0
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


@needs_c
def test_transforms_inside_a_compiled_program_use_the_reference():
    layer, x = network("median")[0], torch.randn(6, 3, 5, 4)

    def slope(x):
        return torch.func.grad(lambda x: layer(x).pow(3).sum())(x)

    names, saved = trace(slope, x)
    assert count_operators(names) == 0
    torch.testing.assert_close(saved, slope(x), rtol=1e-3, atol=1e-3)


@needs_c
@each_kernel
def test_one_program_for_all_batch_sizes(kernel):
    model = network(kernel)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(torch.randn(6, 3, 5, 4))
    with torch.compiler.set_stance("fail_on_recompile"):
        for images in (7, 20, 33):
            x = torch.randn(images, 3, 5, 4)
            torch.testing.assert_close(compiled(x), model(x))


@each_kernel
def test_the_operator_s_fake_outputs_have_the_shapes_of_a_gpu_s(kernel):
    """Tested without a GPU: shapes and dtypes are those of ``kernels.saved``."""
    images, channels = 6, 3
    with FakeTensorMode():
        x = torch.empty(images, channels, 5, 4, device="cuda", dtype=torch.bfloat16)
        y, table, deviation, selected, means, slopes, finite, counted = torch.ops.medbn.norm(
            x, None, None, None, None, kernel, 1.0, 1e-5, False
        )
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        assert (table.shape, table.dtype) == ((4, channels), torch.float32)
        assert (deviation.shape, deviation.dtype) == ((channels,), torch.float64)
        assert selected.dtype == finite.dtype == counted.dtype == torch.int32
        assert (finite.shape, counted.shape) == ((images,), (1,))
        expected = {"median": ((3,), (0,), (0,)), "image_median": ((6, 3), (6, 3), (2, 3))}
        assert (selected.shape, means.shape, slopes.shape) == expected.get(kernel, ((2, 3), (0,), (1, 3)))


@needs_c
def test_selected_inside_a_compiled_program():
    seen = []

    def call(x):
        seen.append(kernels.selected(x))
        return x + 1

    torch.compile(call, backend="eager")(torch.randn(4, 3, 2, 2))
    assert seen == ["c"]
    assert dispatch.selected(torch.randn(4, 3, 2, 2)) == "c"
