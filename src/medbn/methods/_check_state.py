"""Check a saved state completely before any of it is used: a file may come from anywhere."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ._state import Stateful

ENTRIES = {"method", "estimators", "learned", "averages", "optimizer", "memory", "random"}
NOT_NEGATIVE = ("running_var", "num_batches_tracked", "exp_avg_sq", "max_exp_avg_sq", "step")
LARGEST = 1e15
"""No parameter or mean in a file is larger: layers after one would overflow. Variances may be its square."""
LARGEST_COUNT = 2**53
"""Counters above are no counters: doubles no longer hold them exactly."""


def check_state(adapter: Stateful, state: Any, largest: float = math.inf) -> None:
    """Raise a ValueError that names the entry unless an adapter of this kind can have saved the state.

    A snapshot may hold any finite value, since hostile images may have moved an average far; a file is bounded.
    """
    if not isinstance(state, dict) or "method" not in state:
        raise ValueError("this is no snapshot of an adapter; snapshot() makes them.")
    if not ENTRIES - {"estimators"} <= state.keys() <= ENTRIES:
        raise ValueError(
            f"expected the entries {', '.join(sorted(ENTRIES))}, got {', '.join(sorted(map(str, state)))}."
        )
    others = state.get("estimators", adapter.estimator_names())
    if others != adapter.estimator_names():
        raise ValueError(
            f"this state is of an adapter with the estimators {others!r} in its layers, and this one has"
            f" {adapter.estimator_names()!r}; make it with the estimator of that one."
        )
    learned = _dictionary("learned", state["learned"])
    if state["method"] != type(adapter).__name__ or learned.keys() != adapter.learned.keys():
        raise ValueError(
            f"this state is of {state['method']!r} with {len(learned)} learned parameters, and the adapter is"
            f" {type(adapter).__name__} with {len(adapter.learned)}; make it with the method, model and options of that"
            " one."
        )
    values = Values(largest)
    for name, parameter in adapter.learned.items():
        check_tensor(values, f"learned {name}", learned[name], parameter.shape)
    _check_averages(values, adapter, _dictionary("averages", state["averages"]))
    _check_optimizer(values, adapter, state["optimizer"])
    memory = _dictionary("memory", state["memory"])
    if memory.keys() != adapter.memory.keys():
        raise ValueError(f"expected the memory {sorted(adapter.memory)}, got {sorted(map(str, memory))}.")
    if adapter.collect and check_images("the collected images", memory["collected"]) >= max(adapter.min_images, 1):
        raise ValueError(f"there must be fewer than {adapter.min_images} collected images.")
    for name in set(adapter.counts) & memory.keys():
        check_count(f"the entry {name!r}", memory[name])
    adapter.check_memory(memory, values)
    values.finish()
    try:
        torch.Generator().set_state(state["random"].cpu())
    except Exception as error:  # of several types, for what is no state of a generator
        raise ValueError("the state of the random generator is damaged.") from error


def check_loaded(adapter: Stateful, state: Any) -> None:
    """Raise a ValueError unless this is what ``get_extra_state`` returns: a state and the source state."""
    if not isinstance(state, dict) or state.keys() != {"now", "source"}:
        raise ValueError("this is no state of an adapter; state_dict() makes them.")
    for part in ("source", "now"):
        check_state(adapter, state[part], LARGEST)


class Values:
    """Checks of tensors' values, which are read together at the end: a GPU then waits once and not for each."""

    def __init__(self, largest: float) -> None:
        self.largest = largest
        self._messages: list[str] = []
        self._right: list[Tensor] = []

    def require(self, right: Tensor, message: str) -> None:
        """Note that ``right``, a tensor of one boolean, has to be true."""
        self._messages.append(message)
        self._right.append(right)

    def finish(self) -> None:
        """Raise a ValueError with the message of the first check that does not hold."""
        for device in {t.device for t in self._right}:
            places = [i for i, t in enumerate(self._right) if t.device == device]
            for place, right in zip(places, torch.stack([self._right[i] for i in places]).tolist(), strict=True):
                if not right:
                    raise ValueError(self._messages[place])


def check_tensor(
    values: Values, name: str, value: Any, shape: tuple[int, ...] | None = None, least: float | None = None
) -> None:
    """Require a finite floating point tensor, of that shape and from ``least`` on."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
        kind = f"{value.dtype} ({value.layout})" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a dense floating point tensor, got {kind}.")
    if shape is not None and tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name} must have the shape {tuple(shape)}, got {tuple(value.shape)}.")
    largest = values.largest if least is None else values.largest**2
    values.require(_is_bounded(value, largest), f"{name} has values that are not finite, or beyond {largest:g}.")
    if least is not None:
        values.require((value.detach() >= least).all(), f"{name} has values below {least:g}.")


def check_count(name: str, value: Any) -> None:
    """Raise a ValueError unless ``value`` is a whole number that something can have counted."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_COUNT:
        raise ValueError(f"{name} must be a whole number from 0 on, got {value!r}.")


