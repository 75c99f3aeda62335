# SPDX-License-Identifier: GPL-2.0
"""Effects of tunables under real LNet, with ko2iblnd or ro2iblnd as the other node: see tunable_effects.py. Run by
`make test-lustre LUSTRE=...`. test_lustre_lnetctl.py has more about the output of LNet's tools."""

import os
import re

import lustre
import pytest
import tunable_effects
from conftest import BUILT
from lustre import DEBUGFS, KO, OURS
from nodes import until
from test_lustre import WITH_OURS, assert_ping, names, nodes, ping_until, pytestmark, tree  # noqa: F401
from test_lustre_lnetctl import conns_to, in_force, lctl

PROFILE = os.path.join(BUILT, "tests-vm", "modules", "ib_imitate.ko")
# The node whose tunables change has ro2iblnd.
OTHERS = [(OURS, KO), (OURS, OURS)]


class Run:
    """Flood that is running."""

    def __init__(self, node, other, count, conc, size):
        self.node = node
        self.job = node.guest.spawn(f"echo put {other.nid} {count} {conc} {size} >{DEBUGFS}/lnet_flood/run; cat {DEBUGFS}/lnet_flood/stats")

    def running(self):
        return self.job.poll() is None

    def result(self):
        r = lustre.parse(self.job.wait(240)[1])
        return r["errors"], r["took_us"] / 1e6


class Bed(tunable_effects.Bed):
    """Bed with real LNet. On a node with ko2iblnd ko2iblnd's own parameters replace the tunables."""

    def messages(self, one, other, size, count):
        for op in ("put", "get"):
            r = one.flood(other, op, count, 4, size)
            assert r["done"] == count and r["errors"] == 0, r

    def start(self, one, other, size, count, conc):
        return Run(one, other, count, conc, size)

    def lose(self, one, other):
        r = one.flood(other, "put", 1, 1, 200)
        return r["took_us"] / 1e6 if r["errors"] else None

    def reach(self, one, other):
        assert_ping(one, other)

    def reach_again(self, one, other):
        ping_until(one, other, 120)

    def close(self, one):
        lctl(one, "disconnect")

    def connected(self, one):
        return conns_to(one, self.b if one is self.a else self.a)

    def lazy(self, node, on):
        node.take(not on)

    def tune(self, node, **values):
        if node.lnd == OURS:
            super().tune(node, **values)
        else:
            for key, value in values.items():
                node.sh(f"echo {value} >/sys/module/{KO}/parameters/{key}")

    def shown(self, node, key):
        return in_force(node)[key]

    def older(self, node):
        return in_force(node)["older_connections"], len(node.conns())

    def log(self, node):
        return node.sh("dmesg")

    def mark(self, node):
        node.sh("dmesg -c >/dev/null")

    def told(self, node, text):
        # ko2iblnd logs other words.
        if node.lnd == OURS:
            super().told(node, text)


@pytest.fixture
def bed(nodes):  # noqa: F811
    """Provides a function: pairing -> a Bed, connected by its first node. `params` are for ro2iblnd, `options` for
    lnetctl."""

    def bed(pairing, params="", options="", **more):
        made = nodes(pairing, tools=("nft",), **more)
        for node in made:
            node.up(params if node.lnd == OURS else "", options, selftest=False)
            node.sh("insmod /files/lnet_flood.ko")
        a, b = made
        assert_ping(a, b)
        of = Bed(a, b)
        # LNet first discovers a node that it does not know.
        of.messages(a, b, 200, 1)
        of.messages(b, a, 200, 1)
        return of

    return bed


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_tos(bed, pairing):
    tunable_effects.tos(bed(pairing))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_retry_count(bed, pairing):
    tunable_effects.retry_count(bed(pairing))


@pytest.mark.parametrize("pairing", WITH_OURS[1:], ids=names)
def test_rnr_retry_count(bed, pairing):
    """The peer repeats its sends as often as rnr_retry_count of this node says."""
    tunable_effects.rnr_retry_count(bed(pairing, files=[PROFILE], profile="deaf=0"))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_checksum(bed, pairing):
    tunable_effects.checksum(bed(pairing))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_ib_mtu(bed, pairing):
    """An MTU below the fabric's is listed on both sides, and no larger packet is on the wire. An MTU above the port's
    has no effect."""
    of = bed(pairing)
    a, b = of.a, of.b
    for asked, is_ in ((2048, 2048), (4096, 4096), (1024, 1024), (0, 4096)):
        assert a.unload() == {}
        a.up(f"ib_mtu={asked}", selftest=False)
        a.sh("insmod /files/lnet_flood.ko")
        ping_until(a, b, 60)
        for one, other in ((a, b), (b, a)):
            assert f"{other.nid} mtu {is_}" in lctl(one, "conn_list")[1]
        assert (tunable_effects.large_packets(of) > 0) == (is_ > 2200), asked
    for node in (a, b):
        node.sh("ip link set eth0 mtu 1500")
    assert a.unload() == {}
    a.up("ib_mtu=4096", selftest=False)
    a.sh("insmod /files/lnet_flood.ko")
    ping_until(a, b, 60)
    assert f"{b.nid} mtu 1024" in lctl(a, "conn_list")[1]
    of.messages(a, b, 65536, 20)


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_probe(bed, pairing):
    tunable_effects.probe(bed(pairing, "keepalive=0"))


def test_probe_counts_at_once(bed):
    tunable_effects.probe_at_once(bed(OTHERS[0], "keepalive=0"))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_timeout(bed, pairing):
    tunable_effects.timeout(bed(pairing))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_keepalive(bed, pairing):
    tunable_effects.keepalive(bed(pairing))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_depth(bed, pairing):
    tunable_effects.depth(bed(pairing, options="--peer-credits 32"))


@pytest.mark.parametrize("pairing", OTHERS, ids=names)
def test_conns_per_peer(bed, pairing):
    """Messages go over all configured connections, and over one again when one is configured."""
    of = bed(pairing)
    a, b = of.a, of.b

    def carried():
        """Returns the messages of each connection with the other node so far."""
        text = a.sh(f"grep '^conn={b.nid} ' {DEBUGFS}/ro2iblnd/{a.nid}")
        return [int(n) for n in re.findall(r" tx_msgs=(\d+)", text)]

    for before, count in ((1, 4), (4, 1)):
        of.tune(a, conns_per_peer=count)
        assert of.all_are_older(a) and of.connected(a) == before
        of.reconnect(a, b)
        until(lambda: of.connected(a) == of.connected(b) == count, f"{count} connections", 30)  # noqa: B023
        assert of.none_is_older(a)
        first = carried()
        of.messages(a, b, 20000, 100)
        assert all(now > was + 5 for was, now in zip(first, carried())) and len(first) == count
