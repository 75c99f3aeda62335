# SPDX-License-Identifier: GPL-2.0
"""What went over the next connection because its own had ended, as the driver counts it."""

import re

from lustre import DEBUGFS


class Again:
    """How many since it was made, at each node. At least: an NI that goes takes with it what it has counted since the
    last look."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.counts = [0 for _ in nodes]
        self.last = [_counted(node) for node in nodes]

    def look(self):
        for i, node in enumerate(self.nodes):
            now = _counted(node)
            # Less than before: the NI is another one.
            self.counts[i] += now - self.last[i] if now >= self.last[i] else now
            self.last[i] = now
        return list(self.counts)


def _counted(node):
    """0, too, on a node with the other driver."""
    text = node.sh(f"grep -hs ' of=other ' {DEBUGFS}/ro2iblnd/* || true")
    return sum(map(int, re.findall(r"\bSentAgain=(\d+)", text)))
