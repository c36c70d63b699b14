"""The steps of an attack: run one by one, or captured once on a GPU as a CUDA graph and replayed.

An attack takes the same step a hundred times, and Python takes longer to launch a step than a GPU to compute it. All
that changes from batch to batch is copied into static tensors: the images, their labels, which are malicious, and the
adapter's state. So one graph serves a whole stream. ``medbn.cuda_graphs.GraphCache`` says when it may be replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..cuda_graphs import SWITCH, CaptureError, Graph, GraphCache, Guard, ObstacleError, capture
from ..methods import Adapter, Surrogate
from ._batch import Batch

if TYPE_CHECKING:
    from .dia import DIA

WORTHWHILE = 10
"""The number of steps from which a capture, which costs about as much as five of them, is tried unasked."""


class EagerSteps:
    """Steps that Python launches."""

    def __init__(
        self, attack: DIA, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
    ) -> None:
        self._attack, self._adapter, self._surrogate, self._batch = attack, adapter, surrogate, batch
        self.malicious = malicious
        """The malicious images after the last step."""

    def take(self) -> tuple[Tensor, Tensor]:
        """Take one step, and return the objective and the logits before it."""
        self.malicious, value, logits = self._attack.step(self._adapter, self._surrogate, self._batch, self.malicious)
        return value, logits


class ReplayedSteps:
    """Steps that a CUDA graph replays, with the same interface as ``EagerSteps``."""

    def __init__(self, graph: _StepGraph) -> None:
        self._graph = graph

    @property
    def malicious(self) -> Tensor:
        """Return a copy of the malicious images after the last step."""
        static: Tensor = self._graph.inputs[0]
        return static.clone()

    def take(self) -> tuple[Tensor, Tensor]:
        """Take one step, and return the objective and the logits before it, valid until the next step."""
        return self._graph.replay()


_StepGraph = Graph[tuple[Tensor, Tensor]]
_caches: WeakKeyDictionary[Adapter, GraphCache[_StepGraph]] = WeakKeyDictionary()
_warned: set[str] = set()


def prepare_steps(
    attack: DIA, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
) -> EagerSteps | ReplayedSteps:
    """Return the attack's steps from these malicious images on: replayed where its options and the model allow it."""
    eager = EagerSteps(attack, adapter, surrogate, batch, malicious)
    reads = "the adapter's memory" if attack.objective.observes else "what it keeps of earlier batches"
    if (attack.objective.observes or attack.objective.stateful) and attack.graph:
        raise RuntimeError(f"graph=True, and this objective reads {reads}, which a captured step would not.")
    if (
        attack.graph is False
        or attack.objective.observes
        or attack.objective.stateful
        or attack.steps == 0
        or (attack.graph is None and attack.steps < WORTHWHILE)
    ):
        return eager
    try:
        return _replay_steps(attack, adapter, surrogate, batch, malicious)
    except CaptureError as error:
        if attack.graph:
            raise RuntimeError(
                f"graph=True, and the attack's step cannot be captured as a CUDA graph: {error}"
            ) from error
        if not isinstance(error, ObstacleError):
            _warn_once(str(error))
    return eager


def _replay_steps(
    attack: DIA, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
) -> ReplayedSteps:
    if attack.unroll and adapter.learned:
        raise ObstacleError("with unroll=1 the surrogate learns, and reads values on the way.")
    if not _is_frozen(attack.objective):
        raise ObstacleError(f"{type(attack.objective).__name__} is no frozen dataclass, so it may change unnoticed.")
    if not isinstance(surrogate, Surrogate):
        raise ObstacleError(f"{type(adapter).__name__} has a surrogate of its own, whose tensors cannot be replaced.")
    surrogate = surrogate.for_batch_of(len(batch.images))
    inputs, structure = tree_flatten((malicious, batch, surrogate.tensors))

    def step(static: list[Any]) -> tuple[Tensor, Tensor]:
        malicious, batch, tensors = tree_unflatten(static, structure)
        moved, value, logits = attack.step(adapter, surrogate.with_tensors(tensors), batch, malicious)
        malicious.copy_(moved)
        return value, logits

    def capture_step(guard: Guard, pool: Any) -> _StepGraph:
        return capture(step, inputs, pool)

    cache = _caches.setdefault(adapter, GraphCache())
    key = (attack.step_key(), adapter.surrogate_key(surrogate.state, len(batch.images)), str(structure))
    try:
        hash(key)
    except TypeError as error:
        raise ObstacleError(f"an option of the attack cannot be hashed: {error}.") from error
    graph = cache.get(adapter.model, key, inputs, capture_step)
    assert graph is not None
    graph.load(inputs)
    return ReplayedSteps(graph)


def _is_frozen(objective: object) -> bool:
    parameters = getattr(type(objective), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and type(objective).__hash__ is not None


def _warn_once(reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"the attack's step could not be captured as a CUDA graph and runs slower without: {reason}"
            f" (DIA(graph=False) or {SWITCH}=0 do not try.)",
            stacklevel=2,
        )
