"""Which cells of a table are the best, and which are not compared."""

from medbn.report.document import Measure, Table
from medbn.report.tables import best_cells, smaller_counts


def test_the_best_of_a_column_is_chosen_among_the_rows_of_one_group():
    rows = [
        ["a", "x", Measure(5.0), 1.0],
        ["a", "y", Measure(3.0), 2.0],
        ["b", "x", Measure(9.0)],
        ["b", "y", Measure(9.0)],
    ]
    columns = ["group", "row", "error", "seconds"]
    assert best_cells(Table("t", columns, rows, best="low", labels=2)) == {(1, 2)}
    assert best_cells(Table("t", columns, rows, best="high", labels=2)) == {(0, 2)}
    assert best_cells(Table("t", columns, rows, labels=2)) == set()


def test_the_best_of_a_row_is_chosen_where_the_table_asks_for_it():
    rows = [["a", Measure(5.0), Measure(3.0)], ["b", Measure(1.0), Measure(2.0)]]
    assert best_cells(Table("t", ["row", "x", "y"], rows, best="low", across=True)) == {(0, 2), (1, 1)}


def test_numbers_that_are_not_finite_do_not_compete():
    rows = [["a", Measure(float("nan"))], ["b", Measure(3.0)], ["c", Measure(float("-inf"))]]
    assert best_cells(Table("t", ["row", "x"], rows, best="low")) == set()


def test_measures_from_fewer_batches_do_not_compete():
    rows = [
        ["a", Measure(5.0, count=15)],
        ["b", Measure(4.0, count=15)],
        ["c", Measure(1.0, count=8)],
        ["d", Measure(9.0)],
    ]
    assert best_cells(Table("t", ["row", "x"], rows, best="low")) == {(1, 1)}
    assert best_cells(Table("t", ["row", "x"], rows[1:3], best="low")) == set()
    assert smaller_counts(Table("t", ["row", "x"], rows)) == {(2, 1): 8}


def test_counts_are_compared_with_the_whole_column():
    rows = [["m", "x", Measure(5.0, count=60)], ["n", "x", Measure(4.0, count=15)], ["n", "y", Measure(3.0, count=15)]]
    assert best_cells(Table("t", ["group", "row", "x"], rows, best="low", labels=2)) == set()
