# SPDX-License-Identifier: GPL-2.0
"""Counters of the driver and the device: connections in debugfs, RNR counters, checks of their sums, and fault
injection."""

import contextlib
import re
import time

import vm
from nodes import tell_kind, until

DEBUGFS = "/sys/kernel/debug/ro2iblnd"
FAIL = "/sys/kernel/debug"
ENOMEM = 12
# Longest wait of a message, by the clock of the machine that runs the guests.
STALL_US = 10_000_000


def _lines(node, nid, first):
    for line in node.guest.check(f"cat {DEBUGFS}/{nid or node.nid}").splitlines():
        words = dict(word.split("=", 1) for word in line.split())
        if first in words:
            yield {k: int(v) if re.fullmatch(r"-?\d+", v) else v for k, v in words.items()}


def conns(node, nid=None, peer=None):
    """Returns the established connections of an NI, each as a dict of its counters."""
    return [c for c in _lines(node, nid, "conn") if c["state"] == "Established" and c["conn"] == (peer or c["conn"])]


def past(node, nid=None):
    """Returns the sums of an NI's closed connections."""
    return next(_lines(node, nid, "closed_conns"))


def conn(node, nid=None, peer=None):
    """Returns the only connection of an NI (to that peer)."""
    found = conns(node, nid, peer)
    assert len(found) == 1, found
    return found[0]


def depths(*nodes, nid=None):
    """Returns the depth of each connection at each node."""
    return [sorted(c["depth"] for c in conns(n, nid)) for n in nodes]


COUNTERS = ("tx_msgs", "rx_msgs", "tx_noops", "wrs", "doorbells", "cqes", "recv_cqes", "no_credit", "no_slots", "rnr")


def rise(before, after):
    """Returns the increases of the counters."""
    return {k: after[k] - before[k] for k in COUNTERS}


def polls(node):
    """Returns how often completions were polled in a softirq."""
    line = next(line for line in node.guest.check("cat /proc/softirqs").splitlines() if "IRQ_POLL" in line)
    return sum(map(int, line.split()[1:]))


def rnr(*nodes):
    """Returns the RNR NAKs sent and received, of all devices together."""
    total = 0
    for n in nodes:
        text = n.guest.check(f"rdma -p statistic show link {vm.link_name(n.guest)}/1")
        numbers = re.findall(r"(?:rcvd|send)_rnr_err (\d+)", text)
        assert len(numbers) == 2, text
        total += sum(map(int, numbers))
    return total


# Limits that hold at any time, seen from one end only.
def sane(c):
    d = c["depth"]
    assert 0 <= c["credits"] <= d and 0 <= c["reserved"] <= d and 0 <= c["noops"] <= 2, c
    assert c["outstanding"] + c["peer_held"] <= d, c
    return c


def _quiet(c):
    return (
        c["reserved"] == c["depth"]
        and c["outstanding"] + c["peer_held"] == c["depth"]
        and not any(c[k] for k in ("noops", "q_main", "q_nocred", "q_unreserved", "with_lnet"))
        and c["wrs"] == c["retired"]
    )


def balanced(a, b, nid_a=None, nid_b=None):
    """Waits for quiet, and checks that every credit is in exactly one place, seen from either end."""

    def look():
        x, y = conn(a, nid_a), conn(b, nid_b)
        sane(x)
        sane(y)
        return (x, y) if _quiet(x) and _quiet(y) and x["credits"] == y["peer_held"] and y["credits"] == x["peer_held"] else None

    try:
        x, y = until(look, "quiet", timeout=30)
    except TimeoutError:
        raise AssertionError(f"credits do not add up:\n{conns(a, nid_a)}\n{conns(b, nid_b)}") from None
    assert x["depth"] == y["depth"], (x, y)
    assert x["credits"] + y["outstanding"] == x["depth"], (x, y)
    assert y["credits"] + x["outstanding"] == y["depth"], (x, y)
    assert x["tx_msgs"] == y["rx_msgs"] and y["tx_msgs"] == x["rx_msgs"], (x, y)
    return x, y


def timed(node, to, **what):
    """Runs Node.traffic(), and corrects its figures by the speed of the guest's clock, which may be several times too
    fast in emulation on a busy machine."""

    def uptime():
        return float(node.guest.check("cat /proc/uptime").split()[0])

    began, there = time.monotonic(), uptime()
    r = node.traffic(to, **what)
    pace = (uptime() - there) / (time.monotonic() - began)
    r["pace"] = round(pace, 2)
    r["rate"] = round(r["rate"] * pace)
    for key in ("lat_avg_us", "lat_p50_us", "lat_p99_us", "lat_max_us"):
        r[key] = round(r[key] / pace)
    return r


def _write(node, attr, **values):
    node.guest.check(" && ".join(f"echo {v} >{FAIL}/{attr}/{k.replace('_', '-')}" for k, v in values.items()))


@contextlib.contextmanager
def failing(node, function, times=-1, errno=ENOMEM):
    """Makes a function of the driver fail `times` times. Yields a function that returns how many failures are left."""
    attr = f"fail_function/{function}"
    node.guest.check(f"echo {function} >{FAIL}/fail_function/inject")
    node.guest.check(f"printf %#x -{errno} >{FAIL}/{attr}/retval")
    _write(node, "fail_function", interval=0, verbose=0, probability=100, times=times)
    try:
        yield lambda: int(node.guest.check(f"cat {FAIL}/fail_function/times"))
    finally:
        node.guest.check(f"echo 0 >{FAIL}/fail_function/probability; echo '!{function}' >{FAIL}/fail_function/inject")
        tell_kind(node.guest)


def _text(node, module):
    """Returns (start, end) of the code of a module. Its size in /proc/modules is useless: it includes the data, which
    is elsewhere, while the code of the next module may follow directly."""
    symbols = node.guest.check(rf"grep -i ' t .*\[{module}\]$' /proc/kallsyms | cut -d' ' -f1 | sort | sed -n '1p;$p'")
    first, last = (int(word, 16) for word in symbols.split())
    assert first, "addresses are hidden"
    return first, (last | 0xFFF) + 1


@contextlib.contextmanager
def no_memory(node, percent=100, depth=32):
    """Makes every allocation of the driver fail, in itself or in the core below it.

    Allocations of LNet in calls from the driver succeed. `depth` frames of the stack are searched for both. If they are
    few, the search does not reach LNet behind the driver, and allocations of the driver in a call from LNet fail, too.
    """
    start, end = _text(node, "ro2iblnd")
    spared, spared_end = _text(node, "lnet_lite")
    for attr in ("failslab", "fail_page_alloc"):
        _write(
            node, attr, interval=0, verbose=0, times=-1, task_filter="N", ignore_gfp_wait="N", stacktrace_depth=depth,
            require_start=f"{start:#x}", require_end=f"{end:#x}", reject_start=f"{spared:#x}", reject_end=f"{spared_end:#x}",
        )  # fmt: skip
        if attr == "fail_page_alloc":
            _write(node, attr, min_order=0, ignore_gfp_highmem="N")
    for attr in ("failslab", "fail_page_alloc"):
        _write(node, attr, probability=percent)
    try:
        yield
    finally:
        for attr in ("failslab", "fail_page_alloc"):
            _write(node, attr, probability=0)
