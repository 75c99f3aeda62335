# SPDX-License-Identifier: GPL-2.0
"""Latency of single messages: a GET under LNet with either driver, and raw verbs.

A GET is a message in one direction, and one or the data in the other. ibv_rc_pingpong between the same guests does the
same without LNet and without an LND. It sleeps until the event of a completion, as the drivers do: a program that polls
would take the CPU from soft-RoCE, which moves the data itself. It reports the mean.
"""

import re
import statistics

from lustre import KO, OURS, Node
from nodes import until

# Bytes of a GET, and the number of GETs.
CASES = [(64, 4000), (4096, 2000), (1 << 20, 200)]
PARTS = ("p50", "p99", "p999")
PINGPONG = "ibv_rc_pingpong"
TOOLS = (PINGPONG,)
MODULES = ("ib_uverbs",)


def lnet(guests, lnd, options=""):
    """Measures all cases with a driver. Returns [{p50, p99, p999 in us}]. Nothing stays loaded."""
    a, b = nodes = [Node(guest, lnd) for guest in guests]
    for node in nodes:
        node.up(options=options, selftest=False)
        node.sh("insmod /files/lnet_flood.ko")
    found = []
    for size, count in CASES:
        a.flood(b, "get", 100, 1, size)
        got = a.flood(b, "get", count, 1, size)
        if got["errors"] or got["samples"] != count:
            raise RuntimeError(f"{lnd}: GET of {size}: {got}")
        found.append({part: got[f"{part}_ns"] / 1e3 for part in PARTS})
    for node in nodes:
        left = node.unload()
        if left:
            raise RuntimeError(f"{lnd}: still loaded: {left}")
    return found


def raw(guests):
    """Measures raw verbs between the same guests. Returns [us of a short message there, and of the case's bytes
    back]."""
    there = exchange(guests, *CASES[0])
    return [(there + exchange(guests, size, count)) / 2 for size, count in CASES]


def exchange(guests, size, count):
    """Returns the mean microseconds of a message of `size` bytes there and back, of `count` exchanges."""
    a, b = guests
    gid = a.check("cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ffff:0a00 * | head -n 1").strip()
    command = f"{PINGPONG} -e -d rxe0 -g {gid} -m 4096 -s {size} -n {count}"
    job = b.spawn(command)
    # The server listens after its own preparations.
    out = until(lambda: ran(a, f"{command} 10.0.0.{b.number}"), PINGPONG, pause=1)
    job.wait(60)
    found = re.search(r"= ([\d.]+) usec/iter", out)
    if not found:
        raise RuntimeError(f"{PINGPONG}: {out}")
    return float(found[1])


def ran(guest, command):
    status, out = guest.run(command, 120)
    return None if status else out


def table(seen, verbs):
    """Returns a table in Markdown: medians of all rounds. Ratios are medians of the ratios within the rounds."""
    lines = ["| us | | ro2iblnd | ko2iblnd | ratio | span | raw verbs, mean | ro2iblnd to raw |", "|---|---|---|---|---|---|---|---|"]
    for i, (size, _count) in enumerate(CASES):
        bare = statistics.median(round_[i] for round_ in verbs)
        for part in PARTS:
            ours, ko = ([round_[i][part] for round_ in seen[lnd]] for lnd in (OURS, KO))
            ratios = [o / k for o, k in zip(ours, ko)]
            mine, theirs = statistics.median(ours), statistics.median(ko)
            lines.append(
                f"| GET of {size} | {part} | {mine:.0f} | {theirs:.0f} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f} to {max(ratios):.2f} | {bare:.0f} | {mine / bare:.1f} |"
            )
    return "\n".join(lines)
