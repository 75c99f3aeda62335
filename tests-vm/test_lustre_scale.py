# SPDX-License-Identifier: GPL-2.0
"""A thousand connections at once, of ko2iblnd and of ours: how long until all are there, what they take, how long until all
are gone, and how long a message of somebody else waits meanwhile. Run by `make test-lustre LUSTRE=... TESTS=--long`.

Eight NIs on each node, of 125 connections per peer; the messages meanwhile go over a ninth. Both nodes have the same
driver. Times are those of emulated CPUs, so their ratio alone is judged.
"""

import time

import lustre
import pytest
from lustre import KO, OURS
from nodes import until
from test_lustre import LUSTRE, tree  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not LUSTRE, reason="no LUSTRE=/path/to/built/tree: real LNet is not at hand"),
    pytest.mark.long,
]

NETS = [f"o2ib{n}" for n in range(1, 9)]
EACH = 125
ALL = EACH * len(NETS)
# Seconds that all may take to connect.
PATIENCE = 180


def connected(node):
    """How many connections a node has over the eight."""
    return int(node.sh(f"for net in {' '.join(NETS)}; do lctl --net $net conn_list; done | grep -c @; true", 240))


def add_nis(node):
    node.sh(f"for net in {' '.join(NETS)}; do lnetctl net add --net $net --if eth0 --conns-per-peer {EACH} || exit; done", 120)


def del_nis(node, other):
    """One after the other. Seconds until neither node has a queue pair of theirs, which are all but some."""
    few = EACH // 2
    began = time.monotonic()
    node.sh(f"for net in {' '.join(NETS)}; do lnetctl net del --net $net || exit; done", 240)
    until(lambda: other.rdma_objects()["qp"] < few, "all are closed", timeout=240, pause=0.05)
    took = time.monotonic() - began
    assert node.rdma_objects()["qp"] < few
    return took


class Meanwhile:
    """One GET at a time of 64 bytes over the ninth NI, while it is entered."""

    def __init__(self, a, b, count):
        self.a, self.b, self.count = a, b, count

    def __enter__(self):
        self.job = self.a.guest.spawn(f"echo get {self.b.nid} {self.count} 1 64 >{lustre.DEBUGFS}/lnet_flood/run")
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.job.wait(600)
            self.seen = lustre.parse(self.a.sh(f"cat {lustre.DEBUGFS}/lnet_flood/stats"))
            assert self.seen["errors"] == 0, self.seen


def storm(nodes, counts):
    """How many were connected, seconds until the last of them was, KiB of each, seconds until all were closed, and of that
    what the eight NIs take without them; and what the messages took meanwhile."""
    a, b = nodes
    for node in nodes:
        node.load(selftest=False)
        # Else LNet finds that all NIs are of one node, and takes any of them.
        node.sh("lnetctl set discovery 0")
        node.net_add()
        node.sh("insmod /files/lnet_flood.ko")
        add_nis(node)
    # The tools are read from their file system, and the NIs without connections are the measure for those with.
    del_nis(a, b)
    add_nis(a)
    idle = del_nis(a, b)
    add_nis(a)
    # The ninth is connected.
    a.flood(b, "get", 50, 1, 64)
    before = a.free_kib()
    with Meanwhile(a, b, counts[0]) as connecting:
        began = time.monotonic()
        there, connect = 0, 0
        while there < ALL and time.monotonic() < began + PATIENCE:
            # Who has given up is asked again.
            a.sh(f"for net in {' '.join(NETS)}; do lnetctl ping --timeout 10 10.0.0.{b.guest.number}@$net >/dev/null & done; wait", 60)
            now = min(connected(a), connected(b))
            if now > there:
                there, connect = now, time.monotonic() - began
    each = (before - a.free_kib()) / max(there, 1)
    with Meanwhile(a, b, counts[1]) as closing:
        close = del_nis(a, b)
    for node in nodes:
        assert node.unload(240) == {}
    return there, connect, each, close, idle, connecting.seen, closing.seen


def test_a_thousand_connections(tree, workdir):  # noqa: F811
    seen = {}
    for lnd in (KO, OURS):
        with tree.pair(workdir=workdir, memory=4096) as guests:
            seen[lnd] = storm(tuple(lustre.Node(g, lnd) for g in guests), (400, 100))
        there, connect, each, close, idle, connecting, closing = seen[lnd]
        print(
            f"{lnd}: {there} of {ALL} connected after {connect:.1f} s, {each:.0f} KiB each, closed after {close:.2f} s, {idle:.2f} s of them for"
            f" NIs without any;"
            f" a GET meanwhile {connecting['p50_ns'] / 1e6:.1f} ms, 99 % {connecting['p99_ns'] / 1e6:.0f} ms,"
            f" while they close {closing['p50_ns'] / 1e6:.1f} and {closing['p99_ns'] / 1e6:.0f} ms"
        )
    assert seen[OURS][0] == ALL
    assert seen[KO][0] < ALL or seen[OURS][1] <= seen[KO][1]
    assert seen[OURS][2] <= 0.35 * seen[KO][2]
