# SPDX-License-Identifier: GPL-2.0
"""A thousand connections at once, of ko2iblnd and of ro2iblnd: the time until all are established, their memory, the
time until all are gone, and the latency of other messages in that time. Run by `make test-lustre LUSTRE=...
TESTS=--long`.

Eight NIs on each node, with 125 connections per peer. The other messages go over a ninth NI. Both nodes have the same
driver. Times are those of emulated CPUs, so the test checks only their ratio.
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
# Seconds within which all have to connect.
PATIENCE = 180


def connected(node):
    """Returns how many connections a node has over the eight NIs."""
    return int(node.sh(f"for net in {' '.join(NETS)}; do lctl --net $net conn_list; done | grep -c @; true", 240))


def add_nis(node):
    node.sh(f"for net in {' '.join(NETS)}; do lnetctl net add --net $net --if eth0 --conns-per-peer {EACH} || exit; done", 120)


def del_nis(node, other):
    """Deletes the NIs one after the other. Returns the seconds until each node has fewer queue pairs than half of one
    NI."""
    few = EACH // 2
    began = time.monotonic()
    node.sh(f"for net in {' '.join(NETS)}; do lnetctl net del --net $net || exit; done", 240)
    until(lambda: other.rdma_objects()["qp"] < few, "all are closed", timeout=240, pause=0.05)
    took = time.monotonic() - began
    assert node.rdma_objects()["qp"] < few
    return took


class Meanwhile:
    """One GET at a time of 64 bytes over the ninth NI, inside `with`."""

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
    """Returns the number of connections, the seconds until the last one, the KiB of each, the seconds until all were
    closed, the part of these that the eight NIs take without connections, and the latencies of the other messages."""
    a, b = nodes
    for node in nodes:
        node.load(selftest=False)
        # Otherwise LNet finds that all NIs belong to one node, and uses any of them.
        node.sh("lnetctl set discovery 0")
        node.net_add()
        node.sh("insmod /files/lnet_flood.ko")
        add_nis(node)
    # The first pass reads the tools from their file system. The second measures the NIs without connections.
    del_nis(a, b)
    add_nis(a)
    idle = del_nis(a, b)
    add_nis(a)
    # Connects the ninth NI.
    a.flood(b, "get", 50, 1, 64)
    before = a.free_kib()
    with Meanwhile(a, b, counts[0]) as connecting:
        began = time.monotonic()
        there, connect = 0, 0
        while there < ALL and time.monotonic() < began + PATIENCE:
            # Pings again the peers to which LNet has given up connecting.
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
