# SPDX-License-Identifier: GPL-2.0
"""How long one message takes, one at a time: a GET under LNet with either driver, and raw verbs (perftest) beside it.

A GET of a few bytes is two messages, as a ping-pong of ib_send_lat is, which tells half of it; a bulk one is a request, the
data, and a message that says so, of which ib_send_lat has the data. It sleeps until it is told of a completion: who polls
would take the CPU from soft-RoCE, which moves the data by itself.
"""

import contextlib
import glob
import statistics

from lustre import KO, OURS, Node
from nodes import until

# Bytes of a GET, how many, and how many times of perftest are in it.
CASES = [(64, 4000, 2), (4096, 2000, 1), (1 << 20, 200, 1)]
PARTS = ("p50", "p99", "p999")
PERFTEST = "ib_send_lat"
TOOLS = (PERFTEST,)
MODULES = ("ib_uverbs",)
PROVIDERS = "/usr/lib/*/libibverbs/librxe-rdmav*.so"
DRIVER = "/etc/libibverbs.d/rxe.driver"


def files():
    """For guests: what libibverbs looks for by itself."""
    return [(path, path) for path in (*glob.glob(PROVIDERS), DRIVER)]


def lnet(guests, lnd, options=""):
    """All cases over that driver: [{p50, p99, p999 in us}]. Nothing stays loaded."""
    a, b = nodes = [Node(guest, lnd) for guest in guests]
    for node in nodes:
        node.up(options=options, selftest=False)
        node.sh("insmod /files/lnet_flood.ko")
    found = []
    for size, count, _times in CASES:
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
    """The same by perftest, between the same guests: [{p50, p99, p999 in us}], of what LNet would do with it."""
    a, b = guests
    gid = a.check("cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ffff:0a00 * | head -n 1").strip()
    found = []
    for size, count, times in CASES:
        command = f"{PERFTEST} -e -d rxe0 -x {gid} -F -s {size} -n {count}"
        job = b.spawn(command)
        # It listens when it is through with its own preparations.
        out = until(lambda: ran(a, f"{command} 10.0.0.{b.number}"), PERFTEST, pause=1)
        job.wait(60)
        found.append({part: times * t for part, t in zip(PARTS, times_of(out, size))})
    return found


def ran(guest, command):
    status, out = guest.run(command, 120)
    return None if status else out


def times_of(out, size):
    """Median, 99th and 99.9th percentile of what perftest prints, in us."""
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            numbers = list(map(float, line.split()))
            if len(numbers) == 9 and numbers[0] == size:
                return numbers[4], numbers[7], numbers[8]
    raise RuntimeError(f"perftest: {out}")


def table(seen, verbs):
    """In Markdown: medians of all rounds; ratios are medians of those within the rounds."""
    lines = ["| us | | ro2iblnd | ko2iblnd | ratio | span | raw verbs | ro2iblnd to raw |", "|---|---|---|---|---|---|---|---|"]
    for i, (size, _count, _times) in enumerate(CASES):
        for part in PARTS:
            ours, ko = ([round_[i][part] for round_ in seen[lnd]] for lnd in (OURS, KO))
            ratios = [o / k for o, k in zip(ours, ko)]
            bare = statistics.median(round_[i][part] for round_ in verbs)
            mine, theirs = statistics.median(ours), statistics.median(ko)
            lines.append(
                f"| GET of {size} | {part} | {mine:.0f} | {theirs:.0f} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f} to {max(ratios):.2f} | {bare:.0f} | {mine / bare:.1f} |"
            )
    return "\n".join(lines)
