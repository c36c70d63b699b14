"""Find robust layers that a ReLU follows in the forward of a module, and write a forward that calls both at once.

``torch.fx`` follows the forward of one module at a time, and none of its children's: whatever children do stays as it
is. The new forward is Python that calls the same children under the same names.

A forward that decides by what fx does not see is refused: by values (of which fx tells), by types of tensors, by
whether gradients are on, or by arguments that a caller may leave out. So is one that keeps anything in the module. What
a forward reads of the module's own attributes and of global variables is read once; ``module.Fused`` notices when an
attribute is set, and neither changes within one nor those of global variables.
"""

from __future__ import annotations

import inspect
import operator
import pickle
from collections import deque
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from .forward import FusedForward, child_names
from .layer import normalise_add_relu

_OF_TYPES = {"isinstance", "issubclass", "type", "hasattr", "is_tensor"}
_OF_MODES = {"is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled"}
DECIDING = frozenset({*_OF_TYPES, *_OF_MODES, "random"})
"""What a forward may ask without fx noticing."""
RELUS: dict[Any, bool] = {F.relu: False, torch.relu: False, "relu": False, torch.relu_: True, "relu_": True}
"""Functions and methods, and whether they overwrite their input."""
ADDITIONS: dict[Any, bool] = {operator.add: False, torch.add: False, "add": False, operator.iadd: True, "add_": True}


class UntraceableError(Exception):
    """Why the forward of a module cannot be followed."""


class _Proxy(fx.Proxy):
    """A value of a forward. To fx alone, ``y += x`` would be the same as ``y = y + x``, which overwrites nothing."""


