# SPDX-License-Identifier: GPL-2.0
"""Tunables seen to act: on the wire, in the time that something takes, in what the device counts. That they are shown
and told is in test_operator.py."""

import re

import bond
import pytest
from faults import ROCE, Heard, ping_until, silence
from nodes import Node, until, up
from test_operator import debugfs, reconnect, write
from vm import link_name

# Of reliable connections: not the messages of the connection manager.
RC = f"{ROCE} @th,64,8 < 0x20"
# Messages of the protocol by their magic behind UDP and BTH, the first or only packet of a SEND. Then the sum, four words on.
MESSAGE = f"{ROCE} @th,64,8 {{ 0x00, 0x04 }} @th,160,32 0x911be90b"


def tuned(node, *words):
    write(node, "ni_tune", " ".join(["*@o2ib", *words]))


def mtus(node):
    return {int(n) for n in re.findall(r" mtu=(\d+)", debugfs(node))}


def test_tos(nodes):
    """The packets of a connection carry the class that was set when it was opened, those of who opened it and of the
    peer; one that is there keeps its own."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    classes = [f"{RC} ip dscp {n}" for n in (0, 96 >> 2)]
    with Heard(a.guest, *classes) as here, Heard(b.guest, *classes) as there:
        tuned(a, "tos=96")
        a.traffic(b, op="mix", size=20000, count=20)
        assert [h.count()[1] for h in (here, there)] == [0, 0]
        reconnect(a, b)
    with Heard(a.guest, *classes) as here, Heard(b.guest, *classes) as there:
        a.traffic(b, op="mix", size=20000, count=20)
        for plain, marked in (here.count(), there.count()):
            assert plain == 0 and marked >= 20
    # The other node was told nothing: what it opens has no class.
    a.ctl(f"conn close any from={a.nid}")
    until(lambda: a.conns() == 0 and b.conns() == 0, "closed")
    b.ping(a)
    with Heard(a.guest, *classes) as here:
        b.traffic(a, op="mix", size=20000, count=20)
        plain, marked = here.count()
        assert plain >= 20 and marked == 0


@pytest.mark.long
def test_retry_count(nodes):
    """A peer that hears nothing: each try takes 1.07 s on soft-RoCE, the first and as many more as was said."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("how long a try takes is known of soft-RoCE")
    up(a, b)
    a.ping(b)
    took = []
    # Who connects says it for both ends.
    for opener, other, tries, others in ((a, b, 1, 5), (a, b, 5, 1), (b, a, 1, 5)):
        tuned(opener, f"retry_count={tries}")
        tuned(other, f"retry_count={others}")
        reconnect(opener, other)
        a.mark_log()
        with silence(b):
            r = a.try_traffic(b, op="put", size=200, count=1, conc=1, ask=0, timeout=60)
        assert r["errors"] == 1 and "a send failed: RetryExc" in a.log(), (r, a.log())
        took.append(r["usec"] / 1e6)
        ping_until(a, b, 120)
    one, five, by_the_peer = took
    assert one > 2 and by_the_peer > 2 and five > 6 and five - max(one, by_the_peer) > 2.5, took


def naks(node):
    """How often its device was told to come again later, and how often it gave up."""
    text = node.guest.check(f"rdma -p statistic show link {link_name(node.guest)}/1")
    return [int(re.search(rf"\b{key} (\d+)", text)[1]) for key in ("rcvd_rnr_err", "retry_rnr_exceeded_err")]


