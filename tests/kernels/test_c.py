"""The C kernels against float64, on every instruction set this machine has, in both memory formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator

import pytest
import torch
from torch import Tensor

from medbn.kernels import c, reference
from medbn.kernels.c import binding, library

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

if not c.available():
    pytest.skip(f"no C kernels: {c.reason()}", allow_module_level=True)

# One value, a row, ends of vectors, one image, several groups of channels; long enough for a sample in both formats.
SHAPES = [(1, 1), (200, 17), (2, 17, 2), (2, 3, 2, 3, 5), (1, 17, 31, 33), (2, 130, 7, 7)]
LONG = (20, 19, 31, 33)


def _where(probability: float, value: float, otherwise: Tensor) -> Tensor:
    return torch.where(torch.rand(otherwise.shape) < probability, value, otherwise)


KINDS: dict[str, Callable[[torch.Size], Tensor]] = {
    "random": lambda s: torch.randn(s),
    "shifted": lambda s: torch.randn(s) + 1000,
    "relu": lambda s: (torch.randn(s) - 1.28).relu(),
    "coarse": lambda s: torch.randn(s).bfloat16().float(),
    "two_values": lambda s: (torch.rand(s) < 0.5).float(),
    "constant": lambda s: torch.full(s, -3.25),
    "sorted": lambda s: torch.arange(s.numel()).float().view(s),
    "denormal": lambda s: torch.randn(s) * 1e-40,
    "signed_zeros": lambda s: _where(0.3, -0.0, _where(0.3, 0.0, torch.randn(s))),
    "huge_few": lambda s: _where(0.2, 1e30, torch.randn(s)),
    "huge_many": lambda s: _where(0.45, -1e30, torch.randn(s)),
    "extreme": lambda s: torch.randn(s).sign() * torch.finfo(torch.float32).max,
    "squares_overflow": lambda s: _where(0.001, 1e20, torch.randn(s)),
}
last_or_not = pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])


@pytest.fixture(params=c.instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set; a test without this fixture runs on the best."""
    monkeypatch.setenv("MEDBN_C_ISA", request.param)
    return str(request.param)


each_isa = pytest.mark.usefixtures("isa")


def with_each_isa(name: str, values: Iterable[object], essential: Container[object]) -> pytest.MarkDecorator:
    """Parametrise with values on every instruction set; the fast tier has all values on the best, few on the others."""
    *_, best = c.instruction_sets()
    cases = [
        pytest.param(isa, value, marks=() if isa == best or value in essential else pytest.mark.slow)
        for isa in c.instruction_sets()
        for value in values
    ]
    return pytest.mark.parametrize(("isa", name), cases, indirect=["isa"])


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def arrange(x: Tensor, last: bool) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x.contiguous()


def tensors(saved: binding.MedianStatistics) -> list[Tensor]:
    return [saved.centre, saved.variance, saved.deviation_sum, saved.position]


