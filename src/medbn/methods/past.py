"""Past: predict every batch with statistics of the batches before it. Ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import hooks, policies
from .._errors import unknown_name
from .._isolate import isolates
from ..policies import Policy
from ._call import Inputs
from ._check_state import Values, check_count
from ._choice import Choice
from ._memories import Memories, Seen
from ._memory_settings import Settings
from ._past_average import BATCH_SIZE, MIN_IMAGES, MOMENTUM, TWO_PASS_BATCHES, PastAverage
from ._registry import register
from .base import Adapter, Commit


@register("past")
class Past(Adapter):
    """Normalises a batch with a moving average of the batches before it, and commits the batch afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that normalise all the
    others. Here no image's prediction depends on another image of its batch, so such an attack has no effect, also by
    an attacker who knows everything. What remains is to poison a batch in order to harm later ones. One batch
    weighs ``momentum`` in those, and a robust estimator bounds how far its malicious images move its statistics. An
    attacker of every batch has her fraction of all of them, as with batch statistics. To hit a target she must know
    it in advance; to raise the error of all images she need not.

    Images that are finite and not padding have the same weight, however the stream is cut into calls. There are two
    limits, because one person may have sent all images of a call. A call weighs at most as much as ``batch_size``
    images. And the statistics of a few images are no median of many: the images of a call with fewer than
    ``min_images`` are collected, predicted as always, and committed together, by a forward pass of their own, once they
    are enough. They are part of the state. Images of another size than those collected replace them.

    The average starts at the training statistics. These count as ``batch_size`` images, and they and all images so far
    weigh the same until a batch would weigh less than ``momentum``. So the first batch is predicted by the source
    model, and after a change of the images it takes about 1 / ``momentum`` batches to forget.

    A batch's statistics are taken in the forward pass that predicts it, so they are those of activations normalised by
    the average *before* the batch. As long as a batch has a large weight, that is a poor approximation in deep layers.
    So the first few batches are passed through the model a second time, normalised by an average that includes the
    batch, as in sEMA, and those statistics are committed.

    **Changes.** With ``changes="detect"``, a batch is first compared with what is remembered of earlier ones, by
    features of single images in the input of the first layer (``_changes.py``). Where they differ by more than a share
    of ``malicious`` crafted images can feign, a change is declared: the batch is normalised with its own statistics,
    mixed with the training statistics (``fallback``), and a new memory starts with it. Where an older memory fits, that
    is taken up again instead. A batch in which none is declared pulls its memory by a bounded amount
    (``_memories.py``), so that batches that are malicious as a whole, and raise no alarm, move it little. So no image's
    prediction depends on others of its batch but through this choice, and in declared batches through the fallback. The
    first batch is declared, because nothing is remembered. ``memory`` counts how many batches were ``"declared"``, and
    how many ``"returned"`` to an older memory. Calls of fewer images than a test needs, about 70, are predicted by the
    memory in use, collected, and tested together. No batch has a second pass. docs/threat-model.md says what is proved,
    and what is not.

    The surrogate that an attacker differentiates normalises the batch with an average that includes it. That is how the
    same images would be predicted if they came again: all that the attacker can still change. With
    ``changes="detect"`` this average leaves the bound out, which has no gradient where it is reached.

    Args:
        model: the model to adapt.
        momentum: the weight of a batch. A larger one follows changes sooner, and gives a poisoned batch more weight.
        batch_size: how many images that batch has.
        min_images: the least number of images to commit, at most ``batch_size``; 1 commits every call at once.
        collect: whether the images of smaller calls are collected; otherwise those calls are predicted only.
        two_pass_batches: how many batches have a second forward pass, from the start or ``reset()`` on.
        changes: ``"detect"`` to find changes of the images and to follow them; None for one memory that fades.
        malicious: the largest share of malicious images in a batch that must not be able to raise an alarm.
        fallback: the weight of the training statistics in a declared batch: from 0, the batch's own statistics alone,
            to 1, the training statistics alone. None for that of the estimator.
        memories: how many memories to keep.
        false_alarms: a bound of the chance that a batch is declared although nothing has changed.
        options: those of Adapter.
    """

    version: ClassVar[int] = 2  # before, calls of more than ``batch_size`` or fewer than 16 images weighed otherwise
    policy = policies.ema(0.0)
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        momentum: float = MOMENTUM,
        batch_size: int = BATCH_SIZE,
        min_images: int = MIN_IMAGES,
        collect: bool = True,
        two_pass_batches: int = TWO_PASS_BATCHES,
        changes: str | None = None,
        malicious: float = 0.2,
        fallback: float | None = None,
        memories: int = 4,
        false_alarms: float = 1e-4,
        **options: Any,
    ) -> None:
        super().__init__(model, min_images=min_images, collect=collect, **options)
        for name, of, value, least in (
            ("batch_size", "images", batch_size, 1),
            ("two_pass_batches", "batches", two_pass_batches, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is a number of {of}, at least {least}; got {value!r}.")
        self.momentum = policies.ema(momentum).weight
        self.batch_size = batch_size
        self.min_images = min(min_images, batch_size)
        self.two_pass_batches = two_pass_batches
        self._warned = False
        self.memory |= {"batches": 0, "images": 0}
        if changes not in (None, "detect"):
            raise unknown_name("changes", changes, ("detect",))
        self._settings = Settings(malicious, fallback, memories, false_alarms, self.momentum, batch_size)
        self._detects = changes == "detect"
        if self._detects:
            self.min_images = max(self.min_images, self._settings.least_images())
        self._memories: Memories | None = None
        self._tensors: dict[str, Tensor] | None = None
        self._seen: Seen | None = None

    def prepare(self) -> None:
        """Start the memories."""
        if self._detects:
            averaged = self._averaged_layers()
            self._memories = Memories({n: layer for n, layer in self.layers.items() if n in averaged}, self._settings)
            self.memory |= self._memories.first()

    def commits_prediction(self) -> bool:
        """Return whether this batch has one pass only."""
        return self._detects or bool(self.memory["batches"] >= self.two_pass_batches)

    def repeats_pass(self) -> bool:
        """Return whether the next pass normalises as the last one did: not before anything is remembered."""
        return super().repeats_pass() and (self._tensors is None or "medians" in self._tensors)

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Run the second pass of an early batch, and commit its statistics."""
        if not self.commits_prediction():
            images = int(inputs.count_finite(output))
            self._warn_if_nothing_is_committed(inputs, images)
            self._commit_pass(inputs, images)
        return False

    def commit(self, commit: Commit, images: int, inputs: Inputs, output: Any) -> None:
        """Commit the statistics of the pass that has predicted a call."""
        self._warn_if_nothing_is_committed(inputs, images)
        self._commit(commit, images)

    def _warn_if_nothing_is_committed(self, inputs: Inputs, images: int) -> None:
        """Warn once where an image without finite output makes the statistics NaN: then nothing is committed.

        Predictions do not show it, because they do not depend on the batch.
        """
        if self._warned or all(isolates(layer.estimator, layer.nonfinite) for layer in self.layers.values()):
            return
        if images < (inputs.total if inputs.valid is None else int(inputs.total_of(inputs.valid.sum()))):
            self._warned = True
            warnings.warn(
                "an image with NaN or infinite values makes the statistics of its batch NaN with these estimators, so"
                " past does not adapt to such a batch. Use a robust estimator, or nonfinite='isolate'.",
                stacklevel=2,
            )

    def _commit_pass(self, inputs: Inputs, images: int) -> None:
        """Run the model on an early batch once more, and commit its statistics in this pass.

        The average that normalises it includes it.
        """
        normalise = hooks.use_policy(self.model, self.commit_policy(images, self.memory))
        self._load_memories(images)
        with torch.no_grad(), self.ignore_padding(inputs), normalise, self.observe_statistics() as gather:
            self.run_model(inputs)
        self._commit(gather(), images)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _predict(self, inputs: Inputs) -> tuple[Any, Commit | None]:
        self._load_memories(inputs.total)
        return super()._predict(inputs)

    def _load_memories(self, images: int) -> None:
        """Make ready what a pass over this many images reads; None if they are too few to find a change in."""
        self._tensors = self._seen = None
        if self._memories is None:
            return
        if any(layer.ema_mean is None for layer in self._memories.layers.values()):
            self.memory |= self._memories.first()  # other training statistics were loaded
        if images >= self.min_images:
            replays = self.graph is True or (self.graph is None and self._memories.device.type == "cuda")
            self._tensors = self._memories.load(self.memory, images, in_place=replays)

    @contextmanager
    def observe_statistics(self) -> Iterator[Callable[[], Commit]]:
        """Collect the batch's statistics and, in a batch in which changes are found, choose what normalises it."""
        if self._memories is None or self._tensors is None:
            with super().observe_statistics() as gather:
                yield gather
            return
        choice = Choice(self._memories, self._tensors)

        def gather_seen() -> Commit:
            self._seen = choice.gather()
            return lambda policy: None

        with hooks.choose_statistics(self.model, choice):
            yield gather_seen

    def wait_for(self, images: Tensor) -> int:
        """Return the number of usable images; learn what was chosen, without waiting a second time."""
        return super().wait_for(images) if self._seen is None else self._seen.wait_for(images)

    def surrogate_tensors(self, memory: dict[str, Any], images: int | None = None) -> dict[str, Tensor]:
        """Return what is remembered and, if a batch of that many images is compared with it, the constants for that."""
        if self._memories is None:
            return {}
        compared = images is not None and images >= self.min_images
        constants = self._memories.constants(memory, images, weights=True) if compared and images else {}
        return self._memories.tensors(memory) | constants

    def normalise_as_attacked(
        self, images: int, memory: dict[str, Any], tensors: dict[str, Tensor]
    ) -> AbstractContextManager[None]:
        """Normalise with an average that includes the batch; with its own statistics where a change is declared."""
        if self._memories is None:
            return super().normalise_as_attacked(images, memory, tensors)
        if images < self.min_images:
            return hooks.use_policy(self.model, self._policy_of_few(images, memory))
        tensors = self.surrogate_tensors(memory, images) | tensors
        return hooks.choose_statistics(self.model, Choice(self._memories, tensors, tensors["weights"]))

    def _policy_of_few(self, images: int, memory: dict[str, Any]) -> Policy:
        """Return the average that includes a batch of too few images to find a change in."""
        assert self._memories is not None
        return policies.ema(self._memories.weights(memory, images)[memory["current"]])

    def surrogate_key(self, state: dict[str, Any], images: int) -> Hashable:
        """Return a key with the options of the memories, if there are any; what they remember is in tensors."""
        if not self._detects:
            return super().surrogate_key(state, images)
        # A memory's number of images is in its weights.
        key = super().surrogate_key({**state, "memory": {**state["memory"], "images": 0}}, images)
        few = self._policy_of_few(images, state["memory"]) if images < self.min_images else None
        return key, self._settings, self.min_images, few

    # --- weights ------------------------------------------------------------------------------------------------------

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy:
        """Return the average with the weight of a batch of that many images after those in ``memory``."""
        return PastAverage(self.momentum, self.batch_size, self.two_pass_batches).policy(images, memory["images"])

    def _commit(self, commit: Commit, images: int) -> None:
        """Commit statistics of this many images, and count them."""
        if self._memories is not None and self._seen is not None:
            self._memories.commit(self.memory, self._seen, images)
        commit(self.commit_policy(images, self.memory))
        self.memory["batches"] += 1
        self.memory["images"] += min(images, self.batch_size)

    def extra_repr(self) -> str:
        """Return the options that the layers do not show."""
        return f"momentum={self.momentum:g}, batch_size={self.batch_size}, min_images={self.min_images}," + (
            f" {self._settings}" if self._detects else f" two_pass_batches={self.two_pass_batches}"
        )

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require numbers of batches and images, and memories."""
        check_count("the number of batches", memory["batches"])
        check_count("the number of images", memory["images"])
        if self._memories is not None:
            self._memories.check(memory, values)
