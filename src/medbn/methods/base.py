"""Adapter: the base class of all test-time adaptation methods, which serves a call.

What a method may override is in ``_method.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from .. import hooks
from .._errors import unknown_name
from .._isolate import isolates
from .._running_statistics import gather_statistics
from ..distributed import Group
from ..layers import RobustBatchNorm
from ..policies import Policy
from ._bounds import Bounds
from ._call import Inputs, LogitsOption, detach_output
from ._graph import ForwardGraphs
from ._journal import exclusive
from ._method import Commit as Commit
from ._method import Method
from ._part import agree, check_same_adapter, find_group
from ._range import warn_if_scaled
from ._surrogate import Surrogate, make_surrogate

NOTHING_FINITE = "no image of this batch has a finite output; nothing was adapted and no state has changed."


class Adapter(Method):
    """A model that adapts while it serves; made by ``medbn.adapt``.

    Args:
        model: a model whose BatchNorm layers are robust; it is adapted in place.
        logits: where the logits are in the model's output: a key or attribute, an index or a function. None accepts a
            tensor, the first entry of a tuple, and the keys or attributes ``out`` and ``logits``.
        predict: ``"before"`` returns the predictions made before the update (one forward pass; what TENT, EATA and SAR
            return), ``"after"`` those of the updated model (the MedBN paper's metric; one more forward pass).
        seed: of the method's own random choices.
        graph: replay the forward pass from a CUDA graph: the same numbers, faster where images are small. Calls that
            differ only in the values of their tensors share a graph, which is captured at the second such call; the
            last four kinds are kept. None uses a graph where a replay gave the same bits, was faster and fits into
            memory, and says at debug level what it did; True raises an error where there can be none; False never does.
            Not for models whose own code keeps something outside its modules from call to call or branches on values.
            For methods that learn, see Learner.
        lock: make other threads wait for a call, so that threads may share the adapter. Without it, never call it from
            two threads at a time.
        min_images: calls of fewer usable images are predicted as always, and not adapted on.
        collect: collect the images of such calls, and adapt on them together once there are ``min_images``. Predictions
            wait for nothing. Fewer than ``min_images`` images are kept, as a part of the state; images of another size
            replace them.
        bounds: the range that the values of images must be in, such as ``(0, 1)``. None for any.
        outside: what to do with an image outside: ``"refuse"`` the call with an error that changes nothing, or
            ``"isolate"`` the image, as one that has NaN: its output is NaN, and no other prediction changes.

    An adapter changes as it serves, so it serves one thread at a time; others wait. A call that raises, even at an
    exception that arrives from outside, as at Ctrl-C, has changed nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
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
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed is a whole number of at most 64 bits, got {seed}.")
        super().__init__(model, seed, lock=lock)
        if min_images < 1:
            raise ValueError(f"min_images is a number of images, at least 1; got {min_images!r}.")
        if predict not in ("before", "after"):
            raise unknown_name("predict", predict, ("before", "after"))
        self.logits = logits
        self.predict = predict
        self.graph = graph
        self.min_images = min_images
        self.collect = collect
        self.bounds = Bounds.of(bounds, outside)
        if collect:
            self.memory["collected"] = {}
        self.paused = False
        """Set it to serve without adapting: calls predict with the state as it is. No part of the state."""
        self.given_group: Group | None = None
        """The processes that call the adapter together, if the layers do not say it: those of ``adapt(group=)``."""
        self._policies: dict[str, Policy] = {}
        self._policies_changed = False
        self._graphs = ForwardGraphs()
        self._range_checked = False
        self._prediction_hooks: OrderedDict[int, Callable[[Any], None]] = OrderedDict()

    @property
    def group(self) -> Group | None:
        """The processes that call the adapter together, each with its part of a batch; None if there is only this."""
        return find_group(self.layers, self.given_group)

    @torch.enable_grad()
    def begin(self) -> Adapter:
        """Make the model ready and keep its state as the source state; ``medbn.adapt`` calls this once."""
        self.eval()
        if self.group is not None:
            if self.graph:
                raise ValueError("graph=True is for one process: collectives of a group are not captured.")
            check_same_adapter(self, self.group)
        if self.bounds is not None and self.bounds.outside == "isolate":
            for name, layer in self.layers.items():
                if not isolates(layer.estimator, layer.nonfinite):
                    raise ValueError(
                        f"outside='isolate' needs layers that isolate images, and {name!r} with the estimator"
                        f" {layer.estimator.name!r} does not; convert the model with nonfinite='isolate' first."
                    )
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        self.set_policies()
        self._policies_changed = False
        for name in self._averaged_layers():
            layer = self.layers[name]
            layer.ema_mean, layer.ema_var = (cast(Tensor, s).clone() for s in (layer.running_mean, layer.running_var))
        self.prepare()
        self.source_state = self.snapshot()
        return self

    def train(self, mode: bool = True) -> Adapter:
        """Set the mode of the adapter; its model stays in eval(), so that dropout is off."""
        super().train(mode)
        self.model.eval()
        return self

    @exclusive
    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot. What follows is then the same, to the bit."""
        super().restore(snapshot)
        self.set_policies()

    # --- one call -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Predict and adapt, once, as ``forward`` says; other threads wait. A call that raises has changed nothing."""
        return self.run_alone(super().__call__, *args, **kwargs)

    def forward(self, *args: Any, valid: Tensor | None = None, **kwargs: Any) -> Any:
        """Predict and, unless it is paused, adapt, once; return what the model returns.

        ``valid`` is a ``(B,)`` mask of the images that are not padding: only those take part in statistics, losses and
        memory.
        """
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # what is kept and learned must be able to have gradients
                return self.forward(*args, valid=valid, **kwargs)
        inputs = self.read_call(args, kwargs, valid, self.bounds)
        if self.model.training:
            self.model.eval()
        if not self._range_checked:
            self._range_checked = True
            warn_if_scaled(self, inputs)
        # The contexts stay open during the backward pass, where activation checkpointing runs layers again.
        padding = nullcontext() if inputs.valid is None else self.ignore_padding(inputs)
        if self.paused:
            with torch.no_grad(), padding:
                return tree_map(detach_output, self._correct_output(self.run_model(inputs), inputs))
        with torch.set_grad_enabled(bool(self.learned)), padding:
            output, commit = self._predict(inputs)
            for hook in self._prediction_hooks.values():
                hook(output)
            if self._journal is not None:
                self._journal.copy_values(self)
            images = self._count_images(inputs, output)
            predicted = self._correct_output(output, inputs)
            batch, seen = (inputs, output) if images >= self.min_images else self._collect(inputs, output)
            if batch is not None and batch is not inputs:
                with self.ignore_padding(batch):
                    seen, commit = self._predict(batch)
                    images = int(batch.count_finite(seen))
                    updated = bool(images) and self.update(batch, seen)
            else:
                updated = batch is not None and self.update(inputs, output)
            if updated and self.predict == "after":
                with torch.no_grad():
                    output = self.run_model(inputs)
                    predicted = self._correct_output(output, inputs)
        if batch is not None and commit is not None and images:
            self.commit(commit, images, batch, output if batch is inputs else seen)
        if self.memory:  # policies change with the memory only
            self.set_policies()
        self.state_changes += 1
        return tree_map(detach_output, predicted)

    def register_prediction_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Let each call that adapts pass the model's output to a function, before it waits for the device.

        What the function launches on a GPU is launched while the GPU is still busy with the forward pass. The call may
        return something else than this output, or raise afterwards.
        """
        handle = RemovableHandle(self._prediction_hooks)
        self._prediction_hooks[handle.id] = hook
        return handle

    def read_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], valid: Tensor | None = None, bounds: Bounds | None = None
    ) -> Inputs:
        """Return the checked arguments of a call; in a group, with what part of a batch they are."""
        group = self.group

        def read() -> Inputs:
            inputs = Inputs.of(args, kwargs, valid, empty=group is not None)
            return inputs if bounds is None else bounds.apply(inputs)

        return read() if group is None else agree(self, group, read)

    def _predict(self, inputs: Inputs) -> tuple[Any, Commit | None]:
        """Return the model's output, and what commits the statistics of this pass; None if they are not committed."""
        try:
            return self._predict_once(inputs)
        except torch.cuda.OutOfMemoryError:
            if self.graph is not None or not self._graphs.give_up():
                raise
        return self._predict_once(inputs)  # with the memory of the graphs, which nobody asked for

    def _predict_once(self, inputs: Inputs) -> tuple[Any, Commit | None]:
        tries = self.graph is not False and self.group is None and not self.learned
        replayed = self._graphs.run(self, inputs) if tries else None
        if replayed is not None:
            output, gather = replayed
        elif self.commits_prediction():
            with self.observe_statistics() as gather:
                output = self.run_model(inputs)
        else:
            return self.run_model(inputs), None
        return output, gather()

    def _collect(self, inputs: Inputs, output: Any) -> tuple[Inputs | None, Any]:
        """Collect the usable images of a small call; return all that are collected if they are enough, else None."""
        if not self.collect or not self.adapts:
            return None, None
        images = inputs.join_usable(inputs.finite_images(output), self.memory["collected"])
        count = len(next(iter(images.values())))
        self.memory["collected"] = {} if count >= self.min_images else images
        return (inputs.divide(images, count) if count >= self.min_images else None), None

    def _count_images(self, inputs: Inputs, output: Any) -> int:
        """Return how many images have a finite output, and raise if there are none, before anything has changed."""
        if not self.adapts:
            return inputs.total
        images = self.wait_for(inputs.count_finite(output))
        if not images:
            raise ValueError(NOTHING_FINITE)
        return images

    def wait_for(self, images: Tensor) -> int:
        """Return the number of usable images: the one value for which a call waits for the device."""
        return int(images)

    # --- what methods, surrogates and CUDA graphs use -----------------------------------------------------------------

    def run_model(self, inputs: Inputs) -> Any:
        """Return the model's output for a call."""
        try:
            return self.predict_with(lambda: self.model(*inputs.args, **inputs.kwargs), inputs)
        except RuntimeError as error:
            if any(tensor.dtype == torch.uint8 for tensor in inputs.images().values()):
                raise TypeError("the model cannot take uint8 images; convert them: images.float() / 255.") from error
            raise

    def run_with(self, inputs: Inputs, learned: dict[str, Tensor] | None = None) -> Any:
        """Return the model's output for a call, under other learned parameters if any are given."""
        if learned is None:
            return self.run_model(inputs)
        return self.predict_with(
            lambda: torch.func.functional_call(self.model, learned, inputs.args, inputs.kwargs), inputs
        )

    def _correct_output(self, output: Any, inputs: Inputs) -> Any:
        with torch.no_grad():
            return self.correct(output, inputs, self.memory, self.run_with)

    def changes_output(self) -> bool:
        """Return whether a call returns something else than the model does, so that no plain model predicts alike."""
        own = type(self)
        return own.predict_with is not Method.predict_with or own.correct is not Method.correct

    def commits_prediction(self) -> bool:
        """Return whether the moving averages take the statistics of the pass that predicts, or ``update`` others."""
        return True

    def repeats_pass(self) -> bool:
        """Return whether the next pass normalises as the last one did, so that a captured one may replace it."""
        return self.commits_prediction() and not self._policies_changed

    @contextmanager
    def observe_statistics(self) -> Iterator[Callable[[], Commit]]:
        """Collect the batch's statistics in the passes inside.

        The function that it yields is called after the pass. It gathers the statistics of all layers with a moving
        average, and returns the function that commits them.
        """
        statistics: dict[RobustBatchNorm, tuple[Tensor, Tensor]] = {}

        def gather() -> Commit:
            return gather_statistics(statistics)

        averaged = self._averaged_layers()
        if not averaged:
            yield gather
            return
        # Where the policy gives the batch no weight, layers do not estimate its statistics unless asked to.
        estimate = any(self._policies[name].weight == 0 for name in averaged)
        with hooks.observe(self.model, inputs=False, detached=True, always_estimate=estimate) as observations:
            yield gather
            for o in observations:
                first = o.name in averaged and o.layer not in statistics  # a layer that runs twice is committed once
                if first and o.batch_centre is not None and o.batch_variance is not None:
                    statistics[o.layer] = o.batch_centre.detach(), o.batch_variance.detach()

    def normalise_as_attacked(
        self, images: int, memory: dict[str, Any], tensors: dict[str, Tensor]
    ) -> AbstractContextManager[None]:
        """Normalise as a surrogate of this adapter does, inside the context.

        Args:
            images: how many images the batch has.
            memory: that of the state in which an attacker knows the adapter.
            tensors: those of ``surrogate_tensors``, or others in their place.
        """
        policy = self.commit_policy(images, memory)
        return nullcontext() if policy is None else self.use_policy(policy)

    def surrogate_tensors(self, memory: dict[str, Any], images: int | None = None) -> dict[str, Tensor]:
        """Return the tensors of a memory that ``normalise_as_attacked`` reads.

        Args:
            memory: that of the state in which an attacker knows the adapter.
            images: how many images the batch has, to have those too that depend on it; None if that is not known yet.
        """
        return {}

    def use_policy(self, policy: Policy) -> AbstractContextManager[None]:
        """Make every layer use another policy, inside the context; a model without robust layers stays as it is."""
        return hooks.use_policy(self.model, policy) if self.layers else nullcontext()

    def ignore_padding(self, inputs: Inputs) -> AbstractContextManager[None]:
        """Leave the padding of these inputs out of the statistics, inside the context."""
        return hooks.mask_images(self.model, inputs.valid) if self.layers else nullcontext()

    def _averaged_layers(self) -> set[str]:
        """Return the names of the layers with a moving average."""
        return {name for name, policy in self._policies.items() if policy.reference == "ema"}

    def set_policies(self) -> None:
        """Set the layers' policies where they are not what they should be."""
        self._policies_changed = False
        for name, layer in self.layers.items():
            self._policies[name] = policy = self.policy_for(name)
            current = layer.own_policy
            if policy is not current and policy != current:
                layer.policy = policy
                self._policies_changed = True

    # --- the attacker's view ------------------------------------------------------------------------------------------

    def surrogate(
        self, gradient: str = "exact", of: str = "now", *, temperature: float = 0.5, unroll: int = 0
    ) -> Surrogate:
        """Return a differentiable function from a batch to its logits. Calling it changes nothing.

        Args:
            gradient: what the backward pass of the statistics is: ``"exact"``, ``"straight_through"`` (that of the
                mean) or ``"smooth"`` (that of a soft quantile). Forward values are exact in all three; see
                ``medbn.gradients``.
            of: ``"now"``, the adapter as it is at this moment (white box), or ``"source"``, as it was at the start.
            temperature: how soft ``"smooth"`` is.
            unroll: 1 to predict with the parameters after one step of the method on the batch, and to differentiate
                through that step too; filters, ETA's weights and SAM's perturbation are constants. 0 to leave the step
                out.

        The function keeps the parameters, averages and memory of this moment, also while the adapter goes on.
        They are in place during its forward pass only: switch activation checkpointing off, which runs layers again
        during the backward pass.
        """
        return make_surrogate(self, gradient, of, temperature, unroll)
