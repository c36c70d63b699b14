"""Files of weights: read without executing what they contain, checked before the model changes, identified by a hash.

A safetensors file holds nothing but tensors. Other files are read by torch's restricted unpickler, and refused if it
refuses them, because unpickling can execute code of the file's author.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import abbreviate, one_line
from .._tensor_files import hash_tensors, read_tensors, write_tensors
from .input_normalisation import InputNormalisation, NormalisedModel

# The keys under which training scripts and RobustBench store a state_dict, and the prefixes of its names.
_WRAPPERS = ("state_dict", "model", "net")
_PREFIXES = ("module.", "model.")
# RobustBench's names for the normalisation constants, each (1, channels, 1, 1), in the checkpoints that have them.
_CONSTANTS = {"mu": "mean", "sigma": "std"}
_SAFE = ".safetensors"


def load(model: nn.Module, path: str | Path, strict: bool = True) -> str:
    """Load a file of weights into a model, and return the model's fingerprint.

    Wrappers (``{"state_dict": ...}``, names that begin with ``module.``) are removed. Normalisation constants (``mu``,
    ``sigma``) are loaded into the model's input normalisation. After an error, the model is unchanged.

    Args:
        model: what to load into; values are converted to the dtype and device of its parameters.
        path: a ``.safetensors`` file, or one that ``torch.save`` wrote.
        strict: refuse a file with missing or unexpected names. Shapes must agree in any case.
    """
    path = Path(path)
    core, normalise = _split(model)
    state = _unwrap(_read(path), core, path)
    expected = core.state_dict()
    constants = {}
    if normalise is not None:
        constants = {name: state.pop(name) for name in _CONSTANTS if name in state and name not in expected}
    for name, value in expected.items():
        # torch added this counter after some of the checkpoints were written; like torch, accept them without it.
        if name.endswith("num_batches_tracked") and name.replace("num_batches_tracked", "running_var") in state:
            state.setdefault(name, torch.zeros_like(value))
    _check(type(core).__name__, path, state, expected, strict)
    targets = {name: getattr(normalise, _CONSTANTS[name]) for name in constants}
    _check("the normalisation", path, constants, targets, strict)
    _check_values(path, state, expected)
    _check_values(path, constants, targets)
    core.load_state_dict(state, strict=strict)
    with torch.no_grad():
        for name, value in constants.items():
            targets[name].copy_(value)
    return fingerprint(model)


def save(model: nn.Module, path: str | Path, /, **metadata: object) -> None:
    """Write a model's weights to a ``.safetensors`` file, completely or not at all.

    Args:
        model: its state is saved with its normalisation constants, without which the weights would be useless.
        path: the file; its folder is created if necessary.
        metadata: stored in the file as strings, after the model's ``settings`` if it has any: the options without which
            its weights mean something else, which ``get`` reads again.
    """
    path = Path(path)
    if path.suffix.lower() != _SAFE:
        raise ValueError(f"weights are saved as safetensors, got {str(path)!r}; give a name that ends in {_SAFE!r}.")
    core, normalise = _split(model)
    tensors = {name: value for name, value in core.state_dict().items() if isinstance(value, Tensor)}
    if normalise is not None:
        for name, constant in _CONSTANTS.items():
            tensors.setdefault(name, getattr(normalise, constant))
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {**getattr(core, "settings", {}), **metadata}
    write_tensors(path, tensors, {name: str(value) for name, value in facts.items()})


def metadata(path: str | Path) -> dict[str, str]:
    """Return the metadata of a ``.safetensors`` file."""
    path = _check_file(Path(path))
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        problem = f"it is not a complete safetensors file ({one_line(error, 200)})"
        raise ValueError(f"weights {str(path)!r}: {problem}; get the file again.") from error


def fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's weights, 32 hexadecimal digits: of names, dtypes, shapes and bytes of its whole state.

    Normalisation constants and the model's ``settings`` are included, since predictions depend on them; the device and
    the file are not.
    """
    state = dict(model.state_dict())
    core, normalise = _split(model)
    if normalise is not None:
        state |= {f"normalise.{name}": getattr(normalise, name) for name in _CONSTANTS.values()}
    settings = getattr(core, "settings", None)
    digest = hashlib.blake2b(repr(sorted(settings.items())).encode() if settings else b"", digest_size=16)
    hash_tensors(digest, ((name, value) for name, value in sorted(state.items()) if isinstance(value, Tensor)))
    return digest.hexdigest()


def _split(model: nn.Module) -> tuple[nn.Module, InputNormalisation | None]:
    """Return the module whose names files use, and the input normalisation, if any."""
    normalise = getattr(model, "normalise", None)
    core = model.model if isinstance(model, NormalisedModel) else model
    return core, normalise if isinstance(normalise, InputNormalisation) else None


