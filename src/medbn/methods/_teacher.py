"""Methods whose model is a teacher: a moving average of a student's parameters, and the student is what learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ._check_state import Values, check_tensor
from .learner import Learner


class Teacher(Learner):
    """A Learner that predicts with an average of the parameters that it learns.

    The model has the teacher's parameters, so that surrogates, files and exports are of what predicts. The student's
    are in ``memory["student"]``; the optimiser's moments are the student's too. It is in the model inside ``student``.
    """

    def prepare(self) -> None:
        """Choose the parameters to learn, and start the student."""
        super().prepare()
        self.memory["student"] = {name: p.detach().clone() for name, p in self.learned.items()}

    @contextmanager
    def student(self) -> Iterator[None]:
        """Put the student into the model inside the context, and keep what it has become."""
        teacher = {name: p.detach().clone() for name, p in self.learned.items()}
        self._set(self.memory["student"])
        yield  # what raises is undone by the call, as everything is
        self.memory["student"] = {name: p.detach().clone() for name, p in self.learned.items()}
        self._set(teacher)

    def follow_student(self, average: float) -> None:
        """Move the teacher towards the student: θ′ ← α θ′ + (1 − α) θ."""
        self._set(average_parameters(self.learned, self.memory["student"], average))

    def _set(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.learned.items():
                parameter.copy_(values[name])

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a student with all learned parameters."""
        student = memory["student"]
        if not isinstance(student, dict) or student.keys() != self.learned.keys():
            raise ValueError("the student does not have the learned parameters.")
        for name, parameter in self.learned.items():
            check_tensor(values, f"the student's {name}", student[name], tuple(parameter.shape))


def average_parameters(old: dict[str, Any], new: dict[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Return a weighted average of parameters, ``weight`` being that of ``old``; those missing in ``new`` stay."""
    return {name: weight * p.detach() + (1.0 - weight) * new[name] if name in new else p for name, p in old.items()}
