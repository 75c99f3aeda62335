# SPDX-License-Identifier: GPL-2.0
"""Table of the measurements, with a line per row and pairing, written as they come."""

import os
import time
from typing import NamedTuple, Optional

from .loads import MIB

HEAD = (
    "row", "client", "server", "verified MiB", "I/O errors", "evictions", "imports lost", "RPCs timed out", "refused",
    "sent again", "longest stall, s", "after the cause, s", "longest I/O of fio, s", "took, s", "load", "",
)  # fmt: skip


class Row(NamedTuple):
    """Row of the table. `verified`: bytes. `lost`: how often Lustre lost the connection to a target. `timed_out`:
    requests whose answer never came. `refused`: registrations of the client and of the server that their own devices
    refused. `again`: messages that client and server resent over their next connection. In seconds: `stall`, the
    longest round of the prober; `after`, how long such rounds lasted after the cause was gone; `worst`, the longest I/O
    of fio; `took`, the row. `load`: the load average of this machine, the higher of before and after."""

    name: str
    pairing: tuple
    verified: Optional[int]
    errors: int
    evicted: int
    lost: int
    timed_out: int
    refused: list
    again: list
    stall: Optional[float]
    after: Optional[float]
    worst: Optional[float]
    took: float
    load: float
    note: str = ""

    def cells(self):
        def seconds(value):
            return "" if value is None else f"{value:.1f}"

        return [
            self.name, *self.pairing, "" if self.verified is None else f"{self.verified / MIB:.0f}",
            str(self.errors), str(self.evicted), str(self.lost), str(self.timed_out),
            ", ".join(map(str, self.refused)), ", ".join(map(str, self.again)),
            seconds(self.stall), seconds(self.after), seconds(self.worst), f"{self.took:.0f}", f"{self.load:.1f}",
            self.note,
        ]  # fmt: skip


def line(cells):
    return "| " + " | ".join(cells) + " |"


class Table:
    """All rows, also in the file at `path`, so that the measurements stay if the run does not end normally. A run has
    one such file for all tables."""

    begun = set()

    def __init__(self, path):
        self.path, self.rows = path, []
        if path in self.begun:
            return
        self.begun.add(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"{line(HEAD)}\n|{'---|' * len(HEAD)}\n")

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(line(row.cells()) + "\n")
        print(line(row.cells()))

    def evictions(self, name, pairing):
        """Returns the evictions of a pairing in a row, 0 if it was not run."""
        return max((r.evicted for r in self.rows if r.name == name and r.pairing == pairing), default=0)

    def text(self):
        with open(self.path, encoding="utf-8") as f:
            return f.read()


class Clock:
    """Time and load of a row."""

    def __init__(self):
        self.began, self.load = time.monotonic(), os.getloadavg()[0]

    def stop(self):
        """Returns (seconds, load average)."""
        return time.monotonic() - self.began, max(self.load, os.getloadavg()[0])
