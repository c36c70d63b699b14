"""The Distribution Invading Attack (Wu et al., ICML 2023; algorithm 1 of the MedBN paper) and its variants."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import gradients, hooks
from .._check_types import check_fields
from .._errors import unknown_name
from ..functional import statistics
from ..methods import Adapter
from ._batch import Batch
from ._graph import prepare_steps
from .base import Malicious
from .consistency import clean_moments, divergence
from .knowledge import KNOWLEDGE, OWN_SIGHT, STATES, Foreign, GreyBox
from .objectives import Objective, Targeted
from .projections import STARTS, project

LOOP_OPTIONS = {"steps", "start", "restarts", "seed", "generator", "check_every", "callback", "graph"}
"""Options that a single step does not depend on."""


class PoisonedBatch(NamedTuple):
    """A poisoned batch, the objective that the attack reached, and its number of steps."""

    images: Tensor
    """The whole batch; benign images are unchanged, to the bit."""
    value: float
    """The objective on the attacker's surrogate."""
    steps: int
    """How many steps the best start took."""


@dataclass(frozen=True)
class DIA:
    """Projected sign-gradient ascent on the malicious images of a batch, through the batch's statistics.

    Args:
        objective: what to maximise; see ``medbn.attacks.objectives``.
        steps: 100 in the paper.
        step_size: 1/255 in the paper.
        epsilon: the largest change of an image in the maximum norm; 1.0, in the paper, is no limit at all.
        knowledge: ``"white"``, the adapter as it is now; ``"semi"``, the source model, while the victim has adapted;
            ``"grey"``, the source model, fitted to the answers to her own queries, which a scenario passes on;
            ``"transfer"``, another model. The last two see no images but the malicious ones, so they need an objective
            on these. See ``medbn.attacks.knowledge``.
        model: the attacker's own model, for ``"transfer"``.
        gradient: ``"exact"``, ``"straight_through"``, ``"smooth"`` or a registered one; see ``medbn.gradients``.
        temperature: how soft ``"smooth"`` is.
        unroll: 1 to differentiate through one adaptation step, the optional line 6; 0, in the paper, to leave it out.
        alignment: the weight of the paper's adaptive regulariser, |median of the malicious − median of the benign
            activations|, summed over layers and averaged over channels, subtracted from the objective. 0 is no
            regulariser; the paper does not say its weight.
        consistency: the weight of RTTDP's penalty, subtracted too: the divergence of each malicious image's activations
            from those of the clean image, KL of Gaussians over space, summed over channels, averaged over the malicious
            images and the robust layers before the last stage. RTTDP's code begins with a weight of 0 and raises it
            with the penalty at every step; ours is constant.
        start: ``"grey"``, the 0.5 image, as DIA's and MedBN's authors start; ``"offset"``, x + 0.5 as printed;
            ``"clean"``; ``"random"``; ``"white"``; ``"checkerboard"``. All are projected first.
        restarts: attempts; those after the first start at random, and the best on the surrogate is returned.
        seed: of random starts; every call starts from it again.
        generator: of random starts, instead of ``seed``: a CPU generator, which continues from call to call.
        check_every: after how many steps to check whether the attack succeeds on the surrogate, and to stop if so. None
            never checks, so that a step is forward, backward and update only.
        callback: called after every step with its number, the malicious images and the objective, as device tensors.
        graph: whether to capture the step as a CUDA graph and replay it: the same numbers, sooner. None does so on a
            GPU where it is possible and worthwhile; True makes it an error where it is not possible; False never does.

    A variant overrides one of ``initialise``, ``evaluate`` and ``ascend``. It is a frozen dataclass if it has options.

    From grey images, medians tie: every pixel of a channel is equal. Our median's gradient goes to the first of equal
    values. Another implementation may choose another one, and then crafts other images (of 7,680 pixels 3,503 differed
    after the first step) with about the same objective in the end.

    Line 7 of the algorithm as printed descends; eq. 4-6 ask for the maximum, so this ascends.
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
    consistency: float = 0.0
    start: str = "grey"
    restarts: int = 1
    seed: int = 0
    generator: torch.Generator | None = None
    check_every: int | None = None
    callback: Callable[[int, Tensor, Tensor], None] | None = None
    # Says how, not what: it is no part of equality, nor of what a poison cache or a store knows an attack by.
    graph: bool | None = field(default=None, repr=False, compare=False)
    model: nn.Module | None = field(default=None, repr=False)
    grey_box: GreyBox = field(default_factory=GreyBox, init=False, repr=False, compare=False)
    """The surrogate of ``"grey"``; it follows one stream."""
    foreign: Foreign = field(default_factory=Foreign, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback is a function, got {self.callback!r}.")
        if self.knowledge not in KNOWLEDGE:
            raise unknown_name("knowledge", self.knowledge, KNOWLEDGE)
        STARTS.get(self.start)
        gradients.get(self.gradient, self.temperature)
        for name, least in (("steps", 0), ("restarts", 1), ("check_every", 1), ("unroll", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value}.")
        for name in ("step_size", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        for name in ("alignment", "consistency"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is a weight, at least 0, got {getattr(self, name)}.")
        self._check_knowledge()

    def _check_knowledge(self) -> None:
        if (self.knowledge == "transfer") != (self.model is not None):
            raise ValueError("knowledge='transfer' and model= belong together: the model that stands for the victim's.")
        if self.knowledge not in OWN_SIGHT:
            return
        if not self.objective.own:
            raise ValueError(
                f"knowledge={self.knowledge!r} sees no images but the malicious ones, and {self.objective!r} is about"
                " others; take an objective on her own: entropy, notch_high_entropy or balanced_low_entropy."
            )
        if self.unroll:
            raise ValueError(f"unroll needs the method's own step, which knowledge={self.knowledge!r} does not know.")

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Tensor:
        """Return the batch with its malicious images crafted; change neither the adapter nor the arguments.

        Args:
            adapter: the victim.
            images: a batch in [0, 1].
            labels: the true class of every image.
            malicious: which images are malicious: a slice, indices or a mask.
        """
        return self._attack(adapter, images, labels, malicious, measure=self.restarts > 1).images

    def craft(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> PoisonedBatch:
        """Return the same batch with the objective reached and the number of steps; costs one more forward pass."""
        return self._attack(adapter, images, labels, malicious, measure=True)

    # --- what a variant overrides -------------------------------------------------------------------------------------

    def initialise(self, clean: Tensor, start: str, generator: torch.Generator) -> Tensor:
        """Return the malicious images before the first step."""
        return project(STARTS.get(start)(clean, self.epsilon, generator), clean, self.epsilon)

    def evaluate(
        self, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the number to maximise, differentiable in the malicious images, and the surrogate's logits."""
        poisoned = batch.insert(malicious)
        if not (self.alignment or self.consistency or self.objective.observes):
            logits = surrogate(poisoned)
            return self.objective.value(logits, batch.labels, batch.benign), logits
        with hooks.observe(adapter.model) as observations:
            logits = surrogate(poisoned)
            # By name, the last pass: the one that predicts, also where an adaptation step was unrolled before it.
            inputs = {o.name: o.input for o in observations}
        observed_first = next(iter(inputs.values()), None)
        value = self._observed_value(adapter, logits, batch, observed_first)
        if self.consistency:
            value = value - self.consistency * divergence(adapter, inputs, batch)
        if not self.alignment:
            return value, logits
        gaps = [median_gap(x, batch.benign) for x in inputs.values() if x is not None and len(x) == len(poisoned)]
        return value - self.alignment * torch.stack(gaps).sum(), logits

    def ascend(self, malicious: Tensor, gradient: Tensor, clean: Tensor) -> Tensor:
        """Return the malicious images one step up the gradient, projected to where they may be."""
        return project(malicious + self.step_size * gradient.nan_to_num(0.0).sign(), clean, self.epsilon)

    def _observed_value(self, adapter: Adapter, logits: Tensor, batch: Batch, first: Tensor | None) -> Tensor:
        if not self.objective.observes or first is None:
            return self.objective.value(logits, batch.labels, batch.benign)
        memory = adapter.memory if STATES[self.knowledge] == "now" else adapter.source_state["memory"]
        return self.objective.observed_value(logits, batch.labels, batch.benign, first, memory)

    # --- the algorithm ------------------------------------------------------------------------------------------------

    @torch.enable_grad()
    def _attack(
        self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious, *, measure: bool
    ) -> PoisonedBatch:
        """Return the best of all restarts. Without ``measure``, the objective that was reached is not computed."""
        if not isinstance(adapter, Adapter):
            raise TypeError(
                f"an attack needs an adapter, from medbn.adapt(model, ...); got a {type(adapter).__name__}."
            )
        whole = batch = Batch.of(images, labels, malicious, own=self.objective.own)
        self.objective.check(batch.labels, batch.benign)
        if self.knowledge in OWN_SIGHT:  # she has no batch but her own images
            batch = Batch.of(images[batch.indices], batch.labels[batch.indices], slice(None), own=True)
        if self.alignment and len(batch.indices) == len(batch.images):
            raise ValueError("alignment needs benign images to be near to, and the whole batch is malicious.")
        adapter, surrogate = self._surrogate(adapter, images.device)
        if self.objective.label_free:
            with torch.no_grad():
                batch = batch.with_predicted_labels(surrogate(batch.images))
        if self.consistency:
            batch = batch._replace(moments=clean_moments(adapter, surrogate, batch))
        generator = self.generator or torch.Generator().manual_seed(self.seed)
        results: list[tuple[float, PoisonedBatch]] = []
        for restart in range(self.restarts):
            crafted = self.initialise(batch.clean, self.start if restart == 0 else "random", generator)
            crafted, steps = self._run(adapter, surrogate, batch, crafted)
            harm, value = 0.0, float("nan")
            if measure:
                objective, logits = self.evaluate(adapter, surrogate, batch, crafted)
                harm, value = self._harm(logits, batch), objective.item()
            results.append((harm, PoisonedBatch(whole.insert(crafted), value, steps)))
            if self.check_every and harm == 1:
                break  # another start cannot do better
        return max(results, key=lambda result: (result[0], result[1].value))[1]

    def _surrogate(self, adapter: Adapter, device: torch.device) -> tuple[Adapter, Callable[..., Tensor]]:
        """Return what the attacker differentiates, and the adapter that it is of."""
        if self.knowledge == "grey":
            return adapter, self.grey_box.surrogate(adapter, self.gradient, self.temperature)
        adapter = adapter if self.model is None else self.foreign.adapter(self.model, device)
        of = STATES.get(self.knowledge, "now")
        return adapter, adapter.surrogate(self.gradient, of, temperature=self.temperature, unroll=self.unroll)

    # --- what lasts from batch to batch -------------------------------------------------------------------------------

    def learn_from(self, adapter: Adapter, images: Tensor, answers: Tensor) -> None:
        """Take note of the logits that were returned for images of hers; a scenario calls this after each query."""
        if self.knowledge == "grey":
            self.grey_box.learn_from(adapter, images, answers)

    def advance(self) -> None:
        """Keep what later batches need of the one that was crafted; a scenario calls this after each."""
        self.objective.advance()

    def state(self) -> dict[str, Any]:
        """Return what is kept between batches; it loads with ``weights_only=True``."""
        kept = {"objective": self.objective.state(), "grey_box": self.grey_box.state()}
        return {name: value for name, value in kept.items() if value}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from what ``state`` returned."""
        self.objective.load(state.get("objective", {}))
        self.grey_box.load(state.get("grey_box", {}), device)

    # --- one attack, step by step -------------------------------------------------------------------------------------

    def _run(
        self, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
    ) -> tuple[Tensor, int]:
        """Take all steps; return the malicious images and how many steps led to them."""
        steps = prepare_steps(self, adapter, surrogate, batch, malicious)
        for number in range(1, self.steps + 1):
            check = self.check_every is not None and number % self.check_every == 0
            before = steps.malicious if check else None
            value, logits = steps.take()
            if before is not None and self._harm(logits, batch) == 1:
                return before, number - 1
            if self.callback is not None:
                self.callback(number, steps.malicious, value.clone())
        return steps.malicious, self.steps

    def step(
        self, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the malicious images after one step, and the objective and the logits before it."""
        malicious = malicious.detach().requires_grad_()
        value, logits = self.evaluate(adapter, surrogate, batch, malicious)
        (gradient,) = torch.autograd.grad(value, malicious)
        with torch.no_grad():
            malicious = self.ascend(malicious, gradient, batch.clean)
        return malicious, value.detach(), logits.detach()

    def step_key(self) -> Hashable:
        """Return all that one step depends on beside tensors and the surrogate, to recognise a captured step."""
        options = tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.init and f.name not in LOOP_OPTIONS)
        return type(self), options

    def _harm(self, logits: Tensor, batch: Batch) -> float:
        if len(batch.indices) == len(batch.images):
            return 0.0  # none that could be harmed, so that only the objective counts
        return self.objective.harm(logits.detach(), batch.labels, batch.benign).item()


def median_gap(activations: Tensor, benign: Tensor) -> Tensor:
    """Return the distance of the malicious from the benign images' median activation, averaged over channels."""
    benign_median, malicious_median = (statistics(activations, "median", valid=mask)[0] for mask in (benign, ~benign))
    return (malicious_median - benign_median).abs().mean()