def test_rnr_retry_count(boot_pair, pytestconfig):
    """A node whose receive queues are empty: its peer comes again as often as this node said when they connected,
    whichever of them connects, and whatever the peer itself is tuned to."""
    if pytestconfig.getoption("--device") != "rxe":
        pytest.skip("what soft-RoCE counts is known")
    a, b = (Node(guest) for guest in boot_pair(profile="deaf=0"))
    up(a, b)

    def closed():
        a.ctl(f"conn close any from={a.nid}", ok=False)
        until(lambda: a.conns() == 0 and b.conns() == 0, "closed")

    for tries, opener, other in ((1, a, b), (5, a, b), (2, b, a)):
        tuned(b, f"rnr_retry_count={tries}")
        tuned(a, "rnr_retry_count=4")
        opener.ping(other)
        before = naks(a)
        a.mark_log()
        # What is posted already is used up.
        b.guest.check("echo 1 >/sys/module/ib_profile/parameters/deaf")
        for _ in range(40):
            r = a.try_traffic(b, op="put", size=200, count=1, conc=1, ask=0, timeout=30)
            if r["errors"]:
                break
        b.guest.check("echo 0 >/sys/module/ib_profile/parameters/deaf")
        assert r["errors"] == 1 and "a send failed: RnrRetryExc" in a.log(), (r, a.log())
        assert [now - was for now, was in zip(naks(a), before)] == [tries + 1, 1]
        closed()
    # 7 is without end: the message waits for as long as the connection stays.
    tuned(b, "rnr_retry_count=7")
    a.ping(b)
    before = naks(a)
    b.guest.check("echo 1 >/sys/module/ib_profile/parameters/deaf")
    load = a.start(b, op="put", size=200, count=100, conc=8, ask=0, timeout=40)
    until(lambda: naks(a)[0] - before[0] > 40, "asked again and again")
    assert load.running() and a.conns() == 1 and naks(a)[1] == before[1]
    b.guest.check("echo 0 >/sys/module/ib_profile/parameters/deaf")
    # Its buffers are gone: what is left of the run goes over a new connection.
    a.ctl(f"conn close any from={a.nid}")
    r = load.result()
    assert r["count"] > 0 and r["stuck"] == 0, r
    a.traffic(b, op="mix", size=20000, count=20)
    for node in a, b:
        node.unload()


def test_checksum(nodes):
    """With the next message: each carries a sum, or none, as the parameter has it at that moment; without a new
    connection, and of this node only. The receiver, which checks what carries a sum, finds no fault."""
    a, b = nodes
    up(a, b)
    a.ping(b)

    def sums():
        with Heard(b.guest, f"{MESSAGE} @th,256,32 0", f"{MESSAGE} @th,256,32 != 0") as there:
            with Heard(a.guest, f"{MESSAGE} @th,256,32 != 0") as here:
                a.traffic(b, op="mix", size=200, count=20)
                a.traffic(b, op="put-ack", size=20000, count=20)
                assert here.count() == [0]
                return there.count()

    for value in (0, 1, 0):
        write(a, "cksum", value)
        counts = sums()
        # None of what wants none, all of what wants one.
        assert counts[value] >= 40 and counts[1 - value] == 0, counts
    assert a.conns() == 1 and "bad checksum" not in b.log()


def test_ib_mtu_ends_at_the_port(nodes):
    """An interface of 1500 bytes makes a port of 1024: more than that is not to be had, and asking for it does no harm."""
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
    """A bond of 1500 bytes over a port of 4096: the path is 1024, and what was asked for if that is more."""
    a, b = nodes = [bond.Bonded(guest) for guest in boot_pair(files=bond.files(), bond=bond.TWO, tools=("nft",))]
    large = f"{RC} meta length gt 2200"
    for asked, is_ in (("", 1024), ("ib_mtu=2048", 2048), ("ib_mtu=4096", 4096)):
        for node in nodes:
            # The bond sets it in its slaves, too, and lets them have another one.
            node.guest.check("ip link set bond0 mtu 1500; ip link set eth0 mtu 4200; ip link set eth1 mtu 4200")
        up(a, lnd=asked)
        up(b)
        a.ping(b)
        assert mtus(a) == {is_}, asked
        for node in nodes:
            # So that large packets get through.
            node.guest.check("ip link set bond0 mtu 4200")
        with Heard(b.guest, large, device=f"eth{b.active()}") as there:
            a.traffic(b, op="mix", size=65536, count=20)
            assert (there.count()[0] > 0) == (is_ > 2200), asked
        assert mtus(a) == {is_} and a.conns() == 1
        for node in nodes:
            node.unload()
