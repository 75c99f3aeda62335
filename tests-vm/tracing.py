# SPDX-License-Identifier: GPL-2.0
"""Trace points and histograms of a guest, in tracefs and debugfs."""

import re

from counters import DEBUGFS

TRACEFS = "/sys/kernel/tracing"
EVENTS = (
    "ro2ib_conn_state", "ro2ib_stall", "ro2ib_stall_over", "ro2ib_post", "ro2ib_complete", "ro2ib_receive",
    "ro2ib_stage", "ro2ib_close", "ro2ib_refuse",
)  # fmt: skip


def value(word):
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def mount(node):
    node.guest.check(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")


class Tracing:
    """Recording of a node's events inside `with`. `events` has them afterwards, each as a dict with its `name`."""

    def __init__(self, node, *names, kb=8192):
        self.node, self.names, self.kb, self.events = node, names, kb, []

    def _enable(self, on):
        for name in self.names or ("",):
            path = f"{TRACEFS}/events/ro2iblnd/{name}/enable"
            self.node.guest.check(f"echo {int(on)} >{path}")

    def __enter__(self):
        mount(self.node)
        self.node.guest.check(f"cd {TRACEFS}; echo {self.kb} >buffer_size_kb; echo >trace; echo 1 >tracing_on")
        self._enable(True)
        return self

    def look(self):
        """Reads all events so far."""
        text = self.node.guest.check(f"cat {TRACEFS}/trace", 240)
        lost = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
        assert lost and lost[1] == lost[2], f"the buffer is too small: {lost and lost[0]}"
        self.events = []
        for line in text.splitlines():
            found = re.search(r" (\d+\.\d+): (ro2ib_\w+): (.*)$", line)
            if found:
                words = dict(w.split("=", 1) for w in found[3].split())
                self.events.append({"name": found[2], "at": float(found[1]), **{k: value(v) for k, v in words.items()}})
        return self.events

    def __exit__(self, *exc):
        self._enable(False)
        self.look()
        self.node.guest.check(f"cd {TRACEFS}; echo >trace; echo 1 >buffer_size_kb")

    def of(self, name, **what):
        """Returns the events of that name with those values."""
        return [e for e in self.events if e["name"] == name and all(e[k] == v for k, v in what.items())]


def times(node, nid=None):
    """Returns the histograms of an NI: {(stage, op): {n, sum_ns, p50_ns, p99_ns, counts: {limit or None: count}}}."""
    found = {}
    for line in node.guest.check(f"cat {DEBUGFS}/{nid or node.nid}.latency").splitlines():
        words = dict(word.split("=", 1) for word in line.split())
        assert words.pop("latency") == (nid or node.nid), line
        key = words.pop("stage"), words.pop("op")
        assert key not in found, line
        row = {"counts": {}}
        for word, number in words.items():
            if word.startswith("lt_"):
                row["counts"][int(word[3:])] = int(number)
            elif word == "more":
                row["counts"][None] = int(number)
            else:
                row[word] = int(number)
        assert row["n"] == sum(row["counts"].values()), line
        assert row["p50_ns"] <= row["p99_ns"], line
        # A time below a limit is at least half of the limit, except below the first limit.
        least = sum(n * (limit // 2 if limit and limit > 512 else 0) for limit, n in row["counts"].items())
        most = sum(n * (limit or 1 << 60) for limit, n in row["counts"].items())
        assert least <= row["sum_ns"] <= most, line
        found[key] = row
    return found
