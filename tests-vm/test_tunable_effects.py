# SPDX-License-Identifier: GPL-2.0
"""Effects of tunables under lnet_lite: see tunable_effects.py. test_runtime_settings.py checks that they are shown
and logged."""

import re
import time

import bond
import pytest
import tunable_effects
from faults import ping_until
from nodes import Node, up
from test_runtime_settings import debugfs, older, reconnect, write
from tunable_effects import mtus


class Run:
    """Traffic that is running."""

    def __init__(self, run):
        self.run, self.running = run, run.running

    def result(self):
        r = self.run.result()
        return r["errors"], r["usec"] / 1e6


class Bed(tunable_effects.Bed):
    """Bed with lnet_lite."""

    def messages(self, one, other, size, count):
        one.traffic(other, op="mix", size=size, count=count)
        one.traffic(other, op="put-ack", size=size, count=count)

    def start(self, one, other, size, count, conc):
        return Run(one.start(other, op="put", size=size, count=count, conc=conc, ask=0, timeout=120))

    def lose(self, one, other):
        r = one.try_traffic(other, op="put", size=200, count=1, conc=1, ask=0, timeout=60)
        return r["usec"] / 1e6 if r["errors"] else None

    def reach(self, one, other):
        one.ping(other)

    def reach_again(self, one, other):
        ping_until(one, other, 120)

    def close(self, one):
        one.ctl(f"conn close any from={one.nid}", ok=False)

    def connected(self, one):
        return one.conns()

    def lazy(self, node, on):
        node.set(lazy=int(on))

    def shown(self, node, key):
        return node.ctl(f"ni show {node.nid}")[key]

    def older(self, node):
        return older(node), node.conns()

    def log(self, node):
        return node.log()

    def mark(self, node):
        node.mark_log()


@pytest.fixture
def bed(nodes):
    """Provides a function that loads the modules and connects the nodes. It returns their Bed."""

    def bed(lnd="", **tunables):
        up(*nodes, lnd=lnd, **tunables)
        nodes[0].ping(nodes[1])
        return Bed(*nodes)

    return bed


def test_tos(bed):
    tunable_effects.tos(bed())


@pytest.mark.long
def test_retry_count(bed, pytestconfig):
    if pytestconfig.getoption("--device") == "siw":
        pytest.skip("how long a try takes is known of soft-RoCE")
    tunable_effects.retry_count(bed())


def test_rnr_retry_count(boot_pair, pytestconfig):
    if pytestconfig.getoption("--device") != "rxe":
        pytest.skip("what soft-RoCE counts is known")
    nodes = [Node(guest) for guest in boot_pair(profile="deaf=0")]
    up(*nodes)
    tunable_effects.rnr_retry_count(Bed(*nodes))
    for node in nodes:
        node.unload()


def test_checksum(bed):
    tunable_effects.checksum(bed())


def test_ib_mtu_ends_at_the_port(nodes):
    """The port limits ib_mtu: an interface of 1500 bytes makes a port of 1024. A larger ib_mtu has no effect and does
    no harm."""
    a, b = nodes
    try:
        for node in nodes:
            node.guest.check("ip link set eth0 mtu 1500")
        up(a, lnd="ib_mtu=4096")
        up(b)
        for one, other in ((a, b), (b, a)):
            one.traffic(other, op="mix", size=65536, count=20)
            assert mtus(a) == {1024} and mtus(b) == {1024}
            reconnect(a, b)
        for node in nodes:
            node.unload()
    finally:
        for node in nodes:
            node.guest.check("ip link set eth0 mtu 4200")


@pytest.mark.long
def test_ib_mtu_raises(boot_pair):
    """ib_mtu raises the path MTU of a bond of 1500 bytes over a port of 4096: it is 1024, or ib_mtu if that is
    larger."""
    a, b = nodes = [bond.Bonded(guest) for guest in boot_pair(files=bond.files(), bond=bond.TWO, tools=("nft",))]
    for asked, is_ in (("", 1024), ("ib_mtu=2048", 2048), ("ib_mtu=4096", 4096)):
        for node in nodes:
            # The bond sets its MTU in its slaves, too, and then accepts another MTU there.
            node.guest.check("ip link set bond0 mtu 1500; ip link set eth0 mtu 4200; ip link set eth1 mtu 4200")
        up(a, lnd=asked)
        up(b)
        a.ping(b)
        assert mtus(a) == {is_}, asked
        for node in nodes:
            # Large packets can now pass.
            node.guest.check("ip link set bond0 mtu 4200")
        assert (tunable_effects.large_packets(Bed(a, b), f"eth{b.active()}") > 0) == (is_ > 2200), asked
        assert mtus(a) == {is_} and a.conns() == 1
        for node in nodes:
            node.unload()


def test_probe(bed):
    tunable_effects.probe(bed("keepalive=0"))


def test_probe_counts_at_once(bed):
    of = bed("keepalive=0")
    tunable_effects.probe_at_once(of)
    a = of.a
    for value in ("-1", "1", "249", "60001", "x"):
        a.guest.check("dmesg -c >/dev/null")
        write(a, "probe", value, ok=False)
        assert re.search(r"ro2iblnd: parameter probe(=-?\d+ is out of range: 0 or 250\.\.60000| is not an integer)$", a.log(), re.M), a.log()
    assert a.guest.check(f"cat {tunable_effects.PARAMS}/probe").strip() == "500" and of.shown(a, "probe") == 500


@pytest.mark.long
def test_timeout(bed):
    tunable_effects.timeout(bed())


@pytest.mark.long
def test_keepalive(bed):
    tunable_effects.keepalive(bed())


def test_depth(bed):
    tunable_effects.depth(bed(peer_credits=32))


def test_a_depth_below_what_lnet_hands_over(bed):
    """A depth below LNet's credits works. LNet keeps the credits that the net started with: each of its GETs and of the
    peer's PUTs still has a memory region."""
    of = bed(peer_credits=64)
    for node in (of.a, of.b):
        of.tune(node, peer_credits=8)
    of.reconnect(of.a, of.b)
    gets = of.a.start(of.b, op="get", size=65536, count=400, conc=64, timeout=120)
    of.b.traffic(of.a, op="put-ack", size=65536, count=100, conc=8)
    r = gets.result()
    assert r["count"] == 400 and r["errors"] == 0, r
    for node in (of.a, of.b):
        assert " NoRegion=0 " in debugfs(node), debugfs(node)


def test_a_long_probe_puts_off_no_deadline(bed):
    """A long `probe` delays no deadline: the check of deadlines does not wait for the check of silent peers."""
    of = bed("keepalive=0")
    a, b = of.a, of.b
    of.tune(a, timeout=8, probe=60000)
    b.set(lazy=1)
    begun = time.monotonic()
    run = a.start(b, op="put", size=65536, count=1, conc=1, ask=0, timeout=100)
    while "cause=DeadlineAnswer" not in a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}.closes"):
        # The ping keeps the peer from being silent.
        a.ping(b)
        assert time.monotonic() < begun + 30, debugfs(a)
        time.sleep(0.5)
    assert time.monotonic() > begun + 7
    b.set(lazy=0)
    assert run.result()["count"] == 0
