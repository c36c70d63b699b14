"""The exact median over processes, on values that make brackets easy, hard and impossible."""

import pytest
import torch

from medbn.distributed import Group, selection

pytestmark = pytest.mark.slow


def select_share(group, rows, sizes, used=None, path="brackets"):
    """The selection of a part of the columns, and how many messages were exchanged."""
    rank = torch.distributed.get_rank(group)
    start = sum(sizes[:rank])
    own = slice(start, start + sizes[rank])
    messages = []
    members = Group(group)
    run = members._run
    members._run = lambda name, collective: (messages.append(name), run(name, collective))
    if path == "histograms":
        keys = selection._to_keys(rows[:, own])
        found = selection._select_by_histograms(keys, None if used is None else used[own], members)
        found = found._replace(values=selection._to_values(found.values, rows.dtype))
    else:
        found = selection.lower_median(rows[:, own], None if used is None else used[own], members)
    return found, len(messages)


def hard_rows(count):
    """Rows of values that samples know little of, or that lie in the order of the processes."""
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(count, generator=generator)
    rows = [
        normal,
        normal.sort().values,
        normal.round(),
        normal.relu(),
        torch.where(torch.arange(count) % 2 == 0, -1e30, 1e30),
        normal.sign() * torch.logspace(-38, 38, count),
        torch.full((count,), 7.0),
        torch.arange(count).flip(0) * 1e-40,
        torch.where(torch.arange(count) < count * 0.51, 0.0, normal),
        torch.where(torch.arange(count) < count * 0.49, -torch.inf, torch.inf),
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("path", ["brackets", "histograms"])
@pytest.mark.parametrize("sizes", [(4001, 4000), (1, 7000, 0), (300, 2000, 9, 4000)])
def test_the_selected_value_is_the_median_to_the_bit(pool, path, sizes):
    rows = hard_rows(sum(sizes))
    for values in (rows, rows.double()):
        expected = values.median(dim=1).values
        answers = pool.run(select_share, len(sizes), values, sizes, None, path)
        position = (values == expected.unsqueeze(1)).to(torch.uint8).argmax(dim=1)
        owner = (position.unsqueeze(1) >= torch.tensor(sizes).cumsum(0)).sum(dim=1)
        for found, messages in answers:
            torch.testing.assert_close(found.values, expected, rtol=0, atol=0)
            torch.testing.assert_close(found.owner, owner)
            assert int(found.size) == sum(sizes)
            assert messages <= 3 + values.element_size()


def test_a_bracket_that_misses_falls_back_on_histograms(pool, monkeypatch):
    # Samples are taken at places that everyone knows: these values lie there alone.
    size = 20_000
    values = torch.randn(2, 2 * size)
    for start in (0, size):
        values[0, start + selection._positions(size)] = 1e6
    answers = pool.run(select_share, 2, values, (size, size))
    for found, messages in answers:
        torch.testing.assert_close(found.values, values.median(dim=1).values, rtol=0, atol=0)
        assert messages == 3 + 4


@pytest.mark.parametrize("path", ["brackets", "histograms"])
def test_values_that_are_not_used_and_nan(pool, path):
    rows = hard_rows(900)[:4]
    used = torch.rand(900) < 0.3
    expected = rows[:, used].median(dim=1).values
    rows[:, ~used] = torch.nan
    for found, _ in pool.run(select_share, 3, rows, (500, 0, 400), used, path):
        torch.testing.assert_close(found.values, expected, rtol=0, atol=0)
    rows[1, used.nonzero()[0]] = torch.nan
    expected[1] = torch.nan
    for found, _ in pool.run(select_share, 3, rows, (500, 0, 400), used, path):
        torch.testing.assert_close(found.values, expected, rtol=0, atol=0, equal_nan=True)
    nothing = torch.zeros_like(used)
    for found, _ in pool.run(select_share, 3, rows, (500, 0, 400), nothing, path):
        assert int(found.size) == 0
