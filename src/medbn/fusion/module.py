"""Modules whose forward has fewer operations, and back.

A module changes its class, as robust layers do, and stays the same object: its children, parameters, hooks, names and
``state_dict`` are what they were. It runs the fused forward in eval(), called with as many tensors as its own forward
takes, and not inside ``torch.compile``; else its own.
"""

from __future__ import annotations

import copyreg
import functools
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..layers import RobustBatchNorm
from .forward import CONTAINERS, FusedForward
from .trace import UntraceableError, trace

_log = logging.getLogger("medbn")


class Fused(nn.Module):
    """A module with a fused forward. Its class derives from this and from the class that it had.

    The fused forward is gone for good once an attribute is set, because its own may then decide otherwise; but not
    where a child replaces another of its class. It does not run while children are missing or more have been added.
    """

    original: ClassVar[type[nn.Module]]
    _fused: tuple[FusedForward, ...] = ()  # of a slice of an nn.Sequential, which is made with the class of the whole
    """The fused forward, or nothing; in a tuple, so that a captured CUDA graph notices a change (``Guard``)."""

    def __setattr__(self, name: str, value: Any) -> None:
        old = vars(self).get("_modules", {}).get(name)
        if name != "training" and not (isinstance(value, nn.Module) and type(value) is type(old)):
            vars(self)["_fused"] = ()
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced
        return _new, (type(self).original, *reduced[1][1:]), *reduced[2:]


def _new(original: type[nn.Module], *arguments: Any) -> nn.Module:
    kind = _fused_class(original)
    return kind.__new__(kind, *arguments)


_classes: dict[type[nn.Module], type[Fused]] = {}


def _fused_class(original: type[nn.Module]) -> type[Fused]:
    """Return the class with the name ``Fused…``, whose modules run their fused forward."""
    if original in _classes:
        return _classes[original]

    @functools.wraps(original.forward)
    def forward(self: Fused, *inputs: Any, **named: Any) -> Any:
        fused = self._fused
        if not fused or named or self.training or torch.compiler.is_compiling():
            return original.forward(self, *inputs, **named)
        other_inputs = len(inputs) != fused[0].inputs or any(type(x) is not Tensor for x in inputs)
        if other_inputs or not fused[0].fits(self):
            return original.forward(self, *inputs)
        return fused[0].run(self, *inputs)

    members = {"forward": forward, "original": original, "__module__": original.__module__, "__doc__": original.__doc__}
    return _classes.setdefault(original, type(f"Fused{original.__name__}", (Fused, original), members))


# --- models -----------------------------------------------------------------------------------------------------------


def find(model: nn.Module, layers: Collection[nn.Module]) -> dict[nn.Module, FusedForward]:
    """Return the modules of a model in which a ReLU follows some of the layers, with their fused forwards.

    Nothing is changed. A ValueError says why if there is none, in a model that has none yet. While ``torch.fx`` follows
    a forward, which takes milliseconds, no other thread may call any module.
    """
    found, reasons = {}, {}
    for name, module in _parents(model, layers):
        try:
            forward = trace(module, layers)
            _fused_class(type(module))
        except (UntraceableError, TypeError) as error:
            reasons[name] = str(error)
        else:
            if forward is not None:
                found[module] = forward
    for name, reason in reasons.items():
        _log.debug("%s (%s) is not fused: %s", name or "the model", type(model.get_submodule(name)).__name__, reason)
    if not found and not fused_layers(model):
        kind = type(model).__name__
        untraced = (f" {name or kind!r}, for one, cannot be followed: {why}." for name, why in reasons.items())
        raise ValueError(
            f"fuse=True finds no robust layer in {kind} that a ReLU follows in the forward of the same module, with or"
            f" without an addition between.{next(untraced, '')} Leave fuse out."
        )
    return found


def fuse(model: nn.Module, forwards: Mapping[nn.Module, FusedForward]) -> None:
    """Let modules of a model run these forwards."""
    for module, forward in forwards.items():
        module.__class__ = _fused_class(type(module))
        vars(module)["_fused"] = (forward,)
    count = sum(isinstance(module, RobustBatchNorm) for module in model.modules())
    _log.info("%d of %d robust layers are fused with the ReLU behind them", len(fused_layers(model)), count)


def unfuse(model: nn.Module) -> None:
    """Let all modules of a model run their own forward again."""
    fused = {name: module for name, module in model.named_modules() if isinstance(module, Fused)}
    for name, module in fused.items():
        if hasattr(module, "parametrizations"):
            raise ValueError(f"module {name!r} is parametrised; remove its parametrisations first.")
    for module in fused.values():
        module.__class__ = module.original  # type: ignore[assignment]
        vars(module).pop("_fused", None)


def fused_layers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the layers that ``convert(model, fuse=True)`` fused with the ReLU behind them."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    names = []
    for name, module in model.named_modules():
        for forward in module._fused if isinstance(module, Fused) else ():
            if not forward.fits(module):
                continue
            names += [f"{name}.{layer}" if name else layer for layer in forward.layers]
    return tuple(names)


def class_of(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, or the one that it had before it was fused."""
    return module.original if isinstance(module, Fused) else type(module)


def _parents(model: nn.Module, layers: Collection[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose own forward may call one of the layers, with their names."""
    for name, module in model.named_modules():
        special = isinstance(module, (Fused, RobustBatchNorm, torch.jit.ScriptModule, torch.fx.GraphModule))
        if special or "forward" in vars(module) or hasattr(module, "parametrizations"):
            continue
        if any(child in layers for child in _reachable(module)):
            yield name, module


def _reachable(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children, and those in containers, which a forward may call one by one."""
    for child in module.children():
        yield child
        if isinstance(child, CONTAINERS):
            yield from _reachable(child)