def check_images(name: str, value: Any, count: int | None = None) -> int:
    """Require tensors of the same number of images, by place; return that number."""
    images = _dictionary(name, value)
    lengths = {len(v) if isinstance(v, Tensor) and v.dim() else -1 for v in images.values()}
    if not all(isinstance(place, str) and place.isdecimal() for place in images) or len(lengths) > 1 or -1 in lengths:
        raise ValueError(f"{name} must be tensors of the same number of images, by place.")
    length = next(iter(lengths), 0)
    if count is not None and length != count:
        raise ValueError(f"{name} must have {count} images, got {length}.")
    return length


def check_model(model: torch.nn.Module, state: dict[str, Any], prefix: str) -> None:
    """Raise a ValueError for values that a model in service cannot have: not finite, or negative variances."""
    values = Values(LARGEST)
    for name, own in model.state_dict().items():
        value = state.get(prefix + name)
        if not isinstance(own, Tensor) or value is None:
            continue  # torch reports what is missing
        if not isinstance(value, Tensor) or value.shape != own.shape or value.dtype.is_complex:
            raise ValueError(f"{name} must be a tensor of the shape {tuple(own.shape)}.")
        least = 0.0 if name.rpartition(".")[2] in NOT_NEGATIVE else None
        if own.is_floating_point():
            if bool(_is_bounded(own, LARGEST**2)):  # a mask may hold infinities
                check_tensor(values, name, value, least=least)
        elif least is not None:
            values.require((value >= 0).all(), f"{name} must be at least 0.")
    values.finish()


def _is_bounded(value: Tensor, largest: float) -> Tensor:
    return (value.detach().isfinite() & (value.detach().abs() <= largest)).all()


def _check_averages(values: Values, adapter: Stateful, averages: dict[str, Any]) -> None:
    expected = adapter.source_state["averages"].keys()
    if averages.keys() != expected:
        raise ValueError(f"the moving averages are of {len(averages)} layers, and the adapter has {len(expected)}.")
    for name, pair in averages.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"the moving average of {name} must be a mean and a variance.")
        shape = (adapter.layers[name].num_features,)
        check_tensor(values, f"the moving mean of {name}", pair[0], shape)
        check_tensor(values, f"the moving variance of {name}", pair[1], shape, 0.0)


def _check_optimizer(values: Values, adapter: Stateful, state: Any) -> None:
    if adapter.optimizer is None:
        if state is not None:
            raise ValueError("the state has an optimiser, and the adapter has none.")
        return
    state = _dictionary("optimizer", state)
    groups, moments = state.get("param_groups"), _dictionary("the optimiser's state", state.get("state"))
    own = adapter.optimizer.state_dict()["param_groups"]
    if not isinstance(groups, list) or [_parameters_of(group) for group in groups] != [g["params"] for g in own]:
        raise ValueError("the optimiser's parameter groups are not those of the adapter.")
    shapes = dict(enumerate(tuple(p.shape) for p in adapter.learned.values()))
    expected = _moments_of_one_step(adapter) if moments else {}
    for index, entries in moments.items():
        if not isinstance(index, int) or isinstance(index, bool) or index not in shapes:
            raise ValueError(f"the optimiser has moments of a parameter {index!r}, of {len(shapes)}.")
        if _dictionary("the optimiser's moments", entries).keys() != expected.keys():
            raise ValueError(f"the optimiser's moments of parameter {index} are {sorted(map(str, entries))}.")
        for name, value in entries.items():
            least = 0.0 if name in NOT_NEGATIVE else None
            place = f"the optimiser's {name} of parameter {index}"
            if isinstance(value, Tensor):
                check_tensor(values, place, value, () if value.dim() == 0 and name == "step" else shapes[index], least)
            elif isinstance(expected[name], Tensor) and (expected[name].dim() or isinstance(value, bool)):
                raise ValueError(f"{place} must be a tensor, got a {type(value).__name__}.")
            elif value is None and expected[name] is None:
                continue
            elif not (isinstance(value, int | float) and math.isfinite(value)):
                raise ValueError(f"{place} must be a finite number or a tensor, got {value!r}.")
            elif least is not None and value < least:
                raise ValueError(f"{place} must be at least 0, got {value!r}.")


def _moments_of_one_step(adapter: Stateful) -> dict[str, Any]:
    """Return what the optimiser keeps for a parameter, from one step of a copy of it with a scratch parameter."""
    assert adapter.optimizer is not None
    optimizer, scratch = copy.copy(adapter.optimizer), torch.nn.Parameter(torch.zeros(1))
    optimizer.state = defaultdict(dict)
    optimizer.param_groups = [{**adapter.optimizer.param_groups[0], "params": [scratch]}]
    scratch.grad = torch.zeros(1)
    optimizer.step()
    return dict(optimizer.state[scratch])


def _parameters_of(group: Any) -> Any:
    return group.get("params") if isinstance(group, dict) else None


def _dictionary(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dictionary, got a {type(value).__name__}.")
    return value
