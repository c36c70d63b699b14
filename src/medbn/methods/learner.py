"""Learner: the base class of the methods that learn affine parameters. ``base.py`` lists what a method overrides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._errors import unknown_name
from ._affine import affine_layers, layers_with_parameters
from ._bounded_influence import BoundedInfluence
from ._call import Inputs, LogitsOption, Predictions, extract_logits
from ._method import Run
from ._part import average_gradients
from ._past_average import MIN_IMAGES, MOMENTUM
from ._registry import available, get
from ._stages import last_stage
from ._step_graph import StepGraphs
from ._unroll import optimizer_step
from .base import NOTHING_FINITE

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}


class Learner(BoundedInfluence):
    """An adapter that learns the affine parameters of robust BatchNorm, LayerNorm, GroupNorm, InstanceNorm and RMSNorm.

    **Bounded influence.** With ``influence``, no image moves the parameters far. Let an image's pull be the gradient of
    its own loss, and B the images of the call. A pull is scaled down to a norm of ``clip`` where it is longer, and the
    gradient is their sum divided by B, whatever the method selects (``"clip"``, as in DP-TTA); or, coordinate by
    coordinate, the median of the pulls of the selected images times their number, divided by B (``"median"``: robust
    aggregation, as the MedBN paper has for distributed learning). So that a pull depends on no other image, the
    statistics are those of ``past``, in place of the batch's; methods that have an average of their own keep it. Calls
    of fewer than 16 finite images are predicted, collected, and learned from together.

    Say that one image of a call of more than 16 is replaced by anything, and that d numbers are learned. Norms are
    Euclidean.

    - *Gradient*, ``"clip"``: it moves by at most 2 · clip / B. Its norm is at most ``clip``, whatever the batch is.
    - *Gradient*, ``"median"``: each coordinate's median stays between the neighbours, in order, of the median of the
      others, and the number of selected images changes by at most one. Each coordinate is at most ``clip``.
    - *SGD*: with ``"clip"`` the parameters move by at most lr · 2 · clip / B. With momentum, 10 times that over all
      later steps.
    - *Adam* divides a gradient by its own size, so that clipping alone bounds nothing. Its ``eps`` becomes clip / √d,
      about the size of a coordinate of a gradient that is as long as allowed. The parameters then move by at most
      2.5 · lr · √d / B, in any state of the moments: one image has 2.5 / B of the longest step.
    - *An optimiser of your own*: nothing is known.

    This is about the step on the same call, with ``steps=1``. It holds for TENT, ETA, EATA and DeYO. SAM's ascent (SAR,
    SoTTA) moves by at most 20 · ρ / B; the pulls of the other images are then taken at another place. ROID's weights
    and CoTTA's choice of augmentations depend on the whole batch, and memories on who came before: there the norm of
    the gradient is bounded by ``clip``, and one image's own pull by clip / B. CoTTA learns affine parameters only.

    Args:
        model, logits, predict, seed, lock, min_images, collect, bounds, outside: as for Adapter.
        graph: True replays the forward and the backward pass of ``tent``, ``eta``, ``eata`` and ``sar`` from CUDA
            graphs, captured at the second call of a kind: the same numbers, faster where images are small. Of ``sotta``
            those over its memory, which are of one kind once it is full. Not with ``influence``, and not for models
            whose own code keeps something from call to call or branches on values. None and False capture nothing.
        optimizer: ``"adam"`` (the MedBN paper's, for all methods), ``"sgd"``, ``"momentum"`` and ``"nesterov"``, which
            are SGD with a momentum of 0.9, or a function of parameters and ``lr``.
        lr: 1e-3 in the MedBN paper.
        weight_decay: none in the MedBN paper.
        steps: updates per batch; one in the MedBN paper.
        frozen: patterns of names of the normalisation layers not to learn. None for the method's own rule.
        influence: ``"clip"`` or ``"median"`` to bound what one image can do, as above; None for the method as it was
            published.
        clip: the longest pull.
        past_momentum: the weight of a batch of 200 in the statistics that replace the batch's; that of ``past``. None
            keeps the batch's own: nothing is lost where images change, but a pull then depends on the other images
            through the statistics, so that of the bounds above only those of the norm and of an image's own pull hold.
    """

    needs_batch_norm: ClassVar[bool] = False
    freezes_last_stage: ClassVar[bool] = False
    """Whether the affine parameters of the last stage are not learned, unless ``frozen`` says otherwise."""
    replays: ClassVar[bool] = False
    """Whether steps take gradients of the last pass alone, so that passes may be replayed from CUDA graphs."""
    learns_everything: ClassVar[bool] = False
    """Whether all parameters of the model are learned, and not only those of normalisation layers."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: str | Callable[..., torch.optim.Optimizer] = "adam",
        lr: float | Tensor = 1e-3,
        weight_decay: float | Tensor = 0.0,
        steps: int = 1,
        frozen: str | Iterable[str] | None = None,
        influence: str | None = None,
        clip: float = 1.0,
        past_momentum: float | None = MOMENTUM,
        logits: LogitsOption = None,
        predict: str = "before",
        seed: int = 0,
        graph: bool | None = None,
        lock: bool = True,
        min_images: int = 1,
        collect: bool = False,
        bounds: tuple[float, float] | None = None,
        outside: str = "refuse",
    ) -> None:
        bounded = influence is not None
        super().__init__(
            model,
            logits=logits,
            predict=predict,
            seed=seed,
            graph=graph,
            lock=lock,
            min_images=max(min_images, MIN_IMAGES) if bounded else min_images,
            collect=collect or bounded,
            bounds=bounds,
            outside=outside,
        )
        if graph and (bounded or not self.replays):
            own = f"{self._name()} with influence={influence!r}" if bounded else self._name()
            replayed = ", ".join(name for name in available() if getattr(get(name), "replays", False))
            raise ValueError(f"graph=True replays the passes of {replayed}; not of {own}.")
        if steps < 1:
            raise ValueError(f"steps is the number of updates per batch, at least 1; got {steps}.")
        if not callable(optimizer) and optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", optimizer, OPTIMIZERS)
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name} is a number of at least 0, got {value!r}.")
        self.steps = steps
        self.frozen = frozen
        self.bound_influence(influence, clip, past_momentum)
        self._step_graphs = StepGraphs()
        self._sets_eps = bounded and optimizer == "adam"
        make = optimizer if callable(optimizer) else OPTIMIZERS[optimizer]
        decay = {"weight_decay": weight_decay} if weight_decay or not callable(optimizer) else {}
        self._make_optimizer: Callable[..., torch.optim.Optimizer] = partial(make, lr=lr, **decay)

    def prepare(self) -> None:
        """Choose the parameters to learn, and make the optimiser."""
        chooses = self.freezes_last_stage or self.frozen is not None
        everything = self.learns_everything and self.influence is None
        layers = layers_with_parameters(self.model) if everything else affine_layers(self.model)
        frozen = last_stage(self.model, layers, self.frozen) if chooses and layers else set()
        for name, layer in layers.items():
            for kind in list(layer._parameters) if everything else ("weight", "bias"):
                parameter = getattr(layer, kind, None)
                if parameter is None or name in frozen or any(parameter is p for p in self.learned.values()):
                    continue
                if not parameter.is_floating_point():
                    continue
                if parameter.dtype == torch.float16:
                    raise ValueError(
                        f"{self._name()} takes steps that float16 cannot represent; keep the model in float32 and call"
                        " the adapter under torch.autocast, or use bfloat16."
                    )
                self.learned[f"{name}.{kind}" if name else kind] = parameter.requires_grad_(True)
        if not self.learned:
            raise ValueError(
                f"{type(self.model).__name__} has no affine parameters of BatchNorm, LayerNorm, GroupNorm, InstanceNorm"
                f" or RMSNorm layers for {type(self).__name__} to learn."
            )
        options: dict[str, Any] = {}
        if self.influence is not None:
            self.watch_images()
        if self._sets_eps:
            options["eps"] = self.clip / math.sqrt(sum(p.numel() for p in self.learned.values()))
        self.optimizer = self._make_optimizer(list(self.learned.values()), **options)

    # --- what a method overrides --------------------------------------------------------------------------------------

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return what to minimise on a batch; None if nothing can be learned from it. See ``batch_loss`` too.

        Args:
            predictions: of the batch.
            memory: of the adapter, or of the state of a surrogate that unrolls a step.
            learned: the parameters, by name.
        """
        raise NotImplementedError(f"{type(self).__name__} has none of loss, batch_loss and step.")

    def batch_loss(
        self, inputs: Inputs, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor], run: Run
    ) -> Tensor | None:
        """Return what to minimise on a batch. Override it in place of ``loss`` where it needs more passes than one.

        Args:
            inputs: the batch.
            predictions: of the batch.
            memory: as for ``loss``.
            learned: the parameters, by name.
            run: runs the model on other inputs, or under other parameters than these.
        """
        return self.loss(predictions, memory, learned)

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Take one step down the loss; return whether one was taken."""
        loss = self.batch_loss(inputs, predictions, self.memory, dict(self.learned), self.run_with)
        return loss is not None and self.take_step(self.gradients_of(loss))

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Return the learned parameters after one step, as a differentiable function of the batch.

        Args:
            run: runs the model on inputs, under given learned parameters.
            state: a snapshot with the parameters, memory and optimiser before the step.
            inputs: the batch.
        """
        with torch.enable_grad():
            learned = self.leaf_parameters(state)

            def run_leaves(images: Inputs, other: dict[str, Tensor] | None = None) -> Any:
                with self.learning_pass():
                    return run(images, learned if other is None else other)

            predictions = self.predictions_of(inputs, run_leaves(inputs))
            loss = self.batch_loss(inputs, predictions, state["memory"], learned, run_leaves)
            if loss is None:
                return {}
            gradients = self.unrolled_gradients(loss, learned, state["memory"])
        return optimizer_step(self.optimizer, state, gradients)

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return masks of what each filter of the method lets pass to learning, by the name of the filter.

        A mask has one entry for each row of the predictions, or for each image.

        Args:
            predictions: of a batch.
            memory: of the adapter, or of another state.
        """
        return {}

    # --- what steps are made of ---------------------------------------------------------------------------------------

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Take ``steps`` steps; those after the first predict the batch again."""
        predictions = self.predictions_of(inputs, output)
        if not bool(predictions.images.any()):
            raise ValueError(NOTHING_FINITE)
        updated = self.step(inputs, predictions)
        for _ in range(self.steps - 1):
            updated = self.step(inputs, self.predict_again(inputs)) or updated
        if self.past_average is not None and not self.commits_prediction():
            self.commit_second_pass(inputs, int(predictions.images.sum()))
        return updated

    def predictions_of(self, inputs: Inputs, output: Any) -> Predictions:
        """Return the predictions in the model's output; in a group, those of all processes."""
        logits = inputs.gather(extract_logits(output, self.logits, inputs.size))
        return Predictions.of(logits, None if inputs.valid is None else inputs.gather(inputs.valid))

    def run_model(self, inputs: Inputs) -> Any:
        """Return the model's output for a call; from CUDA graphs with ``graph=True``, if gradients are wanted."""
        if self.graph and torch.is_grad_enabled():
            replayed = self._step_graphs.run(self, inputs)
            if replayed is not None:
                return replayed[0]
        return self.run_plain(inputs)

    def run_plain(self, inputs: Inputs) -> Any:
        """Return the model's output for a call, without CUDA graphs."""
        return super().run_model(inputs)

    def run_to_learn(self, inputs: Inputs, learned: dict[str, Tensor]) -> Any:
        """Return the model's output for a pass that is captured, under these parameters."""
        return self.run_with(inputs, learned)

    def predict_again(self, inputs: Inputs) -> Predictions:
        """Run the model once more, with gradients and the parameters as they are now."""
        with torch.enable_grad(), self.learning_pass():
            return self.predictions_of(inputs, self.run_model(inputs))

    def gradients_of(self, loss: Tensor) -> list[Tensor]:
        """Return the loss's gradient for each learned parameter, of which each image's part may be bounded."""
        if self._images is None:
            return self.plain_gradients_of(loss)
        return self.bounded_gradients(loss, dict(self.learned), self.memory)

    def unrolled_gradients(
        self, loss: Tensor, learned: dict[str, Tensor], memory: dict[str, Any]
    ) -> Sequence[Tensor | None]:
        """Return the same as a differentiable function of the batch, under other parameters and with another memory."""
        if self._images is None:
            return torch.autograd.grad(loss, list(learned.values()), create_graph=True, allow_unused=True)
        return self.bounded_gradients(loss, learned, memory, create_graph=True)

    def plain_gradients_of(self, loss: Tensor, parameters: Iterable[Tensor] | None = None) -> list[Tensor]:
        """Return the loss's gradient with respect to each learned parameter; zero where it does not depend on it."""
        parameters = list(self.learned.values() if parameters is None else parameters)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        return gradients if self.group is None else average_gradients(gradients, self.group)

    def take_step(self, gradients: list[Tensor]) -> bool:
        """Take one step of the optimiser; none if a gradient is not finite. Return whether it was taken."""
        assert self.optimizer is not None
        if not bool(torch.stack([g.isfinite().all() for g in gradients]).all()):
            return False
        for parameter, gradient in zip(self.learned.values(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True

    @contextmanager
    def sam_ascent(self, gradients: list[Tensor], rho: float) -> Iterator[None]:
        """Move the parameters by ρ·g/‖g‖ inside the context (SAM, Foret et al., 2021), and back to the bit.

        The gradient computed inside goes to ``take_step`` outside; so SAM has no state beside its optimiser's.
        """
        parameters = list(self.learned.values())
        before = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for parameter, move in zip(parameters, self.perturbation(gradients, rho), strict=True):
                parameter.add_(move)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)

    def leaf_parameters(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Return copies of a state's learned parameters that require gradients, for ``unroll``."""
        return {name: p.detach().requires_grad_() for name, p in state["learned"].items()}
