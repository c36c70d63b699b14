"""Files of an adapter's state: what adapts, as safetensors, with what it fits.

A file has the tensors of the state, and as metadata a JSON text with everything else, a version and a checksum. It
holds no weights of the model but those that the method learns. Reading it runs no code of its author.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .. import fusion
from .._errors import abbreviate
from .._tensor_files import hash_tensors, read_tensors, write_tensors
from .._version import __version__
from ._check_state import check_images, check_loaded
from ._journal import exclusive

if TYPE_CHECKING:
    from ._state import Stateful

FORMAT = "medbn state"
VERSION = 1
"""Raised when a file of the version before can no longer be loaded."""


@dataclass(frozen=True)
class StateInfo:
    """What a file of a state is of."""

    saved: str
    """When it was written, in UTC."""
    medbn: str
    """The version of medbn that wrote it."""
    method: str
    """The class of the method."""
    method_version: int
    options: dict[str, Any]
    """The method's options that were given and that are numbers or strings."""
    model: str
    """The class of the model."""
    fingerprint: str
    """A hash of the source model's weights."""
    estimators: dict[str, str]
    """The estimator of each robust layer."""
    learned: int
    """How many numbers are learned."""
    images: int
    """How many images of users the file holds."""
    size: int
    """Of the file, in bytes."""


