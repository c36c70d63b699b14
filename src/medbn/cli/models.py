"""``medbn models``: list the models."""

from __future__ import annotations

import argparse

from ._terminal import format_table

SUMMARY = "list the models that `medbn train` and recipes know by name"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: none."""


def run(options: argparse.Namespace) -> None:
    """Print each model with its number of parameters, and how to name models of other libraries."""
    import torch

    from .. import models

    rows = []
    for name in models.available():
        with torch.device("meta"):  # only the shapes of the parameters are needed
            model = models.get(name)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rows.append((name, f"{parameters / 1e6:.2f} M"))
    print(format_table(("model", "parameters"), rows, right=(1,)))
    libraries = " or ".join(f"{library}:NAME" for library in models.LIBRARIES)
    print(f"\nmodels of other libraries: {libraries}, such as {next(iter(models.LIBRARIES))}:resnet50")
    print("a model of your own: MODULE:FUNCTION, a function build(classes, channels) that returns an nn.Module")
