"""The rules about state: one value holds everything that adapts, in memory and on disk.

``snapshot`` and ``restore`` give the same bits; ``reset`` returns to the source model; ``state_dict`` carries the same,
and the source model, through a file.
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
    """A model and what adapts of it: learned parameters, moving averages, the optimiser, a memory, a generator.

    The memory is a dictionary of tensors, numbers, strings, and lists and dictionaries of those.
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
        self._loaded: dict[str, Any] | None = None
        self.register_load_state_dict_post_hook(_use_loaded)  # type: ignore[no-untyped-call]

    def snapshot(self) -> dict[str, Any]:
        """Everything that adapts, as it is now, in one value for ``restore``."""
        learned = {name: p.detach().clone() for name, p in self.learned.items()}
        averages = {
            n: (layer.ema_mean, layer.ema_var) for n, layer in self.layers.items() if layer.ema_mean is not None
        }
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        rest = {"averages": averages, "optimizer": optimizer, "memory": self.memory}
        copied: dict[str, Any] = tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, rest)
        made = {"method": self._name(), "estimators": self._estimators()}
        return {**made, "learned": learned, **copied, "random": self.generator.get_state()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to a snapshot; what follows is then the same, to the bit."""
        self._check_state(snapshot)
        with torch.no_grad():
            for name, parameter in self.learned.items():
                parameter.copy_(snapshot["learned"][name])
        self._set_rest(snapshot)

    def reset(self) -> None:
        """Return to the source model."""
        self.restore(self.source_state)

    def get_extra_state(self) -> dict[str, Any]:
        """What adapts beside the model's own state, and the source model; loads with ``weights_only=True``."""
        return {"now": self.snapshot(), "source": self.source_state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Keep what ``load_state_dict`` found until the layers have loaded, which restarts their averages."""
        self._check_state(state["now"])
        self._loaded = state

    def _use_loaded(self) -> None:
        if self._loaded is None:
            return
        state, self._loaded = self._loaded, None
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        if any(parameters[name] is not p for name, p in self.learned.items()):  # load_state_dict(assign=True)
            self.learned = {name: cast(Parameter, parameters[name].requires_grad_(True)) for name in self.learned}
            if self.optimizer is not None:
                self.optimizer.param_groups[0]["params"] = list(self.learned.values())
        self.source_state = tree_map(self._moved, state["source"])
        self.restore(state["now"])

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuse what another adapter has saved, before anything has changed."""
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
        """The names of the estimators in the layers: what defends the model, and no state may change unseen."""
        return sorted({layer.estimator.name for layer in self.layers.values()})

    def _name(self) -> str:
        return type(self).__name__

    def _set_rest(self, state: dict[str, Any]) -> None:
        for name, (mean, var) in state["averages"].items():
            layer = self.layers[name]
            layer.ema_mean, layer.ema_var = (s.clone().to(layer.running_mean) for s in (mean, var))
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.memory = tree_map(lambda v: self._moved(v.clone()) if isinstance(v, Tensor) else v, state["memory"])
        self.generator.set_state(state["random"].cpu())

    def _moved(self, value: Any) -> Any:
        """A saved tensor where the model is now, in its precision."""
        like = next(iter((*self.model.parameters(), *self.model.buffers())), None)
        if not isinstance(value, Tensor) or like is None:
            return value
        full = (torch.float32, torch.float64)
        return value.to(like.device, like.dtype if value.dtype in full and like.dtype in full else value.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Stateful:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = (tree_map(lambda v: fn(v) if isinstance(v, Tensor) else v, s) for s in (self.memory, self.source_state))
        self.memory, self.source_state = moved
        if self.optimizer is not None:
            for parameter, state in self.optimizer.state.items():
                state = {k: fn(v) if isinstance(v, Tensor) and k != "step" else v for k, v in state.items()}
                self.optimizer.state[parameter] = state
        return self


def _use_loaded(adapter: Any, keys: Any) -> None:
    """Set what ``load_state_dict`` found beside the model's own state, now that the layers have theirs."""
    adapter._use_loaded()
