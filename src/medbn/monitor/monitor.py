"""Monitor: watch an adapter while it serves, raise alarms, and act on them."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from .._check_types import check_bounds, wrong_type
from .._errors import unknown_name
from ..methods import Adapter
from . import signals
from .batch import Batch
from .collect import Collector, choose_layers
from .measure import Early, measure, measure_early
from .record import Alarm, Record
from .rollback import Snapshots
from .served import Served
from .watch import Watch

ACTIONS = ("pause", "rollback")
Action = str | Callable[[Alarm], object]


class Exporter(Protocol):
    """Takes the record of each batch somewhere."""

    def export(self, record: Record) -> None:
        """Take one record. It is called in a thread that serves or asks the monitor, so it must be quick."""

    def close(self) -> None:
        """End: there are no more records."""


class Monitor:
    """Watches an adapter: signals per batch, alarms with a false-alarm rate over the whole stream, actions.

    Attached by its constructor; the code that serves stays as it is. It changes no prediction, does not wait for a GPU,
    and reads the inputs of a few layers once. An error in it, in a callback or in an exporter becomes a warning, and
    the prediction is returned.

    On a GPU the numbers of a batch are on their way when its call ends, and are judged at the end of the next one, or
    as soon as ``latest``, ``records``, ``alarms`` or ``threshold`` is read, or ``flush``, ``restart`` or ``close`` is
    called. So callbacks, exporters, ``"pause"`` and ``"rollback"`` come one call later; see ``wait``.

    An alarm says that a signal is no longer exchangeable with that of the reference; see ``docs/deploying.md`` for what
    that means. Images that change without an attack raise one too. Where the method itself declares changes, which a
    minority of malicious images cannot bring about, a declared change begins a new reference instead.

    Args:
        adapter: what ``medbn.adapt`` returned.
        layers: names of the robust layers to read; by default the first and the last of each stage.
        alpha: the probability of any false alarm in a stream without a change, however long it is.
        reference: how many batches at the start are the reference, or records of a stream without attack, such as
            ``monitor.records`` or ``medbn.monitor.read("stream.jsonl")``.
        alarms: shell patterns of the signals that may raise an alarm, such as ``"pressure/*"``; an empty list for none.
            By default those that are registered with a side, but those that move as the method learns.
        on_alarm: what to do: ``"pause"`` (serve without adapting), ``"rollback"`` (return to the last good snapshot), a
            function of the Alarm, or a list of these.
        bounds: the range that images should be in; None not to look.
        snapshot_every: batches between two snapshots for ``"rollback"``.
        snapshots: how many of them are kept; a state of SoTTA, for instance, holds images.
        rollbacks: after so many rollbacks, the next alarm pauses.
        exporters: take each record somewhere; see ``medbn.monitor``.
        history: how many records ``monitor.records`` keeps.
        seed: of the choice between tied values.
        wait: whether each call waits for its own numbers. With True an alarm acts before the next batch is served, and
            the host waits for the GPU in every call. With False one more batch is served and adapted on before
            ``"pause"`` or ``"rollback"``; a rollback takes that batch back too. None waits on a CPU alone, where there
            is nothing to wait for. Users who must know about a batch before the next one call ``flush`` in between.

    >>> import torch, medbn
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
    >>> tta = medbn.adapt(model, method="tebn")
    >>> monitor = medbn.Monitor(tta, reference=20)
    >>> _ = tta(torch.rand(16, 3, 8, 8))
    >>> monitor.latest.state, sorted(monitor.latest.signals)[:3]
    ('reference', ['classes', 'confidence', 'entropy'])
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        layers: Iterable[str] | None = None,
        alpha: float = 0.01,
        reference: int | Sequence[Record] = 50,
        alarms: Iterable[str] | None = None,
        on_alarm: Action | Sequence[Action] = (),
        bounds: tuple[float, float] | None = (0.0, 1.0),
        snapshot_every: int = 10,
        snapshots: int = 4,
        rollbacks: int = 3,
        exporters: Sequence[Exporter] = (),
        history: int = 1000,
        seed: int = 0,
        wait: bool | None = None,
    ) -> None:
        if not isinstance(adapter, Adapter):
            raise TypeError(f"a Monitor watches what medbn.adapt returns, got {type(adapter).__name__}.")
        if adapter.graph:
            raise ValueError(
                "a replayed CUDA graph runs no hooks, so there is nothing to watch; adapt with graph=False."
            )
        if adapter.group is not None and any(action in ACTIONS for action in _check_actions(on_alarm)):
            raise ValueError(
                "each process of a group watches its own images, and on_alarm='pause' and 'rollback' would act in one"
                " process only; give a function of the alarm that tells all of them."
            )
        least = {"snapshot_every": 1, "snapshots": 1, "history": 1, "rollbacks": 0}
        for name, count in zip(least, (snapshot_every, snapshots, history, rollbacks), strict=True):
            problem = wrong_type(count, "int")
            if problem or count < least[name]:
                raise ValueError(f"{name} {problem or f'is a number of at least {least[name]}, got {count}.'}")
        if wait is not None and not isinstance(wait, bool):
            raise TypeError(f"wait is True, False or None, got {wait!r}.")
        if not isinstance(exporters, Sequence) or not all(hasattr(one, "export") for one in exporters):
            raise TypeError(f"exporters is a list of objects with export and close; got {exporters!r:.60}.")
        self.adapter = adapter
        self.exporters = tuple(exporters)
        self.wait = wait
        self.bounds = None if bounds is None else check_bounds(bounds)
        self._records: deque[Record] = deque(maxlen=history)
        self._alarms: list[Alarm] = []
        self._served: Served | None = None
        self.batches = 0
        """How many batches were served since the monitor was attached."""
        self.rollbacks_left = rollbacks
        self._actions = _check_actions(on_alarm)
        self._watch = Watch(alpha, reference, alarms, seed, learns=bool(adapter.learned))
        self._snapshots = Snapshots(adapter, snapshot_every, snapshots) if "rollback" in self._actions else None
        self._declared: float | None = None
        self._changed = -1
        self._signals = [signals.get(name) for name in signals.available()]
        self._warned: set[object] = set()
        self.layers = choose_layers(adapter, layers)
        with adapter.lock.held:
            self._collector = Collector(
                adapter, self.layers, self.bounds, self._measure_early, self._receive, self._notice_changes
            )

    # --- what users read and call -------------------------------------------------------------------------------------

    @property
    def records(self) -> deque[Record]:
        """The records of the last batches."""
        self.flush()
        return self._records

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms."""
        self.flush()
        return self._alarms

    @property
    def latest(self) -> Record | None:
        """The record of the last batch; None before the first."""
        records = self.records
        return records[-1] if records else None

    @property
    def threshold(self) -> float:
        """The evidence, as a logarithm to base 10, that raises an alarm."""
        self.flush()
        return self._watch.threshold

    def flush(self) -> None:
        """Judge the last batch now if that is still to come: test it, act, record it and export it.

        It waits for a call that another thread makes, and for the numbers of the batch.
        """
        if self._served is not None:
            with self._between_calls():
                pass

    @contextmanager
    def _between_calls(self) -> Iterator[None]:
        """Let other threads wait, and judge the batch that is not judged yet, except inside a call of this thread."""
        inside = self.adapter.lock.is_mine()  # where the state is not final
        with self.adapter.lock.held:
            if not inside:
                self.adapter.roll_back()
                self._notice_changes()
                self._judge_served()
            yield

    def restart(self, reference: int | Sequence[Record] | None = None) -> None:
        """Adapt again if an alarm had paused it, and watch with another reference from now on.

        Args:
            reference: as for the constructor; by default as many batches from now on as the reference had.
        """
        with self._between_calls():
            self._watch.restart(self._watch.length if reference is None else reference)
            self.adapter.paused = False

    def close(self) -> None:
        """Judge the last batch if that is still to come, detach the monitor, and close its exporters.

        Without an alarm at that batch, the adapter stays as it is.
        """
        with self._between_calls():
            self._collector.remove()
        for exporter in self.exporters:
            exporter.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Monitor of {type(self.adapter).__name__}: {self.batches} batches, {len(self._alarms)} alarms>"

    # --- one batch ----------------------------------------------------------------------------------------------------

    def _measure_early(self, batch: Batch) -> Early:
        """Compute what does not depend on the rest of the call, while a GPU is still busy with the forward pass."""
        return measure_early(self._signals, batch)

    def _receive(self, batch: Batch, early: Early | None) -> None:
        """Measure a batch, and judge it or the one before; called at the end of the adapter's call, inside its lock.

        What signals read of the state is computed here, as it is now; only the numbers are read later.
        """
        paused, adapter = self.adapter.paused, self.adapter
        try:
            reading = measure(self._signals, batch, early, self._warn)
            self._judge_served()  # may take a state back, so it comes before this batch's snapshot
            self.batches += 1
            served = Served(self.batches, time.time(), paused, reading, adapter.state_changes, adapter.resets)
            if self._snapshots is not None and not paused and not adapter.paused:
                served.snapshot = self._snapshots.copy(self.batches)
        except Exception as error:
            self._warn("monitor", f"the monitor failed on a batch: {type(error).__name__}: {error}")
            return
        self._served = served
        if reading.on_host if self.wait is None else self.wait:
            self._judge_served()

    def _notice_changes(self) -> None:
        """Note whether the state was replaced since the last call; called where no call has changed it since."""
        if self._served is not None and self.adapter.state_changes != self._served.changes:
            self._served.replaced = True

    def _judge_served(self) -> None:
        """Read, test, record and export the batch that was served and is not judged yet, if there is one."""
        served, self._served = self._served, None
        if served is None:
            return
        try:
            values = served.reading.read()
            self._follow_declared_changes(served.number, values)
            collecting = self._watch.collecting
            raised = self._watch.update(served.number, values)
            evidence, threshold = self._watch.evidence(), self._watch.threshold
            found = tuple(self._alarm(served.number, name, evidence[name]) for name in raised)
            if found:
                found = self._act(found, served)
                self._alarms.extend(found)
            elif self._snapshots is not None and served.snapshot is not None:
                self._snapshots.keep(served.number, served.snapshot)
            state = "paused" if served.paused else "reference" if collecting else "watching"
            record = Record(served.number, served.time, state, values, evidence, threshold, found)
            self._records.append(record)
        except Exception as error:
            self._warn("monitor", f"the monitor failed on a batch: {type(error).__name__}: {error}")
            return
        for exporter in self.exporters:
            self._attempt(exporter, exporter.export, record)
        for action in self._actions:
            if callable(action):
                for alarm in found:
                    self._attempt(action, action, alarm)

    def _follow_declared_changes(self, number: int, values: dict[str, float]) -> None:
        declared = values.get("declared_changes")
        if declared is None:
            return
        self._watch.divides_alpha = True
        if self._declared is not None and declared > self._declared:
            self._changed = number
            self._watch.begin_period()
        self._declared = declared

    # --- alarms -------------------------------------------------------------------------------------------------------

    def _alarm(self, number: int, name: str, evidence: float) -> Alarm:
        onset = self._watch.quiet_until(name) + 1
        return Alarm(number, name, onset, evidence, declared_change=self._changed >= onset)

    def _act(self, alarms: Sequence[Alarm], served: Served) -> tuple[Alarm, ...]:
        """Do what is to be done at these alarms of one batch; return them with what was done."""
        text = ""
        if self._snapshots is not None and self.rollbacks_left > 0 and not served.paused:
            if served.replaced or self.adapter.resets != served.resets:
                text = "the state was replaced meanwhile"  # by one that has not seen this batch
            else:
                self.rollbacks_left -= 1
                number = self._snapshots.return_to(min(alarm.onset for alarm in alarms) - 1)
                text = f"rolled back to batch {number}" if number else "reset to the source model"
            self._watch.rearm()
        elif any(action in ACTIONS for action in self._actions) and not (served.paused or self.adapter.paused):
            self.adapter.paused = True
            text = "paused"
        return tuple(replace(alarm, action=text) for alarm in alarms)

    def _attempt(self, key: object, function: Callable[[Any], object], argument: object) -> None:
        """Call a user's function; what it raises becomes a warning, once."""
        try:
            function(argument)
        except Exception as error:
            name = getattr(key, "__name__", type(key).__name__)
            self._warn(id(key), f"the monitor's {name} failed, and is called again: {type(error).__name__}: {error}")

    def _warn(self, key: object, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(text, stacklevel=2)


def _check_actions(on_alarm: Action | Sequence[Action]) -> list[Action]:
    actions: list[Action] = [on_alarm] if isinstance(on_alarm, str) or callable(on_alarm) else list(on_alarm or ())
    for action in actions:
        if not callable(action) and action not in ACTIONS:
            raise unknown_name("on_alarm", action, ACTIONS)
    return actions
