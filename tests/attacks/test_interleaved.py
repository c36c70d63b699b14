"""An attacker who owns whole batches."""

import pytest
import torch

from medbn.attacks import DIA, Indiscriminate, Interleaved, Summary

from ..methods.table import assert_same, make, state


def long_stream(count):
    g = torch.Generator().manual_seed(8)
    return [(torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6,), generator=g)) for _ in range(count)]


def grey(**options):
    return DIA(Indiscriminate(), steps=0, **options)


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"share": 0.0}, "bbbbbb"),
        ({"share": 0.5}, "obobobobobob"),
        ({"share": 0.25}, "bbobbbob"),
        ({"share": 0.75}, "ooobooobooobooobooobooob"),
        ({"share": 0.5, "at": "start", "period": 3}, "ooobbbooobbb"),
        ({"share": 0.25, "call_size": 2}, "bbsssbbbsssb"),
        ({"share": 0.5, "at": "start", "period": 3, "call_size": 18}, "hbbbhbbb"),
    ],
)
def test_owned_batches_come_where_they_are_due(options, calls, model):
    served = []
    tta, clean = (make(model, "sema", "image_median") for _ in range(2))
    scenario = Interleaved(tta, grey(start="white"), **options)
    tta.model.register_forward_pre_hook(lambda _, args: served.append(args[0]))
    for (images, labels), outcome in zip(long_stream(6), scenario.run(long_stream(6)), strict=True):
        assert torch.equal(outcome.clean, clean(images))
        assert outcome.benign.all()
        assert torch.equal(outcome.labels, labels)
    owned = {6: "o", 2: "s", 18: "h"}
    kinds = "".join(owned[len(x)] if bool((x == 1).all()) else "b" for x in served)
    assert kinds.replace("bb", "b") == calls  # the clean state serves every benign batch too


def test_the_poison_stays_and_the_clean_state_has_none(model):
    tta = make(model, "past", "mean", min_images=1)
    outcomes = list(Interleaved(tta, grey(start="white"), share=0.5).run(long_stream(4)))
    assert all(not torch.allclose(o.attacked, o.clean) for o in outcomes)
    untouched = list(Interleaved(make(model, "past", "mean", min_images=1), grey(), share=0.0).run(long_stream(4)))
    for outcome, other in zip(outcomes, untouched, strict=True):
        assert torch.equal(outcome.clean, other.attacked)
    assert Summary.of(outcomes).batches == 4


@pytest.mark.parametrize("victims", ["next", "last"])
def test_a_crafted_batch_is_aimed_at_the_next_or_the_last_one(victims, model):
    aimed = []

    class Recorded(DIA):
        def __call__(self, adapter, images, labels, malicious):
            aimed.append((images[:6], malicious))
            return super().__call__(adapter, images, labels, malicious)

    stream = long_stream(4)
    tta = make(model, "past", "image_median", min_images=1)
    list(Interleaved(tta, Recorded(Indiscriminate(), steps=1), share=0.5, victims=victims).run(stream))
    expected = [stream[max(i - (victims == "last"), 0)][0] for i in range(4)]
    for (images, malicious), batch in zip(aimed, expected, strict=True):
        assert torch.equal(images, batch)
        assert malicious == slice(6, 12)


def test_a_stopped_stream_continues_with_the_same_bits(model):
    def scenario():
        return Interleaved(make(model, "past", "image_median", min_images=1), grey(), share=0.4, victims="last")

    stream, whole, first, second = long_stream(6), scenario(), scenario(), scenario()
    expected = list(whole.run(stream))
    list(first.run(stream[:3]))
    second.load(first.state())
    for outcome, other in zip(second.run(stream[3:]), expected[3:], strict=True):
        assert torch.equal(outcome.attacked, other.attacked)
        assert torch.equal(outcome.clean, other.clean)
    assert_same(state(second.adapter), state(whole.adapter))


def test_wrong_options_are_refused(model):
    tta = make(model, "past")
    for name, value in (("share", 1.0), ("at", "end"), ("period", 0), ("victims", "all"), ("call_size", 0)):
        with pytest.raises(ValueError, match=name):
            Interleaved(tta, grey(), **{name: value})


def test_starts_without_any_step_are_what_they_are_called():
    from medbn.attacks.projections import STARTS

    x = torch.rand(2, 3, 5, 4)
    assert torch.equal(STARTS.get("white")(x, 1.0, None), torch.ones_like(x))
    board = STARTS.get("checkerboard")(x, 1.0, None)
    assert board.mean() == 0.5
    assert (board[..., 1:] != board[..., :-1]).all()
    assert (board[..., 1:, :] != board[..., :-1, :]).all()