def state_info(path: str | Path) -> StateInfo:
    """Return what a file that ``tta.save`` wrote is of; a ValueError says why it is none."""
    path = _check_exists(path)
    facts, state = _read(path)
    try:
        return StateInfo(
            saved=str(facts["saved"]),
            medbn=str(facts["medbn"]),
            method=str(facts["method"]),
            method_version=int(facts["method_version"]),
            options=dict(facts["options"]),
            model=str(facts["model"]),
            fingerprint=str(facts["fingerprint"]),
            estimators={str(layer): str(name) for layer, name in facts["estimators"].items()},
            learned=sum(value.numel() for value in state["now"]["learned"].values()),
            images=int(facts["images"]),
            size=path.stat().st_size,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(path, "its description is incomplete") from error


def save_state(adapter: Stateful, path: str | Path, *, memory: bool) -> None:
    """Write the state of an adapter to a file, completely or not at all."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        problem = "is a folder" if path.is_dir() else f"cannot be written: the folder {str(path.parent)!r} is missing"
        raise ValueError(f"state {str(path)!r} {problem}; give a file in a folder that exists.")
    facts, state = _capture(adapter)
    if not memory:
        source = state["source"]["memory"]
        without = {name: source[name] for name in adapter.image_entries if name in source}
        state["now"] = {**state["now"], "memory": {**state["now"]["memory"], **without}}
    remembered = (state["now"]["memory"].get(name) for name in adapter.image_entries)
    images = sum(check_images("images in memory", value) for value in remembered if isinstance(value, dict))
    tensors: dict[str, Tensor] = {}
    tree = {part: _encode(_without_options(value), part, tensors) for part, value in state.items()}
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    content = json.dumps({**facts, "medbn": __version__, "saved": saved, "images": images, "state": tree})
    checksum = _checksum(content, tensors)
    write_tensors(path, tensors, {"format": FORMAT, "version": str(VERSION), "checksum": checksum, "content": content})


@exclusive
def _capture(adapter: Stateful) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the adapter is and its state, at one moment; other threads wait for this and not for the disk."""
    return _describe(adapter), {"now": adapter.snapshot(), "source": adapter.source_state}


def load_state(adapter: Stateful, path: str | Path) -> dict[str, Any]:
    """Return the state in a file, once it is known to fit the adapter; a ValueError says what does not."""
    path = _check_exists(path)
    facts, state = _read(path)
    own = _describe(adapter)
    layers, theirs = own["estimators"], facts.get("estimators")
    if facts.get("method") != own["method"]:
        raise _wrong(path, f"it is of the method {facts.get('method')!r}, and the adapter is {own['method']!r}")
    if facts.get("method_version") != own["method_version"]:
        raise _wrong(
            path,
            f"it is of version {facts.get('method_version')} of {own['method']}, and this is version"
            f" {own['method_version']}, whose numbers are others; adapt anew",
        )
    if not isinstance(theirs, dict) or theirs.keys() != layers.keys():
        raise _wrong(path, f"it is of another model ({facts.get('model')}), with other robust layers")
    different = [f"{n} ({theirs[n]}, here {layers[n]})" for n in layers if theirs[n] != layers[n]]
    if different:
        raise _wrong(path, f"layers have other estimators: {abbreviate(different)}; make the adapter with those")
    if facts.get("fingerprint") != own["fingerprint"]:
        raise _wrong(
            path,
            f"it is of a {facts.get('model')} with other weights (fingerprint {str(facts.get('fingerprint'))[:12]},"
            f" here {own['fingerprint'][:12]}); adapt the source model that it was saved with",
        )
    try:
        check_loaded(adapter, state)
    except ValueError as error:
        raise _wrong(path, str(error).rstrip(".")) from error
    return state


def source_fingerprint(adapter: Stateful) -> str:
    """Return a hash of the model's weights as they were before anything adapted."""
    source = adapter.source_state.get("learned", {})
    learned = {id(parameter): source[name] for name, parameter in adapter.learned.items() if name in source}
    state = adapter.model.state_dict(keep_vars=True)
    digest = hashlib.blake2b(digest_size=16)
    hash_tensors(digest, ((n, learned.get(id(v), v)) for n, v in sorted(state.items()) if isinstance(v, Tensor)))
    return digest.hexdigest()


def _describe(adapter: Stateful) -> dict[str, Any]:
    """Return what a state of the adapter fits, and what it was made with."""
    return {
        "method": type(adapter).__name__,
        "method_version": adapter.version,
        "options": {n: v for n, v in adapter.given_options.items() if _is_plain(v)},
        "model": fusion.class_of(adapter.model).__name__,
        "fingerprint": source_fingerprint(adapter),
        "estimators": {name: layer.estimator.name for name, layer in adapter.layers.items()},
    }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _without_options(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without the optimiser's options: an adapter that loads it keeps its own."""
    optimizer = state["optimizer"]
    if optimizer is None:
        return state
    groups = [{"params": group["params"]} for group in optimizer["param_groups"]]
    return {**state, "optimizer": {"state": optimizer["state"], "param_groups": groups}}


# --- reading and writing ----------------------------------------------------------------------------------------------


def _check_exists(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"state {str(path)!r}: the path {problem}; give a file that tta.save wrote.")
    return path


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the description and the state in a file."""
    try:
        tensors, metadata = read_tensors(path)
    except ValueError as error:
        raise _wrong(path, str(error)) from error
    if metadata.get("format") != FORMAT:
        raise _wrong(path, "it is no state of an adapter; tta.save writes those")
    if metadata.get("version") != str(VERSION):
        newer = metadata.get("version", "").isdecimal() and int(metadata["version"]) > VERSION
        advice = "update medbn" if newer else "adapt anew"
        raise _wrong(
            path, f"it has version {metadata.get('version')!r} of the format, and this medbn reads {VERSION}; {advice}"
        )
    content = metadata.get("content", "")
    if metadata.get("checksum") != _checksum(content, tensors):
        raise _wrong(path, "it is damaged: its checksum is not that of its content")
    try:
        facts = json.loads(content)
        state = {part: _decode(value, tensors) for part, value in facts["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _wrong(path, "its content is damaged") from error
    if not all(isinstance(state.get(part), dict) and "learned" in state[part] for part in ("now", "source")):
        raise _wrong(path, "its content is incomplete")
    return facts, state


def _wrong(path: Path, problem: str) -> ValueError:
    return ValueError(f"state {str(path)!r} is refused: {problem}. Nothing was loaded.")


def _checksum(content: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    hash_tensors(digest, sorted(tensors.items()))
    return digest.hexdigest()


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and add its tensors to ``tensors`` under names that begin with ``name``."""
    if isinstance(value, Tensor):
        while name in tensors:
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_key(k), _encode(v, f"{name}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        items = [_encode(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name} is a {type(value).__name__}, and a state is saved as tensors, numbers, strings, and lists and"
        " dictionaries of those; keep only such values in self.memory."
    )


def _key(key: Any) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise TypeError(f"a dictionary in a state has strings or whole numbers as keys, got {key!r}.")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what ``_encode`` was given."""
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    (kind, content) = next(iter(value.items()))
    decoders: dict[str, Callable[[], Any]] = {
        "tensor": lambda: tensors[content],
        "tuple": lambda: tuple(_decode(item, tensors) for item in content),
        "dict": lambda: {_key(key): _decode(item, tensors) for key, item in content},
    }
    return decoders[kind]()
