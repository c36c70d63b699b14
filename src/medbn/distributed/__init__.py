"""Statistics of the whole batch, where the processes of a group have a part each.

``medbn.convert(model, group="world")`` is what users call. ``group`` has the collectives, ``selection`` the exact
order statistics, ``statistics`` the estimators and their gradients.
"""

from .group import Group, GroupError, get
from .rows import gather_rows, gather_rows_of_replicated_loss
from .statistics import statistics

__all__ = ["Group", "GroupError", "gather_rows", "gather_rows_of_replicated_loss", "get", "statistics"]
