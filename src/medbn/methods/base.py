"""What all adaptation methods share: the call, the state, the optimiser, the attacker's view.

A method is a short file with a subclass of Adapter, or of Learner if it learns. Calling an adapter predicts and adapts,
once, and nothing else changes it. What a method keeps between calls, it keeps in ``self.memory``; then ``state.py``
takes care of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .. import hooks, layers, policies
from .._errors import unknown_name
from ..layers import RobustBatchNorm
from ..policies import Policy
from ._call import Inputs, Logits, Predictions, detached, extract_logits
from ._graph import Answers
from ._stages import last_stage
from ._state import Stateful
from ._surrogate import surrogate
from ._unroll import stepped

NOTHING_FINITE = "no image of this batch has a finite output; nothing was adapted and no state has changed."
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Adapter(Stateful):
    """A model that adapts while it serves; made by ``medbn.adapt``.

    Args:
        model: a model whose BatchNorm layers are robust; it is adapted in place.
        logits: where the logits are in what the model returns: a key, an index or a function. None finds a tensor,
            the first entry of a tuple, the keys or attributes ``out`` and ``logits``.
        predict: ``"before"`` returns the predictions made on the way to the update (one forward pass; what TENT, EATA
            and SAR return), ``"after"`` those of the updated model (the MedBN paper's metric; one more forward pass).
        seed: of the method's own random choices.
        graph: play the forward pass back from a CUDA graph: the same numbers, sooner where images are small. Calls of
            one kind, which differ in the values of their tensors alone, are recorded when they come for the second
            time. Not for models whose own code keeps something from call to call, or decides by values; and not for
            methods that learn.

    An adapter changes as it serves, so it serves one thread at a time.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options that differ from the defaults, which are those of CIFAR-10, by preset."""
    policy: Policy = policies.batch()

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: Logits = None,
        predict: str = "before",
        seed: int = 0,
        graph: bool = False,
    ) -> None:
        super().__init__(model, seed)
        if predict not in ("before", "after"):
            raise unknown_name("predict", predict, ("before", "after"))
        self.logits = logits
        self.predict = predict
        self.graph = graph
        self._answers = Answers()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_answers": Answers()}  # a recording is of this very adapter

    @torch.enable_grad()
    def begin(self) -> Adapter:
        """Make the model ready and remember it as the source model; ``medbn.adapt`` calls this, once."""
        self.eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for name, layer in self.layers.items():
            layer.policy = self.policy_of(name)
            if layer.policy.reference == "ema":
                layer.ema_mean, layer.ema_var = (
                    cast(Tensor, s).clone() for s in (layer.running_mean, layer.running_var)
                )
        self.prepare()
        self.source_state = self.snapshot()
        return self

    def policy_of(self, layer: str) -> Policy:
        """Which statistics the layer of that name uses."""
        return self.policy

    def prepare(self) -> None:
        """What a method needs once its layers are ready."""

    # --- one call -----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, valid: Tensor | None = None, **kwargs: Any) -> Any:
        """Predict and adapt, once; returns what the model returns.

        ``valid`` marks, with a ``(B,)`` mask, the images that are not padding: only those take part in statistics,
        losses and memory.
        """
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # what is kept and learned must be able to have gradients
                return self.forward(*args, valid=valid, **kwargs)
        inputs = Inputs.of(args, kwargs, valid)
        if self.model.training:
            self.model.eval()
        # The contexts stay open during the backward pass, where activation checkpointing runs layers again.
        counting = nullcontext() if inputs.valid is None else self.counting(inputs)
        with torch.set_grad_enabled(bool(self.learned)), self.normalising(), counting:
            output, commit = self.answer(inputs)
            images = self.check(inputs, output)
            before = self.snapshot() if self.fails_late() else None
            try:
                if self.update(inputs, output) and self.predict == "after":
                    with torch.no_grad():
                        output = self.run(inputs)
            except BaseException:
                if before is not None:
                    self.restore(before)
                raise
        commit(images)
        return tree_map(detached, output)

    def answer(self, inputs: Inputs) -> tuple[Any, Callable[[int], None]]:
        """The model's output, and what lets a batch of so many images into the moving averages."""
        recording = self._answers.get(self, inputs) if self.graph else None
        if recording is not None:
            output, gather = recording.play(inputs)
        else:
            with self.averaging() as gather:
                output = self.run(inputs)
        return output, gather()

    def settled(self) -> bool:
        """Whether the next batches are answered alike, but for their images and the moving averages."""
        return True

    def check(self, inputs: Inputs, output: Any) -> int:
        """Refuse a batch that leaves nothing to adapt on, before anything has changed; how many images there are."""
        images = int(inputs.finite_in(output).sum())
        if not images:
            raise ValueError(NOTHING_FINITE)
        return images

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Learn from one batch; whether the model now predicts differently. Methods that learn override this."""
        return False

    def fails_late(self) -> bool:
        """Whether the model still has to run when something has changed already; then a failure is undone."""
        return bool(self.learned) and self.predict == "after"

    def run(self, inputs: Inputs) -> Any:
        """The model's output, under whatever contexts are open."""
        return self.model(*inputs.args, **inputs.kwargs)

    def normalising(self) -> AbstractContextManager[None]:
        """How a test batch is normalised, where that is not by the layers' own policies."""
        return nullcontext()

    def attacked(self, state: dict[str, Any], images: int) -> AbstractContextManager[None]:
        """How an attacker who knows that state sees so many images normalised: as served, if nothing else is said."""
        return self.normalising()

    def counting(self, inputs: Inputs) -> AbstractContextManager[None]:
        """Leave padding out of the statistics."""
        return hooks.mask_images(self.model, inputs.valid) if self.layers else nullcontext()

    @contextmanager
    def averaging(self, always_estimate: bool = False) -> Iterator[Callable[[], Callable[[int], None]]]:
        """Watch the statistics of a pass; those of a batch without weight in that pass only if ``always_estimate``.

        The function that it gives gathers them, afterwards, and gives the one that lets them into the moving averages,
        which wants to know of how many images they are.
        """
        found: dict[RobustBatchNorm, tuple[Tensor, Tensor]] = {}

        def gather() -> Callable[[int], None]:
            return partial(self.let_in, layers.gather_statistics(found))

        averaged = {name for name in self.layers if self.policy_of(name).reference == "ema"}
        if not averaged:
            yield gather
            return
        with hooks.observe(self.model, inputs=False, detached=True, always_estimate=always_estimate) as seen:
            yield gather
            for o in seen:
                first = o.name in averaged and o.layer not in found  # a layer that is used twice is committed once
                if first and o.batch_centre is not None and o.batch_variance is not None:
                    found[o.layer] = o.batch_centre.detach(), o.batch_variance.detach()

    def let_in(self, commit: Callable[..., None], images: int) -> None:
        """Let statistics of so many images into the moving averages, by the layers' policies if no other is given."""
        commit()

    def train(self, mode: bool = True) -> Adapter:
        """Adapters run their model in eval() always, so that dropout is off."""
        super().train(mode)
        self.model.eval()
        return self

    # --- the attacker's view ------------------------------------------------------------------------------------------

    def surrogate(
        self, gradient: str = "exact", of: str = "now", *, temperature: float = 0.5, unroll: int = 0
    ) -> Callable[..., Tensor]:
        """A differentiable function from a batch to its logits, which changes nothing however often it is called.

        Args:
            gradient: how the backward pass sees the statistics: ``"exact"``, ``"straight_through"`` (as if they were
                the mean's) or ``"smooth"`` (a soft quantile). Values are true in all three; see ``medbn.gradients``.
            of: ``"now"``, the adapter as it is at this moment (white box), or ``"source"``, as it was at the start.
            temperature: how soft ``"smooth"`` is.
            unroll: 1 to predict with the parameters after one step of the method on the batch, and to differentiate
                through that step too; filters and SAM's perturbation are constants. 0 to leave the step out.

        The function keeps the parameters, averages and memory of that moment, whatever the adapter does afterwards.
        They are in place during its forward pass only: switch activation checkpointing off, which runs layers again
        during the backward pass.
        """
        return surrogate(self, gradient, of, temperature, unroll)

    def unrolled(
        self, logits: Callable[[dict[str, Tensor]], Tensor], state: dict[str, Any], inputs: Inputs
    ) -> dict[str, Tensor]:
        """The learned parameters after one step on the batch, as a differentiable function of it."""
        raise ValueError(f"{type(self).__name__} cannot be unrolled: it does not learn from the batch at hand.")


class Learner(Adapter):
    """An adapter that learns affine parameters.

    Args:
        model, logits, predict, seed: as for Adapter.
        optimizer: ``"adam"`` (the MedBN paper's, for all methods), ``"sgd"``, or a function of parameters and ``lr``.
        lr: 1e-3 in the MedBN paper.
        weight_decay: none in the MedBN paper.
        steps: updates per batch; one in the MedBN paper.
        frozen: patterns of names of the robust layers not to learn. None for the method's own rule.
    """

    keeps_last_stage: ClassVar[bool] = False
    """Whether the affine parameters of the last stage are left alone."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: str | Callable[..., torch.optim.Optimizer] = "adam",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        steps: int = 1,
        frozen: str | Iterable[str] | None = None,
        logits: Logits = None,
        predict: str = "before",
        seed: int = 0,
    ) -> None:
        super().__init__(model, logits=logits, predict=predict, seed=seed)
        if steps < 1:
            raise ValueError(f"steps is the number of updates per batch, at least 1; got {steps}.")
        if not callable(optimizer) and optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", optimizer, OPTIMIZERS)
        self.steps = steps
        self.frozen = frozen
        make = optimizer if callable(optimizer) else OPTIMIZERS[optimizer]
        decay = {"weight_decay": weight_decay} if weight_decay or not callable(optimizer) else {}
        self._make_optimizer: Callable[..., torch.optim.Optimizer] = partial(make, lr=lr, **decay)

    def prepare(self) -> None:
        """Choose what is learned, and give it to the optimiser."""
        asks = self.keeps_last_stage or self.frozen is not None
        left_alone = last_stage(self.model, self.layers, self.frozen) if asks else set()
        for name, layer in self.layers.items():
            for kind in ("weight", "bias"):
                parameter = getattr(layer, kind)
                if parameter is None or name in left_alone or any(parameter is p for p in self.learned.values()):
                    continue
                if parameter.dtype == torch.float16:
                    raise ValueError(
                        f"{self._name()} takes steps that float16 cannot represent; keep the model in float32 and call"
                        " the adapter under torch.autocast, or use bfloat16."
                    )
                self.learned[f"{name}.{kind}" if name else kind] = parameter.requires_grad_(True)
        if not self.learned:
            raise ValueError(
                f"{type(self.model).__name__} has no affine parameters for {type(self).__name__} to learn."
            )
        self.optimizer = self._make_optimizer(list(self.learned.values()))

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Take ``steps`` steps; those after the first look at the batch again."""
        predictions = self.predictions(inputs, output)
        if not bool(predictions.images.any()):
            raise ValueError(NOTHING_FINITE)
        updated = self.step(inputs, predictions)
        for _ in range(self.steps - 1):
            updated = self.step(inputs, self.look(inputs)) or updated
        return updated

    def fails_late(self) -> bool:
        """Also between several steps."""
        return self.steps > 1 or super().fails_late()

    def predictions(self, inputs: Inputs, output: Any) -> Predictions:
        """What a loss or a filter looks at."""
        return Predictions.of(extract_logits(output, self.logits, inputs.size), inputs.valid)

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """One step down the loss; whether one was taken."""
        loss = self.loss(predictions, self.memory, dict(self.learned))
        if loss is None:
            return False
        if not self.descend(self.gradients(loss)):
            return False
        self.remember(predictions)
        return True

    @abstractmethod
    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """What to minimise on this batch, given what is remembered and learned; None if nothing can be learned."""

    def remember(self, predictions: Predictions) -> None:
        """Keep what the next batch needs to know of this one, in ``self.memory``."""

    def look(self, inputs: Inputs) -> Predictions:
        """Predict once more, differentiably, with the parameters as they are."""
        with torch.enable_grad():
            return self.predictions(inputs, self.run(inputs))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The loss's gradients with respect to what is learned."""
        parameters = list(self.learned.values())
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    def descend(self, gradients: list[Tensor]) -> bool:
        """One step of the optimiser; none, and False, if a gradient is not finite."""
        assert self.optimizer is not None
        if not bool(torch.stack([g.isfinite().all() for g in gradients]).all()):
            return False
        for parameter, gradient in zip(self.learned.values(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True

    @contextmanager
    def ascended(self, gradients: list[Tensor], rho: float) -> Iterator[None]:
        """Sharpness-aware minimisation (Foret et al., 2021): stand ρ·g/‖g‖ uphill, and return to the bit.

        The gradient taken up there goes to ``descend``, down here; so SAM has no state beside its optimiser's.
        """
        parameters = list(self.learned.values())
        here = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            scale = rho / (torch.stack([g.norm() for g in gradients]).norm() + 1e-12)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient * scale)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, here, strict=True):
                    parameter.copy_(value)

    def unrolled(
        self, logits: Callable[[dict[str, Tensor]], Tensor], state: dict[str, Any], inputs: Inputs
    ) -> dict[str, Tensor]:
        """One step of the optimiser from the state's moments, down the loss."""
        with torch.enable_grad():
            learned = {name: p.detach().requires_grad_() for name, p in state["learned"].items()}
            loss = self.loss(Predictions.of(logits(learned), inputs.valid), state["memory"], learned)
            if loss is None:
                return {}
            gradients = torch.autograd.grad(loss, list(learned.values()), create_graph=True, allow_unused=True)
        return stepped(self.optimizer, state, gradients)
