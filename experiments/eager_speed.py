"""What does the defence cost in eager code, as users call it? Wall time of a batch, and host time of a layer.

    python experiments/eager_speed.py --out results/eager-speed-h200 --budget 1200

Measures TeBN, TENT and ``past`` on two models in both layouts, with ``mean``, ``median`` and ``image_median``, launched
by Triton and by the CUDA driver (``MEDBN_LAUNCH``), replayed as CUDA graphs, and with BatchNorm and ReLU in one kernel
(``fuse``), by the last launcher and as a graph. Before that, what one layer costs the host, beside ``F.batch_norm`` and
one Triton launch.

All candidates of a case take turns in one process. A ratio compares two neighbouring calls: the candidate's, and the
same method's with ``mean``, eager. ``--budget`` is in seconds: cases share what is left equally, and each is written to
FOLDER as soon as it is done. Weights are random, and TENT's steps too small to change them; that takes the same time.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import medbn
from medbn import cli, models
from medbn.bench import Place, machine_facts

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
MODELS = ["resnet26@200x32", "torchvision:resnet50@64x224"]
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "tebn": ("", {}),
    "tent": ("", {"lr": 1e-12}),
    "past": ("@0.5", {"two_pass_batches": 0}),
}
"""What follows the name of an estimator, and the method's options."""
ESTIMATORS = ("median", "image_median")
SHAPES = {"small": (64, 64, 4, 4), "large": (32, 64, 32, 32)}
"""A layer whose channels fit into registers, and one whose channels do not."""


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the record and its table")
    parser.add_argument("--budget", type=float, default=1200.0, metavar="SECONDS", help="default: 1200")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME@BxS", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--launchers", nargs="+", metavar="L", help="of triton and driver; default: both, on a GPU")
    parser.add_argument("--rounds", type=cli.positive_int, default=60, help="the most rounds of a case (default: 60)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.launchers = options.launchers or default_launchers(options.device)
    cases = [(parse_model(text), layout) for text in options.models for layout in options.layouts]
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.budget
    place = Place(device=options.device)
    record: dict[str, Any] = {"facts": machine_facts(place), "launchers": options.launchers, "finished": False}
    record |= {"host": [], "batches": []}
    for estimator in ("mean", *ESTIMATORS):
        record["host"] += measure_host(estimator, options.device, options.launchers)
        write(record, options.out)
    for number, ((name, images, size), layout) in enumerate(cases):
        share = (end - time.monotonic()) / (len(cases) - number)
        until = time.monotonic() + max(share, 0.0)
        record["batches"] += measure_batches(name, images, size, layout, options, until)
        write(record, options.out)
    record["finished"] = True
    write(record, options.out)
    print((options.out / "eager-speed.txt").read_text(encoding="utf-8"), end="")


def parse_model(text: str) -> tuple[str, int, int]:
    """Return the model, the images of a batch and their size in pixels, of ``NAME@BxS``."""
    name, _, numbers = text.rpartition("@")
    images, _, size = numbers.partition("x")
    if not (name and images.isdecimal() and size.isdecimal() and int(images) and int(size)):
        raise ValueError(f"a model is NAME@BxS, like resnet26@200x32; got {text!r}.")
    if name.startswith("torchvision:") and importlib.util.find_spec("torchvision") is None:
        name = name.removeprefix("torchvision:")  # ours has the same layers
    return name, int(images), int(size)


def default_launchers(device: str) -> list[str]:
    """Return who can launch kernels; nobody has to on a CPU."""
    return ["triton", "driver"] if torch.device(device).type == "cuda" else ["c"]


@contextmanager
def launched_by(launcher: str) -> Iterator[None]:
    """Let Triton or the CUDA driver launch."""
    if launcher == "c":
        yield
        return
    from medbn.kernels.triton import program

    with program.use_launcher(launcher):
        yield


# --- the host's time for a layer --------------------------------------------------------------------------------------


def measure_host(estimator: str, device: str, launchers: list[str]) -> list[dict[str, Any]]:
    """Return the host's microseconds for one call of a layer, forward, and forward and backward."""
    rows = []
    cuda = torch.device(device).type == "cuda"
    for kind, shape in SHAPES.items():
        x = torch.randn(shape, device=device)
        g, leaf = torch.randn_like(x), x.clone().requires_grad_()
        weight, bias = (torch.ones(shape[1], device=device, requires_grad=True) for _ in range(2))
        layer = medbn.RobustBatchNorm2d(shape[1], estimator=estimator, device=device).eval()

        def torch_norm(x: torch.Tensor, weight: torch.Tensor = weight, bias: torch.Tensor = bias) -> torch.Tensor:
            return F.batch_norm(x, None, None, weight, bias, training=True)

        norms = {"F.batch_norm": (torch_norm, (weight, bias))} if estimator == "mean" else {}
        norms[estimator] = (layer, (layer.weight, layer.bias))
        for name, (norm, parameters) in norms.items():
            plain = name in ("F.batch_norm", "mean")
            for launcher in ["torch"] if plain else launchers:
                with nullcontext() if plain else launched_by(launcher):

                    def forward(norm: Any = norm, x: torch.Tensor = x) -> None:
                        with torch.no_grad():
                            norm(x)

                    def both(norm: Any = norm, p: Any = parameters, leaf: Any = leaf, g: Any = g) -> None:
                        torch.autograd.grad(norm(leaf), (leaf, *p), g)

                    for direction, call in (("forward", forward), ("forward + backward", both)):
                        row = {"what": name, "shape": shape, "channels": kind, "launcher": launcher}
                        rows.append({**row, "direction": direction, "us": host_times(call, cuda)})
    if estimator == "mean":
        rows += [{"what": what, "us": host_times(call, cuda)} for what, call in yardsticks(device)]
    return rows


def host_times(call: Callable[[], object], cuda: bool, calls: int = 30, rounds: int = 15) -> list[float]:
    """Return the host's microseconds for a call, once per round; so few calls that the GPU's queue is never full."""
    wait = torch.cuda.synchronize if cuda else lambda: None
    times = []
    for _ in range(rounds + 2):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append(1e6 * (time.perf_counter() - began) / calls)
    wait()
    return times[2:]


def yardsticks(device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what parts of a call cost by themselves."""
    yield "torch.empty", lambda: torch.empty(1000, device=device)
    if torch.device(device).type != "cuda":
        return
    from _triton_launch import nine

    x = [torch.zeros(1024, device=device) for _ in range(4)]
    yield "one Triton launch", lambda: nine[(1,)](*x, 1024, 1, 2, 3, 0.5, width=1024, num_warps=4)
    yield "torch.cuda.current_stream", torch.cuda.current_stream
    yield "raw stream", lambda: torch._C._cuda_getCurrentRawStream(0)


# --- the time of a batch ----------------------------------------------------------------------------------------------


def measure_batches(name: str, images: int, size: int, layout: str, options: Any, until: float) -> list[dict[str, Any]]:
    """Return the times of all candidates for one model and layout, which take turns until the time is over."""
    torch.manual_seed(0)
    form = LAYOUTS[layout]
    model = models.get(name, classes=10).to(options.device).to(memory_format=form).eval()  # type: ignore[call-overload]
    batch = torch.rand(images, 3, size, size, device=options.device).to(memory_format=form)
    groups = [candidates(model, method, options.device, options.launchers) for method in options.methods]
    for group in groups:
        for candidate in group:
            with launched_by(candidate["launcher"]):
                for _ in range(4):  # the first calls compile, choose kernels, bind and capture
                    time_batch(candidate["adapter"], batch)
    rounds = 0
    while rounds < options.rounds and (rounds < 2 or time.monotonic() < until):
        rounds += 1
        for base, *others in groups:
            for candidate in (base, *others):
                with launched_by(candidate["launcher"]):
                    before = time_batch(base["adapter"], batch)
                    candidate["seconds"].append(time_batch(candidate["adapter"], batch))
                    candidate["ratios"].append(candidate["seconds"][-1] / before)
    facts = {"model": name, "images": images, "size": size, "layout": layout}
    rows = [{**facts, **candidate} for group in groups for candidate in group]
    return [{key: value for key, value in row.items() if key != "adapter"} for row in rows]


def candidates(model: torch.nn.Module, method: str, device: str, launchers: list[str]) -> list[dict[str, Any]]:
    """Return all ways to run a method; the first is what the others are compared with."""
    suffix, method_options = METHODS[method]
    replays = "graph" in medbn.methods.options(method)
    cuda = torch.device(device).type == "cuda"
    found = []
    for estimator in ("mean", *ESTIMATORS):
        for launcher in launchers if estimator != "mean" else launchers[:1]:
            for graph, fuse in itertools.product((False, True) if cuda and replays else (False,), (False, True)):
                last = launcher == launchers[-1]
                if graph and launcher != launchers[0]:
                    continue  # a replay launches nothing
                if fuse and (estimator == "mean" or not (last or graph)):
                    continue
                more = {**method_options, **({"graph": graph} if replays else {}), "fuse": fuse}
                adapter = medbn.adapt(model, method, estimator + suffix, **more)
                row = {"method": method, "estimator": estimator + suffix, "launcher": launcher, "graph": graph}
                found.append({**row, "fuse": fuse, "adapter": adapter, "seconds": [], "ratios": []})
    return found


def time_batch(adapter: Any, images: torch.Tensor) -> float:
    """Return the seconds until the predictions of a batch are known."""
    began = time.perf_counter()
    adapter(images).argmax(1).cpu()  # which waits for a GPU
    return time.perf_counter() - began


# --- the record -------------------------------------------------------------------------------------------------------


def spread(values: list[float]) -> tuple[float, float, float]:
    """Return the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def write(record: dict[str, Any], folder: Path) -> None:
    """Write everything as JSON, and the tables as text."""
    (folder / "eager-speed.json").write_text(json.dumps(record, indent=None) + "\n", encoding="utf-8")
    facts = record["facts"]
    lines = [f"{facts['device']}, torch {facts['torch']}" + ("" if record["finished"] else "; not finished"), ""]
    lines.append(f"{'host time of a call':20}{'channels':10}{'direction':20}{'launcher':10}{'µs [quartiles]':>24}")
    for row in record["host"]:
        low, middle, high = spread(row["us"])
        words = f"{row['what']:20}{row.get('channels', ''):10}{row.get('direction', ''):20}{row.get('launcher', ''):10}"
        lines.append(f"{words}{f'{middle:.1f} [{low:.1f}, {high:.1f}]':>24}")
    lines += ["", "wall time of a batch, and its ratio to the same method with mean, eager [quartiles]"]
    previous = None
    for row in record["batches"]:
        case = f"{row['model']}, {row['images']} images of {row['size']} pixels, {row['layout']}"
        if case != previous:
            lines += ["", f"{case}; {len(row['seconds'])} rounds"]
            previous = case
        low, middle, high = spread(row["ratios"])
        how = ("graph" if row["graph"] else row["launcher"]) + (", fused" if row["fuse"] else "")
        words = f"{row['method']:8}{row['estimator']:18}{how:15}{1e3 * statistics.median(row['seconds']):10.2f} ms"
        lines.append(f"{words}  {middle:.2f} [{low:.2f}, {high:.2f}]")
    (folder / "eager-speed.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(cli.run_program("eager_speed.py", main))
