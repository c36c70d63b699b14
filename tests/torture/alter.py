"""Random alterations of files and of nested values."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor


def alter_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return a file's content with one random alteration, or with several."""
    altered = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(max(1, len(altered)))
        match rng.randrange(8):
            case 0 | 1 if altered:
                altered[place] ^= 1 << rng.randrange(8)
            case 2 if altered:
                altered[place] = rng.choice([0, 0xFF, 0x7F, 0x80, 0x0A])
            case 3:
                span = rng.randint(1, 64)
                altered[place : place + span] = rng.randbytes(span)
            case 4:
                del altered[place:]
            case 5:
                del altered[place : place + rng.randint(1, 64)]
            case 6:
                altered[place:place] = rng.randbytes(rng.randint(1, 64))
            case _:
                other = rng.randrange(max(1, len(altered)))
                altered[place : place + 64] = altered[other : other + 64]
    return bytes(altered)


JUNK = [None, True, -1, 0, 10**9, -1e9, 0.5, float("nan"), float("inf"), "", "x", [], {}, [1.0], {"x": 1}]


def alter_value(rng: random.Random, value: Any) -> Any:
    """Return a copy of nested dictionaries, lists and tuples in which one thing differs."""
    value = copy.deepcopy(value)
    paths = [path for path, _ in _walk((), value) if path]
    path = rng.choice(paths)
    return _replace(rng, value, path)


def _walk(path: tuple[Any, ...], value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    pairs = [(path, value)]
    if isinstance(value, dict):
        for key, item in value.items():
            pairs += _walk((*path, key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            pairs += _walk((*path, index), item)
    return pairs


def _replace(rng: random.Random, value: Any, path: tuple[Any, ...]) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        value = dict(value)
        if not rest and rng.random() < 0.15:
            del value[key]
        elif not rest and rng.random() < 0.1:
            value[rng.choice(["x", 7, f"{key}."])] = value[key]
        else:
            value[key] = _replace(rng, value[key], rest) if rest else alter_leaf(rng, value[key])
        return value
    items = list(value)
    if not rest and rng.random() < 0.15:
        del items[key]
    else:
        items[key] = _replace(rng, items[key], rest) if rest else alter_leaf(rng, items[key])
    return type(value)(items)


def alter_leaf(rng: random.Random, value: Any) -> Any:
    """Return something else for one value: for a tensor, mostly another tensor."""
    if not isinstance(value, Tensor) or rng.random() < 0.1:
        return rng.choice(JUNK)
    if value.is_floating_point() and value.numel() and rng.random() < 0.5:
        altered = value.clone()
        altered.view(-1)[rng.randrange(value.numel())] = rng.choice([float("nan"), float("inf"), -1.0, -1e-3, 2.0])
        return altered
    dtypes = [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]
    return rng.choice(
        [
            value.to(rng.choice(dtypes)),
            value.flatten()[:-1],
            value.unsqueeze(0),
            torch.cat([value.flatten(), value.flatten()]),
            value.new_empty(0),
            value.to("meta"),
        ]
    )
