"""safetensors files: tensors by name and strings as metadata, read without running any code; hashes of tensors.

The library is imported at first use, because ``import medbn`` needs torch and numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ._errors import one_line
from ._files import replace_atomically


class Digest(Protocol):
    """A hash of ``hashlib``."""

    def update(self, data: Any, /) -> object:
        """Add bytes to what is hashed."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors to a safetensors file, completely or not at all."""
    from safetensors.torch import save

    # Clones, because safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with replace_atomically(path) as partial:
        partial.write_bytes(save(plain, dict(metadata)))  # not save_file, whose files only their owner may read


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file; a ValueError says what is wrong with its content."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = path.read_bytes()
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except SafetensorError as error:
        raise ValueError(f"it is not a complete safetensors file ({one_line(error, 200)})") from error
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:  # such as a dtype unknown to torch
        raise ValueError(f"it cannot be read ({one_line(error, 200)})") from error
    return tensors, dict(header.get("__metadata__") or {})


def hash_tensors(digest: Digest, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Add the names, dtypes, shapes and bytes of tensors to a hash; where they are does not matter."""
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
