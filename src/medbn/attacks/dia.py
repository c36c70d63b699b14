"""The Distribution Invading Attack (Wu et al., ICML 2023; algorithm 1 of the MedBN paper) and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .. import gradients, hooks
from .._errors import unknown_name
from ..cuda_graphs import CaptureError
from ..functional import statistics
from ..methods import Adapter, Surrogate
from . import _graph
from ._insert import Places, inserted
from .base import Malicious
from .objectives import Objective, Targeted
from .projections import STARTS, project

KNOWLEDGE = {"white": "now", "semi": "source"}
WORTHWHILE = 10
"""Steps from which on a recording, which costs about as much as five of them, is made unasked."""


class Crafted(NamedTuple):
    """A poisoned batch, and how it came about."""

    images: Tensor
    """The whole batch; benign images are as they were, to the bit."""
    value: float
    """The objective that was reached, as the attacker's surrogate sees it."""
    steps: int
    """How many steps were taken, in the best start."""


class _Batch(NamedTuple):
    """What is attacked."""

    images: Tensor
    labels: Tensor
    where: Places
    clean: Tensor
    """The malicious images as they were."""


@dataclass(frozen=True)
class DIA:
    """Projected sign-gradient ascent on the malicious images of a batch, through the batch's statistics.

    Args:
        objective: what to raise; see ``medbn.attacks.objectives``.
        steps: 100 in the paper.
        step_size: 1/255 in the paper.
        epsilon: how far an image may go from what it was, in the maximum norm; 1.0, in the paper, is no limit at all.
        knowledge: ``"white"``, the adapter as it is now; ``"semi"``, the source model, while the victim has adapted.
        gradient: ``"exact"``, ``"straight_through"`` or ``"smooth"``; see ``medbn.gradients``.
        temperature: how soft ``"smooth"`` is.
        unroll: 1 to differentiate through one adaptation step, the optional line 6; 0, in the paper, to leave it out.
        alignment: the weight of the paper's adaptive regulariser, |median of the malicious − median of the benign
            activations|, summed over layers and averaged over channels, subtracted from the objective. 0 is no
            regulariser; the paper does not say its weight.
        start: ``"grey"``, the 0.5 image, as DIA's and MedBN's authors start; ``"offset"``, x + 0.5 as printed;
            ``"clean"``; ``"random"``. All are projected first.
        restarts: attempts; those after the first start at random, and the best by the surrogate is kept.
        seed: of random starts; every call starts from it again.
        generator: where random starts come from instead, if given: a CPU generator, which moves on from call to call.
        check_every: look every so many steps whether the surrogate is fooled, and stop if it is; None never looks, so
            that a step is forward, backward and update only.
        callback: called after every step with its number, the malicious images and the objective, as device tensors.
        graph: whether to record the step as a CUDA graph and play it back: the same numbers, sooner. None does so on a
            GPU where it can and pays, True everywhere or it is an error, False nowhere. See ``medbn.attacks._graph``.

    Line 7 of the algorithm as printed descends; eq. 4-6 ask for the maximum, and so we ascend.
    """

    objective: Objective = field(default_factory=Targeted)
    steps: int = 100
    step_size: float = 1 / 255
    epsilon: float = 1.0
    knowledge: str = "white"
    gradient: str = "exact"
    temperature: float = 0.5
    unroll: int = 0
    alignment: float = 0.0
    start: str = "grey"
    restarts: int = 1
    seed: int = 0
    generator: torch.Generator | None = None
    check_every: int | None = None
    callback: Callable[[int, Tensor, Tensor], None] | None = None
    # How, and not what: it has no part in equality, nor in what a memo or a store knows an attack by.
    graph: bool | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.knowledge not in KNOWLEDGE:
            raise unknown_name("knowledge", self.knowledge, KNOWLEDGE)
        if self.start not in STARTS:
            raise unknown_name("start", self.start, STARTS)
        gradients.get(self.gradient, self.temperature)
        for name, least in (("steps", 0), ("restarts", 1), ("check_every", 1), ("unroll", 0)):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or given < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {given}.")
        for name in ("step_size", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        if not self.alignment >= 0:
            raise ValueError(f"alignment is a weight, at least 0, got {self.alignment}.")

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Tensor:
        """The batch with its malicious images crafted; the adapter, the labels and all other images stay as they are.

        Args:
            adapter: the victim.
            images: a batch in [0, 1].
            labels: the true class of every image.
            malicious: which images are the attacker's: a slice, indices or a mask.
        """
        best, _ = self._best(adapter, images, labels, malicious, account=self.restarts > 1)
        return best.images

    def craft(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Crafted:
        """Like calling it, with an account of what was reached, for one more forward pass."""
        best, _ = self._best(adapter, images, labels, malicious, account=True)
        return best

    @torch.enable_grad()
    def _best(
        self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious, account: bool
    ) -> tuple[Crafted, float]:
        if not isinstance(adapter, Adapter):
            raise TypeError(
                f"an attack is on an adapter, made by medbn.adapt(model, ...); got a {type(adapter).__name__}."
            )
        images, labels, mine = check_batch(images, labels, malicious)
        benign = ~mine
        self.objective.check(labels, benign)
        of = KNOWLEDGE[self.knowledge]
        view = adapter.surrogate(self.gradient, of, temperature=self.temperature, unroll=self.unroll)
        generator = self.generator or torch.Generator().manual_seed(self.seed)
        attempts: list[tuple[Crafted, float]] = []
        for attempt in range(self.restarts):
            start = self.start if attempt == 0 else "random"
            attempts.append(self._attempt(adapter, view, images, labels, benign, start, generator, account))
            if self.check_every and attempts[-1][1] == 1:
                break  # fooled: nothing to gain from another start
        return max(attempts, key=lambda result: (result[1], result[0].value))

    def _attempt(
        self,
        adapter: Adapter,
        view: Callable[..., Tensor],
        images: Tensor,
        labels: Tensor,
        benign: Tensor,
        start: str,
        generator: torch.Generator,
        account: bool,
    ) -> tuple[Crafted, float]:
        """One run of the loop: what it made, and the harm it does to the surrogate."""
        where = Places.of(benign)
        # In float32 at least: a step may be smaller than half precision can show.
        clean = images[where.places].to(torch.promote_types(images.dtype, torch.float32))
        batch = _Batch(images, labels, where, clean)
        mine = project(STARTS[start](clean, self.epsilon, generator), clean, self.epsilon)
        recording = self._recording(adapter, view, batch, mine)
        if recording is None:
            mine, step = self._loop(adapter, view, batch, mine)
        else:
            mine, step = self._replay(recording, batch)
        poisoned = inserted(images, mine, where)
        if not account:  # nothing to compare, so nothing to compute
            return Crafted(poisoned, float("nan"), step), 0.0
        value, logits = self._evaluate(adapter, view, batch, mine)
        harm = self.objective.harm(logits.detach(), labels, benign)
        return Crafted(poisoned, value.item(), step), harm.item()

    # --- the loop, step by step ---------------------------------------------------------------------------------------

    def _loop(self, adapter: Adapter, view: Callable[..., Tensor], batch: _Batch, mine: Tensor) -> tuple[Tensor, int]:
        """All steps: the malicious images, and how many steps it took."""
        for step in range(1, self.steps + 1):
            mine.requires_grad_()
            value, logits = self._evaluate(adapter, view, batch, mine)
            if self._looks(step) and self._fooled(logits.detach(), batch):
                return mine.detach(), step - 1
            mine = self._moved(value, mine, batch.clean)
            if self.callback is not None:
                self.callback(step, mine.detach(), value.detach())
        return mine.detach(), self.steps

    def _evaluate(
        self, adapter: Adapter, view: Callable[..., Tensor], batch: _Batch, mine: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The objective and the logits."""
        images, labels, where, _ = batch
        poisoned = inserted(images, mine, where)
        if not self.alignment:
            logits = view(poisoned)
            return self.objective.value(logits, labels, where.benign), logits
        with hooks.observe(adapter.model) as seen:
            logits = view(poisoned)
            last = {o.name: o.input for o in seen}  # of the pass that predicts, where a step was unrolled before it
        apart = [_median_gap(x, where.benign) for x in last.values() if x is not None and len(x) == len(images)]
        value = self.objective.value(logits, labels, where.benign)
        return value - self.alignment * torch.stack(apart).sum(), logits

    def _moved(self, value: Tensor, mine: Tensor, clean: Tensor) -> Tensor:
        """One step up the objective."""
        (gradient,) = torch.autograd.grad(value, mine)
        with torch.no_grad():
            return project(mine + self.step_size * gradient.nan_to_num(0.0).sign(), clean, self.epsilon)

    def _looks(self, step: int) -> bool:
        return self.check_every is not None and step % self.check_every == 0

    def _fooled(self, logits: Tensor, batch: _Batch) -> bool:
        return bool(self.objective.harm(logits, batch.labels, batch.where.benign) == 1)

    # --- the loop, played back ----------------------------------------------------------------------------------------

    def _recording(
        self, adapter: Adapter, view: Callable[..., Tensor], batch: _Batch, mine: Tensor
    ) -> _graph.Recording | None:
        """The step as a CUDA graph, ready to be played; None for the plain loop."""
        if self.graph is False or self.steps == 0 or (self.graph is None and self.steps < WORTHWHILE):
            return None
        reason = self._obstacle(adapter, batch.images)
        if reason is None and isinstance(view, Surrogate):
            given = _graph.Given(batch, mine, view.tensors)
            of = (self.knowledge, self.gradient, self.temperature)
            options = (self.objective, self.step_size, self.epsilon, self.alignment, *of, self.check_every is None)
            key = _graph.key_of(adapter, given, *options)

            def step(given: _graph.Given) -> tuple[Tensor, Tensor, Tensor]:
                batch, mine = _Batch(*given.batch), given.mine.detach().requires_grad_()
                value, logits = self._evaluate(adapter, view.with_tensors(given.state), batch, mine)
                return self._moved(value, mine, batch.clean), value.detach(), logits.detach()

            try:
                return _graph.recorded(adapter, key, given, step, logits=self.check_every is not None)
            except CaptureError as error:
                reason = str(error)
                if self.graph is None:
                    _graph.warn(reason)
        elif reason is None:
            reason = f"{type(adapter).__name__} has a surrogate of its own, whose state is not known."
        if self.graph:
            raise RuntimeError(f"graph=True, and the step cannot be recorded as a CUDA graph: {reason}")
        return None

    def _obstacle(self, adapter: Adapter, images: Tensor) -> str | None:
        """Why the step cannot be recorded, as far as one can tell without trying."""
        if self.unroll and adapter.learned:
            return "with unroll=1 the surrogate learns, and looks at values on the way."
        parameters = getattr(type(self.objective), "__dataclass_params__", None)
        if parameters is None or not parameters.frozen or type(self.objective).__hash__ is None:
            return f"{type(self.objective).__name__} is no frozen dataclass, so its options might change unseen."
        return _graph.obstacle(adapter, images)

    def _replay(self, recording: _graph.Recording, batch: _Batch) -> tuple[Tensor, int]:
        """All steps, like ``_loop``."""
        for step in range(1, self.steps + 1):
            looks = self._looks(step)
            before = recording.mine.clone() if looks else None
            recording.replay()
            if before is not None and recording.logits is not None and self._fooled(recording.logits, batch):
                return before, step - 1
            if self.callback is not None:
                self.callback(step, recording.mine.clone(), recording.value.clone())
        return recording.mine.clone(), self.steps


def check_batch(images: Tensor, labels: Tensor, malicious: Malicious) -> tuple[Tensor, Tensor, Tensor]:
    """A batch that is to be attacked, checked: images, labels where those are, and the mask of malicious images."""
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise TypeError(f"images and labels must be tensors, got {type(images).__name__} and {type(labels).__name__}.")
    if images.dim() < 2 or not images.is_floating_point():
        raise TypeError(f"expected floating point images (B, ...), got {images.dtype} of shape {tuple(images.shape)}.")
    if labels.shape[:1] != images.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"expected a class for each of {images.shape[0]} images, got {labels.dtype} {tuple(labels.shape)}."
        )
    if 0 in images.shape:
        raise ValueError(f"cannot attack an empty batch: images have shape {tuple(images.shape)}.")
    images = images.detach()
    low, high = images.min().item(), images.max().item()
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"images must lie in [0, 1], and these go from {low:.3g} to {high:.3g}. If they are normalised already,"
            " move the normalisation into the model, as its first layer: an attacker's limits are those of real images."
        )
    return images, labels.to(images.device).long(), _mask(malicious, images)


def _mask(malicious: Malicious, images: Tensor) -> Tensor:
    size = images.shape[0]
    mask = torch.zeros(size, dtype=torch.bool, device=images.device)
    if isinstance(malicious, slice):
        mask[malicious] = True
    else:
        places = torch.as_tensor(malicious).flatten()
        if places.dtype == torch.bool:
            if places.shape != (size,):
                raise ValueError(
                    f"malicious must mark each of {size} images, got a mask of shape {tuple(places.shape)}."
                )
            mask |= places.to(images.device)
        elif places.numel():
            if places.is_floating_point() or places.dtype == torch.uint8:
                raise TypeError(f"malicious takes a slice, whole-number indices or a boolean mask, not {places.dtype}.")
            if not (-size <= int(places.min()) and int(places.max()) < size):
                raise ValueError(f"malicious names images outside of a batch of {size}: {places.tolist()}.")
            mask[places.to(images.device)] = True
    count = int(mask.sum())
    if count == 0:
        raise ValueError("malicious names no image; there is nothing to craft.")
    if count == size:
        raise ValueError(f"malicious names all {size} images; there is nobody left to attack.")
    return mask


def _median_gap(activations: Tensor, benign: Tensor) -> Tensor:
    """How far the median of the malicious images' activations is from that of the benign ones', over channels."""
    theirs, ours = (statistics(activations, "median", valid=mask)[0] for mask in (benign, ~benign))
    return (ours - theirs).abs().mean()
