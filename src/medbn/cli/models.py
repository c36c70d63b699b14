"""``medbn models``: list the models, and get weights of some of them."""

from __future__ import annotations

import argparse

from ._arguments import add_root
from ._completion import complete, weights_names
from ._terminal import format_table, show_progress

SUMMARY = "list the models that `medbn train` and recipes know by name, and get weights"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command; without one, it lists the models."""
    parser.epilog = "examples:\n  medbn models\n  medbn models fetch resnet26-cifar10 --from weights"
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    actions.add_parser("list", help="list the models and the weights (the default)").set_defaults(run=list_models)
    action = actions.add_parser("fetch", help="get weights, verify them and put them into the data folder")
    complete(action.add_argument("name", metavar="NAME", help="weights that `medbn models` lists"), weights_names)
    action.add_argument(
        "--from", dest="source", metavar="SOURCE", help="a folder or an http address that has the file of weights"
    )
    add_root(action)
    action.set_defaults(run=fetch)
    parser.set_defaults(run=list_models)


def list_models(options: argparse.Namespace) -> None:
    """Print each model with its number of parameters, how to name models of other libraries, and the weights."""
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
    print("a model of your own: MODULE:FUNCTION, a function build(classes, channels) that returns an nn.Module\n")
    known = [(w.name, w.model, f"{w.size / 1e6:.0f} MB", w.accuracy) for w in models.WEIGHTS.values()]
    print(format_table(("weights", "model", "size", "correct"), known, right=(2,)))
    print("\nget them: medbn models fetch NAME")


def fetch(options: argparse.Namespace) -> None:
    """Get a file of weights, verify it and put it into the data folder."""
    from .. import models

    with show_progress(options.name, unit="bytes") as bar:
        path = models.fetch(options.name, options.root, source=options.source, progress=bar.update)
    print(f"{options.name} is in {path}, verified")