def _overwrite(name: str) -> Any:
    def method(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"):
    setattr(_Proxy, f"__{_name}__", _overwrite(_name))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def trace(module: nn.Module, layers: Collection[nn.Module]) -> FusedForward | None:
    """Return a forward of a module that calls some of these layers together with the ReLU behind them.

    None if there is no such place in it. An UntraceableError says why its forward cannot be followed.
    """
    inputs = _count_inputs(module)
    name = _find_deciding_name(type(module))
    if name is not None:
        raise UntraceableError(f"its forward uses {name}")
    before = dict(vars(module))
    contents = {n: _copy_contents(v) for n, v in before.items() if isinstance(v, list | dict | set | deque)}
    module.training = False
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # of any kind: the forward runs without values
        raise UntraceableError(str(error).strip().split("\n")[0] or type(error).__name__) from error
    finally:
        changed = _restore(module, before, contents)
    if any(name.startswith("_tensor_constant") for name in changed):
        raise UntraceableError("its forward makes tensors of its own")
    if changed:
        raise UntraceableError(f"its forward sets {', '.join(sorted(changed))}")
    places = [place for node in list(graph.nodes) for place in _places(module, node, layers)]
    for place in places:
        _replace(graph, place)
    if not places:
        return None
    for node in graph.nodes:
        node.type = None  # annotations may be strings
    code = graph.python_code("self")
    fused = tuple(str(place.layer.target) for place in places)
    forward = FusedForward(code.src, dict(code.globals), inputs, fused, child_names(module))
    try:
        pickle.dumps(forward)
    except Exception as error:
        raise UntraceableError(f"its forward calls what cannot be pickled: {error}") from error
    return forward


def _count_inputs(module: nn.Module) -> int:
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if any(p.default is not p.empty or p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise UntraceableError("its forward has optional arguments")
    return len(parameters)


def _find_deciding_name(kind: type[nn.Module]) -> str | None:
    """Return a name of ``DECIDING`` that the forward uses, itself or in other methods of the class; None for none."""
    functions: list[Any] = [inspect.unwrap(kind.forward)]
    for function in functions:
        names = set(_names_in(function.__code__)) if isinstance(function, FunctionType) else {"other than Python"}
        if not isinstance(function, FunctionType) or names & DECIDING:
            return min(names & DECIDING or names)
        methods = (getattr(kind, name, None) for name in sorted(names) if not hasattr(nn.Module, name))
        functions += [m for m in methods if isinstance(m, FunctionType) and m not in functions]
    return None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _copy_contents(value: Any) -> list[Any]:
    return list(value.items() if isinstance(value, dict) else value)


def _restore(module: nn.Module, before: dict[str, Any], contents: dict[str, list[Any]]) -> set[str]:
    """Undo what a forward, or fx, has set in a module; return the names of what that was."""
    own, changed = vars(module), set()
    for name in {*own, *before}:
        if name not in before:
            changed.add(name)
            del own[name]
        elif own.get(name) is not before[name]:
            changed.add(name)
            own[name] = before[name]
    for name, items in contents.items():
        container = before[name]
        if list(map(_identify, _copy_contents(container))) != list(map(_identify, items)):
            changed.add(name)
            container.clear()
            container.extend(items) if isinstance(container, list | deque) else container.update(items)
    return changed - {"training"}


def _identify(item: Any) -> Any:
    return tuple(map(id, item)) if isinstance(item, tuple) else id(item)


# --- places in a graph ------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    layer: fx.Node
    addition: fx.Node | None
    residual: fx.Node | None
    relu: fx.Node
    relu_in_place: bool


def _places(module: nn.Module, relu: fx.Node, layers: Collection[nn.Module]) -> Iterator[_Place]:
    """Yield the place that ends at a node, if it is a ReLU behind one of the layers."""
    in_place = _relu_in_place(module, relu)
    if in_place is None:
        return
    (value,) = relu.args[:1]
    if not isinstance(value, fx.Node) or len(value.users) > 1:
        return
    if _is_layer(module, value, layers):
        if not _used_between(value.args[0], value, relu):
            yield _Place(value, None, None, relu, in_place)
        return
    if value.op not in ("call_function", "call_method") or value.target not in ADDITIONS:
        return
    if len(value.args) != 2 or value.kwargs:
        return
    pairs = [value.args] if ADDITIONS[value.target] else [value.args, value.args[::-1]]
    for layer, residual in pairs:
        if not isinstance(layer, fx.Node) or not isinstance(residual, fx.Node) or layer is residual:
            continue
        if len(layer.users) > 1 or not _is_layer(module, layer, layers):
            continue
        if not _used_between(layer.args[0], layer, relu, value) and not _used_between(residual, value, relu):
            yield _Place(layer, value, residual, relu, in_place)
            return


def _relu_in_place(module: nn.Module, node: fx.Node) -> bool | None:
    """Return whether a ReLU overwrites its input; None if the node is no ReLU."""
    if not node.args:
        return None
    if node.op == "call_module":
        kind = module.get_submodule(str(node.target))
        return bool(kind.inplace) if type(kind) is nn.ReLU and len(node.args) == 1 and not node.kwargs else None
    if node.op not in ("call_function", "call_method") or node.target not in RELUS:
        return None
    options = dict(zip(("input", "inplace"), node.args, strict=False)) | dict(node.kwargs)
    in_place = options.pop("inplace", RELUS[node.target])
    return in_place if isinstance(in_place, bool) and set(options) == {"input"} else None


def _is_layer(module: nn.Module, node: fx.Node, layers: Collection[nn.Module]) -> bool:
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        return False
    return module.get_submodule(str(node.target)) in layers


def _used_between(value: Any, first: fx.Node, last: fx.Node, *but: fx.Node) -> bool:
    """Return whether something uses a value between two nodes, and so might overwrite it there."""
    order = {node: number for number, node in enumerate(first.graph.nodes)}
    users = (user for user in value.users if user not in but)
    return any(order[first] < order[user] < order[last] for user in users)


def _replace(graph: fx.Graph, place: _Place) -> None:
    """Put one call in the place of two or three."""
    layer, addition, residual, relu, relu_in_place = place
    with graph.inserting_before(relu):
        activation = graph.get_attr(str(relu.target)) if relu.op == "call_module" else None
        owner = graph.get_attr(str(layer.target))
        adds_in_place = addition is not None and ADDITIONS[addition.target]
        arguments = (owner, layer.args[0], residual, activation, adds_in_place, relu_in_place)
        call = graph.call_function(normalise_add_relu, arguments)
    relu.replace_all_uses_with(call)
    for node in (relu, addition, layer):
        if node is not None:
            graph.erase_node(node)
