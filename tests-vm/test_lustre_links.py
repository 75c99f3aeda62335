# SPDX-License-Identifier: GPL-2.0
"""Links that go and come back under real LNet: one rail, and Multi-Rail over two. Run by `make test-lustre LUSTRE=...`.

The load is one-sided PUTs of 64 KiB in both directions, whatever becomes of them: lnet_selftest hangs by itself when
some of its messages fail. What is judged is when LNet messages flow again, and with two rails that they do not stop
and that both are used again."""

import contextlib
import time

import pytest
from lustre import DEBUGFS, OURS
from nodes import until
from test_lustre import WITH_OURS, assert_ping, names, nodes, pytestmark, tree, up  # noqa: F401
from test_links import Carrier, Interface

AWAY = 5
# Without a message for longer than this is a stall, in seconds.
STALL = 0.5


class Flow:
    """Watches the messages of a node: when they stood still."""

    def __init__(self, node):
        self.node, self.last, self.since = node, node.messages(), time.monotonic()
        self.longest, self.stalls = 0.0, 0

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.1)

    def look(self):
        now, count = time.monotonic(), self.node.messages()
        # A few of LNet's own (pings, of the health check) are no traffic.
        if count > self.last + 5:
            self.stalls += now - self.since > STALL
            self.longest = max(self.longest, now - self.since)
            self.last, self.since = count, now

    def flows_within(self, seconds):
        """Seconds until there is traffic."""
        began, before = time.monotonic(), self.last
        until(lambda: self.look() or self.last > before, "traffic", timeout=seconds, pause=0.1)
        return time.monotonic() - began


@contextlib.contextmanager
def load(*made):
    """PUTs from each to the other."""
    jobs = []
    for node, other in zip(made, reversed(made)):
        node.sh("insmod /files/lnet_flood.ko")
        run = f"echo put {other.nid} 100 8 65536 >{DEBUGFS}/lnet_flood/run"
        jobs.append((node, f"while [ ! -e /tmp/stop ]; do {run}; done 2>/dev/null"))
    jobs = [(node, node.guest.spawn(script)) for node, script in jobs]
    yield
    for node, _job in jobs:
        node.sh("touch /tmp/stop")
    for _node, job in jobs:
        job.wait(150)


def rail_event(kind, node, rail):
    device = f"eth{rail}"
    if kind is Interface:
        return (lambda: node.sh(f"ip link set {device} down")), (lambda: node.sh(f"ip link set {device} up"))
    return (lambda: node.guest.carrier(False, rail)), (lambda: node.guest.carrier(True, rail))


@pytest.mark.parametrize("kind", [Interface, Carrier], ids=lambda k: k.__name__.lower())
@pytest.mark.parametrize("pairing", WITH_OURS, ids=names)
def test_one_rail(nodes, pairing, kind):  # noqa: F811
    """The only link is away for a while."""
    a, b = up(pairing, nodes)
    assert_ping(a, b)
    with load(a, b):
        # ko2iblnd does not survive the loss of its own link on rxe.
        for i, victim in ((i, n) for i, n in enumerate((a, b)) if n.lnd == OURS):
            flow = Flow(a)
            flow.watch(2)
            away, back = rail_event(kind, victim, 0)
            away()
            flow.watch(AWAY)
            back()
            took = flow.flows_within(30)
            print(f"{names(pairing)}: {kind.__name__} of node {i} away for {AWAY} s: traffic again after {took:.1f} s")
    assert_ping(a, b)
    assert_ping(b, a)


@pytest.mark.parametrize("kind", [Interface, Carrier], ids=lambda k: k.__name__.lower())
@pytest.mark.parametrize("pairing", WITH_OURS, ids=names)
def test_two_rails(nodes, pairing, kind):  # noqa: F811
    """One of two is away for a while: the other carries on, then both do."""
    made = nodes(pairing, rails=2)
    a, b = made
    for node in made:
        node.up()
    assert_ping(a, b)
    for one, other in ((a, b), (b, a)):
        one.sh(f"lnetctl discover {other.nid}")
    with load(a, b):
        # ko2iblnd does not survive the loss of its own link on rxe.
        for i, victim in ((i, n) for i, n in enumerate((a, b)) if n.lnd == OURS):
            flow = Flow(a)
            flow.watch(3)
            before = a.sent()
            away, back = rail_event(kind, victim, 1)
            away()
            flow.watch(AWAY)
            during = a.sent()
            longest = flow.longest
            back()

            def both():
                start = a.sent()
                flow.watch(1)
                return all(now > was + 10 for now, was in zip(a.sent(), start))

            began = time.monotonic()
            until(both, "both rails carry messages", timeout=60, pause=0)
            print(
                f"{names(pairing)}: {kind.__name__} of rail 1 of node {i} away for {AWAY} s: longest stall {longest:.1f} s, "
                f"{during[0] - before[0]} messages over the other, both again after {time.monotonic() - began:.1f} s, "
                f"longest stall then {flow.longest:.1f} s"
            )
            assert during[0] > before[0], "the other rail carried nothing"
    assert_ping(a, b)
    assert_ping(b, a)