def rows(x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def spread(values: Tensor, x: Tensor) -> Tensor:
    """Shape values per channel, or per image and channel, for arithmetic with x."""
    return values.reshape(*(values.shape if values.dim() == 2 else (1, -1)), *[1] * (x.dim() - 2))


def select(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's lower median by sorting, and where it first occurs."""
    middle = values.sort(dim=1).values[:, (values.shape[1] - 1) // 2] + 0.0
    return middle, (values == middle.unsqueeze(1)).to(torch.uint8).argmax(dim=1)


def check_statistics(x: Tensor) -> None:
    saved = binding.median_statistics(x)
    centre, position = select(rows(x))
    assert saved.finite
    assert torch.equal(saved.centre, centre)
    assert not torch.signbit(saved.centre[saved.centre == 0]).any()
    assert torch.equal(saved.position, position)
    deviations = rows(x).double() - centre.double().unsqueeze(1)
    variance = deviations.square().mean(dim=1)
    torch.testing.assert_close(saved.variance, variance.float(), rtol=2e-6, atol=1e-44)
    # A sum is as accurate as what it sums.
    assert ((saved.deviation_sum - deviations.sum(dim=1)).abs() <= 1e-6 * deviations.abs().sum(dim=1)).all()


def check_abs_median(x: Tensor, centre: Tensor) -> None:
    value, position = binding.abs_median(x, centre)
    expected, where = select((rows(x) - centre.unsqueeze(1)).abs())
    assert torch.equal(value, expected)
    assert torch.equal(position, where)


@with_each_isa("kind", KINDS, essential=("random", "huge_many"))
@last_or_not
def test_medians_are_exact_and_moments_close(isa: str, kind: str, last: bool) -> None:
    for shape in (*SHAPES, LONG):
        x = arrange(KINDS[kind](torch.Size(shape)), last)
        assert c.supported(x)
        check_statistics(x)
        check_abs_median(x, binding.median_statistics(x).centre)


@pytest.mark.slow
@each_isa
@given(
    st.integers(1, 40),
    st.integers(1, 35),
    st.integers(1, 20),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    st.booleans(),
)
def test_any_finite_values_of_any_size(images: int, channels: int, size: int, values: list[float], last: bool) -> None:
    choice = torch.randint(len(values), (images, channels, size))
    x = arrange(torch.tensor(values, dtype=torch.float32)[choice], last)
    saved = binding.median_statistics(x)
    centre, position = select(rows(x))
    assert torch.equal(saved.centre, centre)
    assert torch.equal(saved.position, position)
    check_abs_median(x, torch.tensor(values[0]).expand(channels))


@last_or_not
def test_same_as_the_reference_path(last: bool) -> None:
    x = arrange(torch.randn(8, 5, 9, 9), last)
    saved = binding.median_statistics(x)
    assert torch.equal(saved.centre, reference.lower_median(x))
    torch.testing.assert_close(saved.variance, reference.square_deviation(x, saved.centre))
    assert torch.equal(binding.abs_median(x, saved.centre)[0], reference.median_absolute_deviation(x, saved.centre))


@pytest.mark.slow
@last_or_not
def test_millions_of_values_in_a_channel(last: bool) -> None:
    """More than the largest sample brackets."""
    check_statistics(arrange(torch.randn(4, 2, 1000, 1000), last))


def sampled_positions(n: int) -> Tensor:
    """Return the positions that bracket.h samples; an attacker who knows them can make the bracket useless."""
    size = min(8192, n)
    h = torch.arange(size, dtype=torch.int64)
    h ^= h >> 16
    h = h * 0x7FEB352D & 0xFFFFFFFF
    h ^= h >> 15
    h = h * 0x846CA68B & 0xFFFFFFFF
    h ^= h >> 16
    positions = []
    for per_sample in (16.0, 4.0):
        sample = int(min(n, 8192, max(64, int((n / per_sample) ** (2 / 3)))))
        for near in (sample - 1, sample, sample + 1):
            j = torch.arange(min(near, size))
            positions.append(((j + h[: len(j)] * 2.0**-32) * (n / near)).long().clamp(max=n - 1))
    return torch.cat(positions).unique()


@with_each_isa("value", (-1e30, 7.0, 50.0), essential=())
@last_or_not
def test_a_sample_chosen_by_an_attacker_changes_nothing(isa: str, value: float, last: bool) -> None:
    n = 30_000
    x = torch.randn(1, 18, n) + 7
    x[:, ::3, sampled_positions(n)] = value
    check_statistics(arrange(x, last))
    check_abs_median(arrange(x, last), x[0].median(dim=1).values)


@last_or_not
def test_pivots_chosen_by_an_attacker_change_nothing(last: bool) -> None:
    values = torch.randn(1, 3, 4000)
    for step in (2, 3, 5, 16, 32):
        values[..., step // 2 :: step] = 100.0 + step
    check_statistics(arrange(values, last))


@each_isa
@last_or_not
def test_a_single_nonfinite_value_is_reported(last: bool) -> None:
    for shape in ((1, 1), (5, 20), (3, 17, 7, 7), (30, 17, 32, 32)):
        for bad in (float("nan"), float("inf"), float("-inf")):
            for position in (0, torch.Size(shape).numel() // 2, -1):
                x = torch.randn(shape)
                x.view(-1)[position] = bad
                assert not binding.median_statistics(arrange(x, last)).finite
            assert not binding.median_statistics(arrange(torch.full(shape, bad), last)).finite


@each_isa
@last_or_not
@pytest.mark.parametrize("kind", ["random", "shifted", "denormal", "huge_few", "extreme"])
def test_image_moments(kind: str, last: bool) -> None:
    for shape in (*SHAPES, (2, 3, 300, 301)):
        x = arrange(KINDS[kind](torch.Size(shape)), last)
        mean, variance = binding.image_moments(x)
        planes = x.double().reshape(*shape[:2], -1)
        exact = planes.mean(dim=2)
        assert ((mean - exact).abs() <= 1e-6 * planes.abs().mean(dim=2) + 1e-44).all()
        deviations = planes - exact.unsqueeze(2)
        torch.testing.assert_close(variance, deviations.square().mean(dim=2).float(), rtol=2e-6, atol=1e-44)


@each_isa
def stable_middle(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of the two middle values over images, and their images, as a stable sort has them."""
    ordered, order = values.sort(dim=0, stable=True)
    lower, upper = (len(values) - 1) // 2, len(values) // 2
    return 0.5 * ordered[lower] + 0.5 * ordered[upper], order[lower], order[upper]


@each_isa
@pytest.mark.parametrize("kind", ["random", "two_values", "constant", "signed_zeros", "huge_few", "extreme"])
@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (2, 17, 3), (31, 5), (64, 33, 2, 2)])
@last_or_not
def test_medians_over_images_are_those_of_a_stable_sort(kind: str, shape: tuple[int, ...], last: bool) -> None:
    x = arrange(KINDS[kind](torch.Size(shape)), last)
    result = binding.image_forward(x, statistics_only=True)
    assert result is not None
    assert result.y is None
    means, variances = result.moments
    assert torch.equal(result.moments, torch.stack(binding.image_moments(x)))
    centre, *mean_images = stable_middle(means)
    inner, *variance_images = stable_middle(variances)
    mad, *mad_images = stable_middle((means - centre).abs())
    assert torch.equal(result.selected, torch.stack((*mean_images, *variance_images, *mad_images)))
    assert torch.equal(result.table[0], centre)
    torch.testing.assert_close(result.table[1], inner + (1.4826 * mad).square(), rtol=1e-6, atol=0.0)
    sign = (means - centre).sign().gather(0, torch.stack(mad_images))
    torch.testing.assert_close(result.slopes, 1.4826**2 * mad * sign, rtol=1e-6, atol=0.0)


def test_image_moments_of_nonfinite_values_are_nonfinite() -> None:
    x = torch.randn(3, 2, 5)
    x[0, 0, 1], x[1, 1, 2] = float("nan"), float("inf")
    mean, variance = binding.image_moments(x)
    assert mean.isfinite().tolist() == [[False, True], [True, False], [True, True]]
    assert variance.isfinite().tolist() == mean.isfinite().tolist()


@each_isa
@last_or_not
def test_normalise(last: bool) -> None:
    for shape in (*SHAPES, LONG):
        x = arrange(torch.randn(shape), last)
        centre, scale, bias = torch.randn(3, shape[1])
        y = binding.normalise(x, centre, scale, bias)
        assert y.stride() == x.stride()
        expected = (x.double() - spread(centre, x)) * spread(scale, x) + spread(bias, x)
        torch.testing.assert_close(y, expected.float(), rtol=1e-6, atol=1e-6)


@each_isa
@last_or_not
def test_reduce(last: bool) -> None:
    for shape in (*SHAPES, LONG):
        x, g = (arrange(torch.randn(shape), last) for _ in range(2))
        centre = torch.randn(shape[1])
        sum_g, sum_gx = binding.reduce(g, x, centre)
        products = rows(g).double() * (rows(x).double() - centre.double().unsqueeze(1))
        assert ((sum_g - rows(g).double().sum(dim=1)).abs() <= 1e-6 * rows(g).abs().sum(dim=1)).all()
        assert ((sum_gx - products.sum(dim=1)).abs() <= 1e-6 * products.abs().sum(dim=1)).all()


@each_isa
@last_or_not
@pytest.mark.parametrize("per_image", [False, True])
def test_combine(per_image: bool, last: bool) -> None:
    for shape in (*SHAPES, LONG):
        x, g = (arrange(torch.randn(shape), last) for _ in range(2))
        centre, scale = torch.randn(2, shape[1])
        slope, shift = (torch.randn(shape[:2] if per_image else shape[1:2]) for _ in range(2))
        dx = binding.combine(g, x, centre, scale, slope, shift)
        assert dx.stride() == x.stride()
        expected = spread(scale, x) * g.double() + spread(slope, x) * (x.double() - spread(centre, x))
        torch.testing.assert_close(dx, (expected + spread(shift, x)).float(), rtol=1e-5, atol=2e-6)


@last_or_not
def test_gradients_come_in_any_layout(last: bool) -> None:
    x = arrange(torch.randn(4, 6, 5, 7), last)
    centre, scale, slope, shift = torch.randn(4, 6)
    dense = torch.randn(4, 6, 5, 7)
    for g in (torch.tensor(0.5).expand(4, 6, 5, 7), arrange(dense, not last), dense.transpose(2, 3).contiguous().mT):
        expected = binding.combine(arrange(g, last), x, centre, scale, slope, shift)
        assert torch.equal(binding.combine(g, x, centre, scale, slope, shift), expected)
        assert torch.equal(binding.reduce(g, x, centre)[1], binding.reduce(arrange(g, last), x, centre)[1])


@pytest.fixture(params=["torch", "own"])
def kind_of_threads(request: pytest.FixtureRequest) -> Iterator[str]:
    """Threads of torch's OpenMP runtime, and those that the kernels start without one."""
    kernels, _ = library.load()
    assert kernels is not None
    kernels.medbn_use_threads(library.openmp_of_torch() if request.param == "torch" else None)
    yield request.param
    kernels.medbn_use_threads(library.openmp_of_torch())


@pytest.mark.usefixtures("kind_of_threads")
@last_or_not
def test_the_number_of_threads_changes_no_bit(last: bool, threads: Callable[[int], None]) -> None:
    for shape in ((200, 17), (16, 67, 14, 14), (20, 70, 32, 32)):
        x, g = (arrange(torch.randn(shape), last) for _ in range(2))
        x[:, 3] = 1e30
        per_channel = torch.randn(4, shape[1])

        def everything(x: Tensor = x, g: Tensor = g, per_channel: Tensor = per_channel) -> list[Tensor]:
            return [
                *tensors(binding.median_statistics(x)),
                *binding.abs_median(x, per_channel[0]),
                *binding.image_moments(x),
                binding.normalise(x, *per_channel[:3]),
                *binding.reduce(g, x, per_channel[0]),
                binding.combine(g, x, *per_channel),
            ]

        threads(1)
        alone = everything()
        for number in (2, 7):
            threads(number)
            assert all(torch.equal(a, b) for a, b in zip(everything(), alone, strict=True))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_forked_child(threads: Callable[[int], None]) -> None:
    threads(2)
    x = torch.randn(20, 16, 32, 32)
    expected = tensors(binding.median_statistics(x))
    child = os.fork()
    if child == 0:
        results = tensors(binding.median_statistics(x))
        os._exit(0 if all(torch.equal(a, b) for a, b in zip(expected, results, strict=True)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_supported() -> None:
    x = torch.randn(4, 3, 8, 8)
    supported = (
        x,
        torch.nn.Parameter(x),
        x.to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d),
        x[:2],
    )
    other = (
        x.double(),
        x.bfloat16(),
        x[:, :2],
        x[..., ::2],
        x.mT,
        x[:0],
        x[0, 0, 0],
        x.to("meta"),
        x.to_sparse(),
        torch.ones(1).expand(4, 3, 8, 8),
    )
    assert all(map(c.supported, supported))
    assert not any(map(c.supported, other))


def test_refuses_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(ValueError, match="float64"):
        binding.median_statistics(x.double())
    with pytest.raises(ValueError, match=r"\(4,\)"):
        binding.abs_median(x, torch.zeros(4))
    with pytest.raises(ValueError, match="gradient"):
        binding.reduce(x[:2], x, torch.zeros(3))
    with pytest.raises(ValueError, match="slope"):
        binding.combine(x, x, *torch.zeros(3, 3), torch.zeros(4, 3))
    monkeypatch.setenv("MEDBN_C_ISA", "sse9")
    with pytest.raises(ValueError, match="sse9"):
        binding.median_statistics(x)
