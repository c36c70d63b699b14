"""Undo all that a call that raises has changed, and let one thread at a time use an adapter."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._contexts import list_contexts, remove_other_contexts

if TYPE_CHECKING:
    from ._state import Stateful

F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A lock whose copies and pickles are free: they belong to a copy of the adapter.

    Use it as ``with lock.held:``, which no signal handler can interrupt between taking and holding it.
    """

    def __init__(self) -> None:
        self.held: Any = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def is_mine(self) -> bool:
        """Return whether this thread holds it."""
        return bool(self.held._is_owned())


class NoLock(Lock):
    """What stands in for a lock where users bring their own: no thread waits, and each knows its own calls."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def held(self) -> Any:
        """A lock that no other thread uses."""
        if not hasattr(self._local, "lock"):
            self._local.lock = threading.RLock()
        return self._local.lock


class Journal:
    """What an adapter was before a call, in order to undo it.

    Moving averages are replaced and not written to, so references are enough. Parameters, the optimiser's moments and
    the memory are copied by ``copy_values``, which must come before the first change of them.
    """

    def __init__(self, adapter: Stateful) -> None:
        layers = adapter.layers.values()
        self.contexts = list_contexts(layers)
        self.resets, self.state_changes = adapter.resets, adapter.state_changes
        self.averages = [(layer._buffers["ema_mean"], layer._buffers["ema_var"]) for layer in layers]
        self.values: dict[str, Any] | None = None

    def copy_values(self, adapter: Stateful) -> None:
        """Copy what an update writes to. Called after the forward pass, while a GPU is still busy with it."""
        state = {
            "learned": adapter.learned,
            "memory": adapter.memory,
            "optimizer": None if adapter.optimizer is None else adapter.optimizer.state_dict(),
        }
        self.values = {**copy_tensors(state), "random": adapter.generator.get_state()}

    def undo(self, adapter: Stateful) -> None:
        """Return the adapter to what it was. May be repeated if an exception interrupts it."""
        remove_other_contexts(self.contexts)
        adapter.resets, adapter.state_changes = self.resets, self.state_changes
        for layer, (mean, var) in zip(adapter.layers.values(), self.averages, strict=True):
            layer._buffers["ema_mean"], layer._buffers["ema_var"] = mean, var
        for name, parameter in adapter.learned.items():  # a surrogate puts others in their place
            owner, _, kind = name.rpartition(".")
            adapter.model.get_submodule(owner)._parameters[kind] = parameter
        if self.values is None:
            return
        values = copy_tensors(self.values)
        with torch.no_grad():
            for name, parameter in adapter.learned.items():
                parameter.copy_(values["learned"][name])
                parameter.grad = None
        if adapter.optimizer is not None:
            adapter.optimizer.load_state_dict(values["optimizer"])
        adapter.memory = values["memory"]
        adapter.generator.set_state(values["random"])
        adapter.set_policies()


def copy_tensors(value: Any) -> Any:
    """Return a copy of a structure of tensors, all tensors of a device in one operation."""
    leaves, structure = tree_flatten(value)
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            groups.setdefault((leaf.device, leaf.dtype), []).append(i)
    with torch.inference_mode(False), torch.no_grad():
        for group in groups.values():
            old = [leaves[i] for i in group]
            new = [torch.empty_like(t) for t in old]
            torch._foreach_copy_(new, old)
            for i, copied in zip(group, new, strict=True):
                leaves[i] = copied
    return tree_unflatten(leaves, structure)


def exclusive(method: F) -> F:
    """Let other threads wait while a method of an adapter runs. The adapter's own calls may use it."""

    @functools.wraps(method)
    def run(self: Stateful, *args: Any, **kwargs: Any) -> Any:
        inside = self.lock.is_mine()
        with self.lock.held:
            if not inside:
                self.roll_back()
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


def remember_tensors(model: nn.Module) -> Callable[[], None]:
    """Return a function that puts the parameters and buffers of a model back as they are now."""
    stores = [store for module in model.modules() for store in (module._parameters, module._buffers)]
    tensors = [(store, dict(store)) for store in stores]
    values = [(t, t.detach().clone()) for _, store in tensors for t in store.values() if t is not None]

    def undo() -> None:
        for store, before in tensors:
            store.clear()
            store.update(before)  # type: ignore[arg-type]
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)

    return undo
