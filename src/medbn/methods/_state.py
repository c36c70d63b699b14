"""The state of an adapter: everything that adapts, as one value in memory and on disk.

``snapshot`` and ``restore`` return to the same bits; ``reset`` returns to the source model; ``save`` and ``load`` carry
the same through a file, and ``state_dict`` does with the source model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._pytree import tree_map

from ..layers import RobustBatchNorm
from ._check_state import Values, check_loaded, check_model, check_state
from ._journal import Journal, Lock, NoLock, copy_tensors, exclusive, remember_tensors
from ._state_file import load_state, save_state

T = TypeVar("T")


class Stateful(nn.Module):
    """A model with its state: learned parameters, moving averages, optimiser, memory and random generator.

    ``memory`` is a dictionary of tensors, numbers, strings, and lists and dictionaries of those.
    """

    version: ClassVar[int] = 1
    """Raised when the same options, or other defaults of the same preset, give other numbers. Results of the bench are
    then run again, and files of older states are refused."""
    image_entries: ClassVar[tuple[str, ...]] = ("collected",)
    """The entries of ``memory`` that hold images of users, or say something about each of them. Files written with
    ``save(path, memory=False)`` have the source state's in their place."""
    counts: ClassVar[tuple[str, ...]] = ()
    """The entries of ``memory`` that are whole numbers from 0 on, which files are checked for."""
    given_options: dict[str, Any]
    """The options with which the adapter was made."""

    def __init__(self, model: nn.Module, seed: int, *, lock: bool = True) -> None:
        super().__init__()
        self.model = model
        self.layers = {n: m for n, m in model.named_modules() if isinstance(m, RobustBatchNorm)}
        self.learned: dict[str, Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.memory: dict[str, Any] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.source_state: dict[str, Any] = {}
        self.resets = 0
        """How often ``reset`` was called; no part of the state."""
        self.state_changes = 0
        """How often the state has changed, by calls or otherwise, by which processes know that theirs differ."""
        self.lock = Lock() if lock else NoLock()
        self.min_images = 1
        self.collect = False
        self._journal: Journal | None = None
        self._loaded_state: dict[str, Any] | None = None
        self.register_load_state_dict_post_hook(_apply_loaded_state)  # type: ignore[no-untyped-call]

    # --- one thread at a time, all or nothing -------------------------------------------------------------------------

    def run_alone(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function while other threads wait; if it raises, undo what it has changed.

        The journal is dropped only when the function has ended. So an exception may arrive at any moment, as from a
        signal handler, even while another is handled: who uses the adapter next completes what is left to undo.

        Args:
            function: what to run. It calls ``copy_values`` of the journal before it changes more than layers' settings.
            args: its arguments.
            kwargs: its other arguments.
        """
        if self.lock.is_mine():
            raise RuntimeError(
                f"{self._name()} was called inside a call of its own, from a hook or from the model; a call predicts"
                " and adapts once. Call it after that call has returned, or call a copy: copy.deepcopy."
            )
        with self.lock.held:
            self.roll_back()
            journal = self._journal = Journal(self)
            try:
                result = function(*args, **kwargs)
                self._journal = None
                return result
            except BaseException:
                self._journal = journal
                self.roll_back()
                raise

    def roll_back(self) -> None:
        """Undo what a call that raised has changed, if anything is left of it."""
        if self._journal is not None:
            self._journal.undo(self)
            self._journal = None

    def set_policies(self) -> None:
        """Give the layers the policies of this state."""

    @exclusive
    def __deepcopy__(self, memo: dict[int, Any]) -> Stateful:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    @exclusive
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return everything that adapts, and the model; ``save`` it with torch and load it with weights only."""
        return super().state_dict(*args, **kwargs)

    @exclusive
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load what ``state_dict`` returned: all of it, or nothing if there is anything wrong with it."""
        state = args[0] if args else kwargs.get("state_dict")
        if isinstance(state, dict):
            if not all(isinstance(name, str) for name in state):
                raise ValueError("the names in a state are strings; this is no state of an adapter.")
            check_model(self.model, state, "model.")
            if "_extra_state" in state:
                check_loaded(self, state["_extra_state"])
        before, undo = self.snapshot(), remember_tensors(self.model)
        source_state, learned = self.source_state, self.learned
        try:
            return super().load_state_dict(*args, **kwargs)
        except BaseException:
            self._loaded_state, self.source_state, self.learned = None, source_state, learned
            if self.optimizer is not None:
                self.optimizer.param_groups[0]["params"] = list(learned.values())
            undo()
            self.restore(before)
            raise

    # --- the state ----------------------------------------------------------------------------------------------------

    @exclusive
    def snapshot(self) -> dict[str, Any]:
        """Return a copy of everything that adapts, for ``restore``."""
        averages = {
            n: (layer.ema_mean, layer.ema_var) for n, layer in self.layers.items() if layer.ema_mean is not None
        }
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {
            "method": self._name(),
            "estimators": self.estimator_names(),
            **copy_tensors(
                {"learned": self.learned, "averages": averages, "optimizer": optimizer, "memory": self.memory}
            ),
            "random": self.generator.get_state(),
        }

    @exclusive
    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot. What follows is then the same, to the bit."""
        check_state(self, snapshot)
        with torch.no_grad():
            for name, parameter in self.learned.items():
                parameter.copy_(snapshot["learned"][name])
        for name, (mean, var) in snapshot["averages"].items():
            layer = self.layers[name]
            layer.ema_mean, layer.ema_var = (s.clone().to(layer.running_mean) for s in (mean, var))
        if self.optimizer is not None:
            # Options such as ``lr`` are the adapter's own, not those of a file.
            own = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict(
                {"state": copy.deepcopy(snapshot["optimizer"]["state"]), "param_groups": own}
            )
        self.memory = tree_map(lambda v: self._to_model(v.clone()) if isinstance(v, Tensor) else v, snapshot["memory"])
        self.generator.set_state(snapshot["random"].cpu())
        self.state_changes += 1

    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Write everything that adapts to a safetensors file, completely or not at all.

        The file has the learned parameters, moving averages, optimiser, memory and random generator, now and at the
        start, and a hash of the source model's weights, but not these weights. SoTTA remembers images of users, and so
        does what collects the images of small calls: their files hold these images.

        Args:
            path: the file; ``.safetensors`` is usual.
            memory: whether to save the images in memory. Without them, a loaded adapter begins with none; predictions
                are the same until those images would have been learned from or committed.
        """
        save_state(self, path, memory=memory)

    @exclusive
    def load(self, path: str | Path) -> None:
        """Load a file that ``save`` has written: all of it, or nothing if there is anything wrong with it.

        What follows is what would have followed where it was saved, to the bit on the same machine. The file must be of
        the same method, version, source weights and estimators; options such as ``lr`` stay this adapter's own.
        """
        with torch.inference_mode(False):
            state = load_state(self, path)
            before, source_state = self.snapshot(), self.source_state
            try:
                self.source_state = tree_map(self._to_model, state["source"])
                self.restore(state["now"])
            except BaseException:
                self.source_state = source_state
                self.restore(before)
                raise

    @exclusive
    def reset(self) -> None:
        """Return to the source model."""
        self.restore(self.source_state)
        self.resets += 1

    def get_extra_state(self) -> dict[str, Any]:
        """Return what adapts beside the model's own state, and the source model; loads with ``weights_only=True``."""
        return {"now": self.snapshot(), "source": self.source_state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Keep a loaded state until the layers have loaded theirs, which restarts their moving averages."""
        check_loaded(self, state)
        self._loaded_state = state

    def _apply_loaded_state(self) -> None:
        if self._loaded_state is None:
            return
        state, self._loaded_state = self._loaded_state, None
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        if any(parameters[name] is not p for name, p in self.learned.items()):  # load_state_dict(assign=True)
            self.learned = {name: cast(Parameter, parameters[name].requires_grad_(True)) for name in self.learned}
            if self.optimizer is not None:
                self.optimizer.param_groups[0]["params"] = list(self.learned.values())
        self.source_state = tree_map(self._to_model, state["source"])
        self.restore(state["now"])

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Raise a ValueError for a loaded memory that this method cannot have saved; its entries are the right ones."""

    def estimator_names(self) -> list[str]:
        """Return the names of the layers' estimators. States carry them so that none changes the defence unnoticed."""
        return sorted({layer.estimator.name for layer in self.layers.values()})

    def _name(self) -> str:
        return type(self).__name__

    def _to_model(self, value: Any) -> Any:
        """Return a saved tensor on the model's device, floats in the model's precision."""
        like = next(iter((*self.model.parameters(), *self.model.buffers())), None)
        if not isinstance(value, Tensor) or like is None:
            return value
        full = (torch.float32, torch.float64)
        return value.to(like.device, like.dtype if value.dtype in full and like.dtype in full else value.dtype)

    @exclusive
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Stateful:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        states = (self.memory, self.source_state)
        self.memory, self.source_state = (tree_map(lambda v: fn(v) if isinstance(v, Tensor) else v, s) for s in states)
        if self.optimizer is not None:
            for parameter, state in self.optimizer.state.items():
                state = {k: fn(v) if isinstance(v, Tensor) and k != "step" else v for k, v in state.items()}
                self.optimizer.state[parameter] = state
        return self


def _apply_loaded_state(adapter: Any, keys: Any) -> None:
    """Call the method of this name; ``load_state_dict`` calls hooks with the module and its incompatible keys."""
    adapter._apply_loaded_state()
