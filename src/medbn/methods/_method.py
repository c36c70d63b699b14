"""What a method may override.

A method is one file with a subclass of Adapter (``base.py``), or of Learner (``learner.py``) if it learns parameters,
under a name given by ``@register``. Calling an adapter predicts and adapts, once; only a call changes it. What a
method keeps between calls it keeps in ``self.memory``; ``_state.py`` then saves and restores it.
``docs/extending.md`` has a complete example.

A class declares what it is: ``label``, ``presets``, ``policy``, ``adapts``, ``needs_batch_norm``,
``needs_source_images``, ``surrogate_from_policies``; ``version`` and ``image_entries`` of ``_state.py``.

A class overrides what it does, in the order of a call:

- ``prepare()``: what is to be done once, before the first call.
- ``policy_for(layer)``: the policy of one layer, where layers differ.
- ``predict_with(forward, inputs)``: run a forward pass, and change its output.
- ``correct(output, inputs, memory, run)``: change what a call returns, but not what it learns from.
- ``update(inputs, output)``: adapt to one batch. A Learner has ``loss``, ``step``, ``unroll`` and ``filters`` instead.
- ``commit_policy(images, memory)``: the weight of a batch in the moving averages, where it is not that policy's.
- ``commit(commit, images, inputs, output)``: commit a batch, and keep in memory what later ones need to know of it.
- ``surrogate_key(state, images)``: what an attacker's view depends on.
- ``check_memory(memory, values)`` of ``_state.py``: refuse a loaded memory that the method cannot have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from torch import Tensor

from .. import policies
from ..policies import Policy
from ._call import Inputs, LogitsOption
from ._options import check_options
from ._state import Stateful
from ._surrogate import make_hashable

Run = Callable[[Inputs, dict[str, Tensor] | None], Any]
"""Runs the model on inputs, under given learned parameters or those that it has, and returns its output."""
Commit = Callable[[Policy | None], None]
"""Commits the statistics of one batch to the moving averages, by a policy, or by each layer's own if it is None."""


class Method(Stateful):
    """What a method declares and overrides, with the defaults; ``Adapter`` uses it."""

    label: ClassVar[str]
    """What reports call the method: the name of the class, unless the class itself sets it."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options that differ from the defaults, which are those of CIFAR-10, by benchmark."""
    policy: Policy = policies.batch()
    """Which statistics all layers normalise with; see ``policy_for`` where layers differ."""
    adapts: ClassVar[bool] = True
    """False for a method that never changes: it wraps any model, and accepts non-finite output."""
    needs_batch_norm: ClassVar[bool] = True
    """Whether it adapts nothing but statistics of batches, so that it refuses a model without BatchNorm."""
    needs_source_images: ClassVar[bool] = False
    """Whether the option ``source``, batches of source images, must be given."""
    surrogate_from_policies: ClassVar[bool]
    """Whether the layers' estimators and policies alone decide what a surrogate computes; see ``surrogate_key``.
    Subclasses do not inherit it, because they may change what decides."""

    _options_key: Hashable
    logits: LogitsOption

    @classmethod
    def uses_estimator(cls) -> bool:
        """Return whether statistics of a batch are estimated: not where all layers keep the training statistics."""
        return cls.adapts and cls.policy != policies.source()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Set the attributes that a class does not inherit."""
        super().__init_subclass__(**keywords)
        for name, default in (("label", cls.__name__), ("surrogate_from_policies", False)):
            if name not in vars(cls):
                setattr(cls, name, default)

    def __new__(cls, *args: Any, **options: Any) -> Method:
        """Check the types of the options, and note them for ``surrogate_key`` and for files of the state."""
        check_options(cls, options)
        adapter: Method = super().__new__(cls)
        adapter.given_options = {name: value for name, value in options.items() if name not in ("model", "source")}
        if not cls.surrogate_from_policies:
            adapter._options_key = make_hashable((args[1:], {k: v for k, v in options.items() if k != "model"}))
        return adapter

    def policy_for(self, layer: str) -> Policy:
        """Return the policy of the layer of that name.

        It may depend on ``self.memory``. Then override ``commit_policy`` too, which surrogates of other states use.
        """
        return self.policy

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy | None:
        """Return the policy by which a batch enters the moving averages; None for each layer's own.

        Surrogates normalise by it too, because an attacker works on a batch that the averages will include. Override it
        where the weight of a batch depends on its size or on the memory.

        Args:
            images: how many images the batch has.
            memory: ``self.memory``, or that of another state, in which an attacker knows the adapter.
        """
        return None

    def prepare(self) -> None:
        """Do what must be done once the layers have their policies, before the first call."""

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Adapt to one batch; return whether the model now predicts differently.

        The moving averages are not updated here: every call commits to them once, afterwards.
        """
        return False

    def predict_with(self, forward: Callable[[], Any], inputs: Inputs) -> Any:
        """Return the output of a forward pass, of the model or of a surrogate.

        Override it where a method changes the output itself; then ``surrogate_from_policies`` stays False.

        Args:
            forward: runs the pass.
            inputs: the batch.
        """
        return forward()

    def correct(self, output: Any, inputs: Inputs, memory: dict[str, Any], run: Run) -> Any:
        """Return what a call, or a surrogate, returns for an output of the model.

        ``update`` and ``commit`` see the model's own output. A method that overrides this leaves
        ``surrogate_from_policies`` False, or extends ``surrogate_key``.

        Args:
            output: of ``predict_with``.
            inputs: the batch.
            memory: ``self.memory``, or that of another state.
            run: runs the model on other inputs, or under other parameters.
        """
        return output

    def commit(self, commit: Commit, images: int, inputs: Inputs, output: Any) -> None:
        """Commit the statistics of the pass that has predicted; the last thing that a call does.

        Override it to keep in ``self.memory`` what later batches need to know of this one, or to commit other images.

        Args:
            commit: commits the statistics by a policy.
            images: how many images of the batch are finite and not padding.
            inputs: the batch.
            output: what the model has returned for it.
        """
        commit(self.commit_policy(images, self.memory))

    def surrogate_key(self, state: dict[str, Any], images: int) -> Hashable:
        """Return a value that is equal for two adapters only if their surrogates compute the same function.

        It stands for everything that a surrogate depends on beside the model and the tensors of the state, as long as
        no step is unrolled: estimators and policies of the layers, and where the logits are. Unless the class declares
        ``surrogate_from_policies``, it also has the class, its options and its memory. Attacks that were crafted for
        one adapter are reused for another where the keys are equal. Compare keys with ``==``; their ``repr`` may be
        ambiguous.

        Args:
            state: what the attacker knows: ``snapshot()`` or ``source_state``.
            images: how many images the batch has.
        """
        policy = self.commit_policy(images, state["memory"])
        normalisation = tuple(
            (name, layer.estimator, layer.nonfinite, layer.policy if policy is None else policy)
            for name, layer in self.layers.items()
        )
        logits: Hashable = self.logits if isinstance(self.logits, Hashable) else object()
        if self.surrogate_from_policies:
            return (normalisation, type(logits), logits)
        return (normalisation, type(logits), logits, type(self), self._options_key, make_hashable(state["memory"]))

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Return the learned parameters after one step on the batch, as a differentiable function of the batch."""
        raise ValueError(f"{type(self).__name__} cannot be unrolled: it does not learn from the batch at hand.")
