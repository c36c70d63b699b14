"""Which counts of batches a table shows."""

from medbn.report.document import Measure, Table
from medbn.report.tables import shown_counts, smaller_counts


def test_counts_are_compared_with_the_whole_column():
    rows = [["a", Measure(5.0, count=15)], ["b", Measure(4.0, count=15)], ["c", Measure(1.0, count=8)], ["d", 9.0]]
    assert smaller_counts(rows) == {(2, 1): 8}


def test_counts_are_shown_where_they_are_smaller_or_where_there_is_no_interval():
    rows = [["a", Measure(5.0, 4.0, 6.0, 15)], ["b", Measure(4.0, 3.0, 5.0, 8)], ["c", Measure(1.0, count=15)]]
    assert shown_counts(Table("t", ["row", "x"], rows)) == {(1, 1): 8, (2, 1): 15}
    assert shown_counts(Table("t", ["row", "x"], [["a", Measure(float("nan"), count=0)]])) == {(0, 1): 0}
