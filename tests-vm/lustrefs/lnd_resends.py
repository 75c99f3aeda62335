# SPDX-License-Identifier: GPL-2.0
"""Messages that went over the next connection because their own had ended, as the driver counts them."""

import re

from lustre import DEBUGFS


class Again:
    """Number of these since its creation, at each node. A lower bound: an NI that goes loses its counts since the last
    look."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.counts = [0 for _ in nodes]
        self.last = [counted(node, "Resent") for node in nodes]

    def look(self):
        for i, node in enumerate(self.nodes):
            now = counted(node, "Resent")
            # A smaller number: the NI is another one.
            self.counts[i] += now - self.last[i] if now >= self.last[i] else now
            self.last[i] = now
        return list(self.counts)


def counted(node, counter):
    """Returns a counter of the driver's `of=other` line, summed over the NIs of a node; 0 with the other driver."""
    text = node.sh(f"grep -hs ' of=other ' {DEBUGFS}/ro2iblnd/* || true")
    return sum(map(int, re.findall(rf"\b{counter}=(\d+)", text)))