def _check_file(path: Path) -> Path:
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"weights {str(path)!r}: the path {problem}; give the file of weights.")
    return path


def _read(path: Path) -> object:
    """Return the content of a file of weights."""
    _check_file(path)
    if path.suffix.lower() == _SAFE:
        try:
            return read_tensors(path)[0]
        except ValueError as error:
            raise ValueError(f"weights {str(path)!r}: {error}; get the file again.") from error
    _refuse_compressed(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a file that does not hold weights raises errors of many types
        refused = re.search(r"GLOBAL (\S+)", str(error))
        reason = (
            f"it holds objects, such as {refused[1]}" if refused else "torch's restricted unpickler could not read it"
        )
        raise ValueError(
            f"weights {str(path)!r} are refused: {reason}. Only tensors are read, because unpickling objects runs code"
            " of the file's author. If you trust the file, convert it once, where it was made:"
            " torch.save(model.state_dict(), 'weights.pt'), or medbn.models.save(model, 'weights.safetensors')."
        ) from error


def _refuse_compressed(path: Path) -> None:
    """Raise an error for a zip archive that holds more than its size; torch writes them without compression."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error):
        return  # torch reads files of other formats, and refuses damaged ones
    if total > path.stat().st_size:
        raise ValueError(f"weights {str(path)!r} are refused: they are compressed, {total} bytes in a smaller file.")


def _unwrap(content: object, core: nn.Module, path: Path) -> dict[str, Any]:
    """Return the state_dict in a file's content, under the names that the model uses."""
    for _ in _WRAPPERS:  # bounded, because a dictionary in a file can contain itself
        values = [content[key] for key in _WRAPPERS if key in content] if isinstance(content, Mapping) else []
        content = next((value for value in values if isinstance(value, Mapping)), content)
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ValueError(
            f"weights {str(path)!r} hold a {type(content).__name__}; expected a state_dict, which is tensors by name."
        )
    state = dict(content)
    expected = list(core.state_dict())
    for prefix in _PREFIXES:
        names = [name for name in state if name not in _CONSTANTS]
        if (
            names
            and all(name.startswith(prefix) for name in names)
            and not any(name.startswith(prefix) for name in expected)
        ):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _check(kind: str, path: Path, state: dict[str, Any], expected: Mapping[str, Any], strict: bool) -> None:
    """Raise one error that lists every name, shape and dtype that does not fit."""
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    different = [
        problem for name in state if name in expected for problem in _mismatch(name, state[name], expected[name])
    ]
    problems = []
    if strict or (expected and len(missing) == len(expected)):
        problems += [f"missing: {abbreviate(missing)}"] * bool(missing)
        problems += [f"unexpected: {abbreviate(unexpected)}"] * bool(unexpected)
    problems += [f"different: {abbreviate(different)}"] * bool(different)
    if problems:
        raise ValueError(
            f"weights {str(path)!r} do not fit {kind}; {'; '.join(problems)}. Check the model's name, classes= and"
            " channels=; nothing was loaded."
        )


def _mismatch(name: str, value: object, expected: object) -> list[str]:
    if not isinstance(expected, Tensor):
        return []
    plain = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
    if not isinstance(value, Tensor) or not plain or value.is_meta or value.is_quantized:
        return [f"{name} is a {type(value).__name__}, not a plain tensor"]
    if value.shape != expected.shape:
        return [f"{name} is {tuple(value.shape)}, expected {tuple(expected.shape)}"]
    if value.is_floating_point() != expected.is_floating_point() or value.is_complex() != expected.is_complex():
        return [f"{name} is {value.dtype}, expected {expected.dtype}"]
    return []


def _check_values(path: Path, state: dict[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise one error that lists the tensors with values that no trained model has."""
    problems = []
    for name, own in expected.items():
        if name not in state or not isinstance(own, Tensor) or own.is_meta:
            continue
        value = state[name].detach().to("cpu", own.dtype)
        # A constant of the architecture may be infinite, such as the mask of an attention.
        if not bool(value.isfinite().all()) and bool(own.isfinite().all()):
            problems.append(f"{name} has values that are not finite")
        elif name.endswith("running_var") and bool((value < 0).any()):
            problems.append(f"{name} has negative variances")
        elif name in _CONSTANTS and _CONSTANTS[name] == "std" and bool((value <= 0).any()):
            problems.append(f"{name} has values that are not positive")
    if problems:
        raise ValueError(
            f"weights {str(path)!r} are damaged: {abbreviate(problems)}. Get the file again; nothing was loaded."
        )
