"""The state of an adapter: everything that adapts, as one value in memory and on disk.

``snapshot`` and ``restore`` return to the same bits; ``reset`` returns to the source model; ``state_dict`` carries the
same, and the source model, through a file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._pytree import tree_map

from ..layers import RobustBatchNorm


class Stateful(nn.Module):
    """A model with its state: learned parameters, moving averages, optimiser, memory and random generator.

    ``memory`` is a dictionary of tensors, numbers, strings, and lists and dictionaries of those.
    """

    def __init__(self, model: nn.Module, seed: int) -> None:
        super().__init__()
        self.model = model
        self.layers = {n: m for n, m in model.named_modules() if isinstance(m, RobustBatchNorm)}
        self.learned: dict[str, Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.memory: dict[str, Any] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.source_state: dict[str, Any] = {}
        self._loaded_state: dict[str, Any] | None = None
        self.register_load_state_dict_post_hook(_apply_loaded_state)  # type: ignore[no-untyped-call]

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of everything that adapts, for ``restore``."""
        averages = {
            n: (layer.ema_mean, layer.ema_var) for n, layer in self.layers.items() if layer.ema_mean is not None
        }
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        rest = {"averages": averages, "optimizer": optimizer, "memory": self.memory}
        copies: dict[str, Any] = tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, rest)
        return {
            "method": self._name(),
            "estimators": self._estimators(),
            "learned": {name: p.detach().clone() for name, p in self.learned.items()},
            **copies,
            "random": self.generator.get_state(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot. What follows is then the same, to the bit."""
        self._check_state(snapshot)
        with torch.no_grad():
            for name, parameter in self.learned.items():
                parameter.copy_(snapshot["learned"][name])
        for name, (mean, var) in snapshot["averages"].items():
            layer = self.layers[name]
            layer.ema_mean, layer.ema_var = (s.clone().to(layer.running_mean) for s in (mean, var))
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(snapshot["optimizer"]))
        self.memory = tree_map(lambda v: self._to_model(v.clone()) if isinstance(v, Tensor) else v, snapshot["memory"])
        self.generator.set_state(snapshot["random"].cpu())

    def reset(self) -> None:
        """Return to the source model."""
        self.restore(self.source_state)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what adapts beside the model's own state, and the source model; loads with ``weights_only=True``."""
        return {"now": self.snapshot(), "source": self.source_state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Keep a loaded state until the layers have loaded theirs, which restarts their moving averages."""
        self._check_state(state["now"])
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

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise if another kind of adapter saved this state. Called before anything changes."""
        if not isinstance(state, dict) or "method" not in state:
            raise ValueError("this is no snapshot of an adapter; snapshot() makes them.")
        others = state.get("estimators")
        if others is not None and others != self._estimators():
            raise ValueError(
                f"this state is of an adapter with {', '.join(others)} in its layers, and this one has"
                f" {', '.join(self._estimators())}; make it with the estimator of that one."
            )
        if state["method"] != self._name() or state["learned"].keys() != self.learned.keys():
            raise ValueError(
                f"this state is of {state['method']} with {len(state['learned'])} learned parameters, and the adapter"
                f" is {self._name()} with {len(self.learned)}; make it with the method, model and options of that one."
            )

    def _estimators(self) -> list[str]:
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
