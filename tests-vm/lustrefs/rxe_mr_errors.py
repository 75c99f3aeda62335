# SPDX-License-Identifier: GPL-2.0
"""What soft-RoCE refuses of its own node's registrations: a key that is not that of the region, or a region that is
still registered. Each breaks the connection it was posted on, whoever the peer is."""

import re

TRACEFS = "/sys/kernel/tracing"
CALLS = ("rxe_invalidate_mr", "rxe_reg_fast_mr")


def watch(node):
    """From now on, until the node is booted again."""
    node.sh(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")
    for call in CALLS:
        event = f"{TRACEFS}/events/kprobes/{call}"
        node.sh(f"[ -e {event} ] || echo 'r:{call} {call} ret=$retval:s32' >>{TRACEFS}/kprobe_events")
        node.sh(f"[ -s {event}/hist ] || echo 'hist:keys=ret' >{event}/trigger")


def count(node):
    """How many it has refused since it is watched; 0 if it was booted since."""
    return sum(_refused(node.sh(f"cat {TRACEFS}/events/kprobes/{call}/hist || true")) for call in CALLS)


def _refused(hist):
    entries = re.findall(r"\{ ret: +(-?\d+) \} hitcount: +(\d+)", hist)
    return sum(int(hits) for ret, hits in entries if int(ret) != 0)
