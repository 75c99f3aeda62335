# SPDX-License-Identifier: GPL-2.0
"""Times of GETs at the node that has the data, with either driver: from LNet's call of lnd_recv for a GET_REQ to
lnet_finalize, which the driver calls when GET_DONE and the data before it are sent. Kernel probes in LNet take the
times, so that they begin and end at the same place for both drivers."""

import re

from .rxe_mr_errors import TRACEFS

EVENTS = f"{TRACEFS}/events/kprobes"
# While a client only writes, no message of this size or larger arrives except a GET_REQ for its data: bytes.
BULK = 4096
PROBES = (
    "p:lnd_recv lnet:lnet_ni_recv msg=$arg3:x64 bytes=$arg6:u32",
    "p:finalize lnet:lnet_finalize msg=$arg1:x64 status=$arg2:s32",
)
# An event takes about 40 bytes.
BUFFER_KIB = 1024
LINE = re.compile(r" (\d+\.\d+): (lnd_recv|finalize): .* msg=(0x[0-9a-f]+) \w+=(-?\d+)")


class Times:
    """GETs that a node with LNet answers inside `with`. `seconds` has their times, sorted, `failed` the number of those
    that ended with an error, `unfinished` of those that did not end."""

    def __init__(self, node):
        self.node, self.seconds, self.failed, self.unfinished = node, [], 0, 0

    def __enter__(self):
        node = self.node
        node.sh(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")
        for probe in PROBES:
            node.sh(f"echo '{probe}' >>{TRACEFS}/kprobe_events")
        node.sh(f"cd {TRACEFS}; echo mono >trace_clock; echo {BUFFER_KIB} >buffer_size_kb")
        node.sh(f"echo 'bytes >= {BULK}' >{EVENTS}/lnd_recv/filter")
        self._enable(1)
        return self

    def _enable(self, on):
        for name in ("lnd_recv", "finalize"):
            self.node.sh(f"echo {on} >{EVENTS}/{name}/enable")

    def __exit__(self, kind, *_exc):
        if kind is not None:
            return
        self._enable(0)
        text = self.node.sh(f"cat {TRACEFS}/trace", 240)
        lost = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
        assert lost and lost[1] == lost[2], f"the buffer is too small: {lost and lost[0]}"
        for name in ("lnd_recv", "finalize"):
            self.node.sh(f"echo '-:{name}' >>{TRACEFS}/kprobe_events")
        self.node.sh(f"echo 1 >{TRACEFS}/buffer_size_kb")
        began = {}
        for line in text.splitlines():
            if not (found := LINE.search(line)):
                continue
            at, what, msg, number = float(found[1]), found[2], found[3], int(found[4])
            if what == "lnd_recv":
                began[msg] = at
            elif msg in began:
                self.seconds.append(at - began.pop(msg))
                self.failed += number != 0
        self.seconds.sort()
        self.unfinished = len(began)
        assert self.seconds, "no GET ended"

    def __str__(self):
        n = len(self.seconds)
        median, most, worst = (self.seconds[i] for i in (n // 2, n * 99 // 100, -1))
        return (
            f"{n} GETs: median {median:.2f} s, 99 % within {most:.2f} s, worst {worst:.2f} s, {self.failed} failed, "
            f"{self.unfinished} did not end"
        )
