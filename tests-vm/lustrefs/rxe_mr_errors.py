# SPDX-License-Identifier: GPL-2.0
"""Registrations of its own node that soft-RoCE refuses: with a key that is not the region's, or of a region that is
still registered. Each refusal breaks the connection on which the request was posted, whichever driver the peer has."""

import re

TRACEFS = "/sys/kernel/tracing"
CALLS = ("rxe_invalidate_mr", "rxe_reg_fast_mr")


def watch(node):
    """Counts refusals from now on, until the node is rebooted."""
    node.sh(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")
    for call in CALLS:
        event = f"{TRACEFS}/events/kprobes/{call}"
        node.sh(f"[ -e {event} ] || echo 'r:{call} {call} ret=$retval:s32' >>{TRACEFS}/kprobe_events")
        node.sh(f"[ -s {event}/hist ] || echo 'hist:keys=ret' >{event}/trigger")


def count(node):
    """Returns how many registrations a node's device refused since watch(). 0 if the node was rebooted since."""
    return sum(_refused(node.sh(f"cat {TRACEFS}/events/kprobes/{call}/hist || true")) for call in CALLS)


def _refused(hist):
    entries = re.findall(r"\{ ret: +(-?\d+) \} hitcount: +(\d+)", hist)
    return sum(int(hits) for ret, hits in entries if int(ret) != 0)
