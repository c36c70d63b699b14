"""Weights in files: read without running anything they contain, checked before the model changes, identified.

Safetensors files hold nothing but tensors. Any other file goes through torch's restricted unpickler, and what that
refuses is refused here: a pickle can run whatever its author liked.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .normalise import Normalise, Normalised

# What training scripts and RobustBench put around a state_dict, and in front of its names.
_WRAPPERS = ("state_dict", "model", "net")
_PREFIXES = ("module.", "model.")
# RobustBench's names for the normalisation constants, each (1, channels, 1, 1), in the checkpoints that carry them.
_CONSTANTS = {"mu": "mean", "sigma": "std"}
_SAFE = ".safetensors"


def load(model: nn.Module, path: str | Path, strict: bool = True) -> str:
    """Load a file of weights into a model, and return the model's fingerprint.

    Args:
        model: what to load into; values take on the dtype and device of its parameters.
        path: a ``.safetensors`` file, or one that ``torch.save`` wrote. Wrappings (``{"state_dict": ...}``, names that
            begin with ``module.``) are taken off; normalisation constants (``mu``, ``sigma``) go where the model has
            its own.
        strict: refuse a file that lacks something of the model, or has more. Shapes must agree in any case.

    Whenever an error is raised, the model is as it was.
    """
    path = Path(path)
    core, normalise = _parts(model)
    found = _unwrapped(_read(path), core, path)
    expected = core.state_dict()
    constants = {}
    if normalise is not None:
        constants = {name: found.pop(name) for name in _CONSTANTS if name in found and name not in expected}
    for name, value in expected.items():
        # The counter came to torch after some of the checkpoints; as in torch, it is no reason to refuse them.
        if name.endswith("num_batches_tracked") and name.replace("num_batches_tracked", "running_var") in found:
            found.setdefault(name, torch.zeros_like(value))
    _check(type(core).__name__, path, found, expected, strict)
    targets = {name: getattr(normalise, _CONSTANTS[name]) for name in constants}
    _check("the normalisation", path, constants, targets, strict)
    core.load_state_dict(found, strict=strict)
    with torch.no_grad():
        for name, value in constants.items():
            targets[name].copy_(value)
    return fingerprint(model)


def save(model: nn.Module, path: str | Path, /, **metadata: object) -> None:
    """Write a model's weights to a ``.safetensors`` file, all of it or nothing.

    Normalisation constants go with them, since the weights mean nothing without; ``metadata`` is kept as strings.
    """
    path = Path(path)
    if path.suffix.lower() != _SAFE:
        raise ValueError(f"weights are saved as safetensors, got {str(path)!r}; give a name that ends in {_SAFE!r}.")
    _need_safetensors()
    from safetensors.torch import save as serialise

    core, normalise = _parts(model)
    tensors = {name: value for name, value in core.state_dict().items() if isinstance(value, Tensor)}
    if normalise is not None:
        for name, constant in _CONSTANTS.items():
            tensors.setdefault(name, getattr(normalise, constant))
    # Clones, because safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        # Not safetensors' save_file, whose files nobody but their owner may read.
        partial.write_bytes(serialise(tensors, {name: str(value) for name, value in metadata.items()}))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def metadata(path: str | Path) -> dict[str, str]:
    """What was noted when a ``.safetensors`` file was saved; empty if nothing was."""
    path = _existing(Path(path))
    _need_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise _no_safetensors(path, error) from error


def fingerprint(model: nn.Module) -> str:
    """32 hexadecimal digits that identify a model's weights: names, dtypes, shapes and bytes of its whole state.

    Normalisation constants count, since predictions depend on them; the device and the file of origin do not.
    """
    state = dict(model.state_dict())
    normalise = _parts(model)[1]
    if normalise is not None:
        state |= {f"normalise.{name}": getattr(normalise, name) for name in _CONSTANTS.values()}
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parts(model: nn.Module) -> tuple[nn.Module, Normalise | None]:
    """Whose names are in files, and where the constants are."""
    normalise = getattr(model, "normalise", None)
    core = model.model if isinstance(model, Normalised) else model
    return core, normalise if isinstance(normalise, Normalise) else None


def _existing(path: Path) -> Path:
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"weights {str(path)!r}: the path {what}; give the file of weights.")
    return path


def _read(path: Path) -> object:
    _existing(path)
    if path.suffix.lower() == _SAFE:
        _need_safetensors()
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise _no_safetensors(path, error) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a file that is no weights fails in as many ways as there are files
        named = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds objects, such as {named[1]}" if named else "torch's restricted unpickler could not read it"
        raise ValueError(
            f"weights {str(path)!r} are refused: {why}. Only tensors are read, because unpickling objects runs code of"
            " whoever wrote the file. If you trust it, convert it once, where it was made:"
            " torch.save(model.state_dict(), 'weights.pt'), or medbn.models.save(model, 'weights.safetensors')."
        ) from error


def _unwrapped(found: object, core: nn.Module, path: Path) -> dict[str, Any]:
    """The state_dict inside, under the names that the model uses."""
    for _ in _WRAPPERS:  # a bound, because a file can say that a dictionary is inside itself
        values = [found[key] for key in _WRAPPERS if key in found] if isinstance(found, Mapping) else []
        found = next((value for value in values if isinstance(value, Mapping)), found)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ValueError(
            f"weights {str(path)!r} hold a {type(found).__name__}; a state_dict, tensors by name, is expected."
        )
    state = dict(found)
    own = list(core.state_dict())
    for prefix in _PREFIXES:
        names = [name for name in state if name not in _CONSTANTS]
        if names and all(name.startswith(prefix) for name in names) and not any(n.startswith(prefix) for n in own):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _check(kind: str, path: Path, found: dict[str, Any], expected: Mapping[str, Any], strict: bool) -> None:
    """Raise one error with all that does not fit."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    wrong = [text for name in found if name in expected for text in _mismatch(name, found[name], expected[name])]
    problems = []
    if strict or (expected and len(missing) == len(expected)):
        problems += [f"missing: {_some(missing)}"] * bool(missing)
        problems += [f"unexpected: {_some(unexpected)}"] * bool(unexpected)
    problems += [f"different: {_some(wrong)}"] * bool(wrong)
    if problems:
        raise ValueError(
            f"weights {str(path)!r} do not fit {kind}; {'; '.join(problems)}. Check the model's name, classes= and"
            " channels=; nothing was loaded."
        )


def _mismatch(name: str, given: object, expected: object) -> list[str]:
    if not isinstance(expected, Tensor):
        return []
    if not isinstance(given, Tensor) or given.layout is not torch.strided or given.is_meta or given.is_quantized:
        return [f"{name} is a {type(given).__name__}, not a plain tensor"]
    if given.shape != expected.shape:
        return [f"{name} is {tuple(given.shape)}, expected {tuple(expected.shape)}"]
    if given.is_floating_point() != expected.is_floating_point() or given.is_complex() != expected.is_complex():
        return [f"{name} is {given.dtype}, expected {expected.dtype}"]
    return []


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _need_safetensors() -> None:
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        raise ImportError("safetensors is needed for this file of weights: pip install 'medbn[bench]'.") from error


def _no_safetensors(path: Path, error: Exception) -> ValueError:
    return ValueError(f"weights {str(path)!r} are no safetensors file, or only a part of one ({error}); get it again.")
