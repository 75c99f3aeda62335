# SPDX-License-Identifier: GPL-2.0
"""Matching of the lines of two nodes in compare_output.py."""

import compare_output

OURS = "a: 10.0.0.1@o2ib\nb: 1\nc: 2\nd: 3\nnew: 4\ne: 5\n"
THEIRS = "a: 10.0.0.2@o2ib\nb: 7\nc: 0x12\nd: 3\nold: 9\ne: 6\n"


def test_equal_lines_are_counted():
    assert compare_output.rows(OURS, THEIRS) == [(None, 4), ("new: 4", "old: 9"), ("e: 5", "e: 6")]


def test_missing_line_leaves_a_gap():
    assert compare_output.rows("a: 1\nb: 2\n", "b: 3\n") == [("a: 1", ""), ("b: 2", "b: 3")]


def test_a_list_is_folded():
    assert compare_output.rows("rx 1\nrx 2\n", "".join(f"tx {n}\n" for n in range(9))) == [("rx 1", "tx 0"), ("rx 2", "(8 more like it)")]


def test_a_table():
    text = compare_output.table([("x", (0, "  a | b\n"), (1, ""))])
    assert text.splitlines()[2:] == ["| **`x`** | status 0 | status 1 |", r"| | `..a \| b` |  |"]
