# SPDX-License-Identifier: GPL-2.0
"""Tunables seen to act: on the wire, in the time that something takes, in what the device counts. That they are shown
and told is in test_operator.py."""

import re

import bond
import pytest
from faults import ROCE, Heard, ping_until, silence
from flow import conn
from nodes import Node, until, up
from test_operator import PARAMS, debugfs, reconnect, write
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


class Owed:
    """The peer's LNet takes nothing, so it owes an answer, and its transport acknowledges all the same. Inside `with`."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __enter__(self):
        self.b.set(lazy=1)
        self.before = conn(self.a)["tx_noops"]
        self.load = self.a.start(self.b, op="put-ack", size=100000, count=1, conc=1, timeout=120)
        until(lambda: "oldest=answer" in debugfs(self.a), "a PUT waits")
        return self

    def waits(self):
        """For how many milliseconds the peer has owed it, and how often it was asked meanwhile."""
        c = conn(self.a)
        return c["oldest_ms"], c["tx_noops"] - self.before

    def asked(self, since=0):
        """Milliseconds since it owes it at which it had not been asked yet, and at which it had."""
        last = since
        while True:
            ms, noops = self.waits()
            if noops:
                return last, ms
            assert ms < 60_000
            last = ms

    def __exit__(self, *_exc):
        self.b.set(lazy=0)
        self.load.result()


def test_probe(nodes):
    """How long a peer that owes an answer may be silent until it is asked."""
    a, b = nodes
    up(a, b, lnd="keepalive=0")
    a.ping(b)
    asked = {}
    for ms in 500, 3000:
        tuned(a, f"probe={ms}")
        with Owed(a, b) as owed:
            asked[ms] = owed.asked()
            # Not again soon, however short that is: it may be busy.
            until(lambda: owed.waits()[1] == 2, "asked again")
            assert owed.waits()[0] >= asked[ms][0] + 2500
        assert asked[ms][1] >= ms, asked
    assert asked[500][1] < asked[3000][0], asked
    assert a.conns() == 1


def test_probe_counts_at_once(nodes):
    """By ni_tune and by the parameter, for what waits already; and 0 is never."""
    a, b = nodes
    up(a, b, lnd="keepalive=0")
    a.ping(b)
    for how in (lambda ms: tuned(a, f"probe={ms}"), lambda ms: write(a, "probe", ms)):
        how(0)
        with Owed(a, b) as owed:
            until(lambda: owed.waits()[0] > 6000, "a while")
            assert owed.waits()[1] == 0
            how(250)
            # Without that at a quarter of the timeout, 12.5 s.
            _before, ms = owed.asked(6000)
            assert ms < 11_000
        how(60_000)
        with Owed(a, b) as owed:
            until(lambda: owed.waits()[0] > 3000, "a while")
            assert owed.waits()[1] == 0
            how(500)
            _before, ms = owed.asked(3000)
            assert ms < 20_000
        write(a, "ni_tune", "")
    for value in ("-1", "1", "249", "60001", "x"):
        a.guest.check("dmesg -c >/dev/null")
        write(a, "probe", value, ok=False)
        assert re.search(r"ro2iblnd: parameter probe(=-?\d+ is out of range: 0 or 250\.\.60000| is not an integer)$", a.log(), re.M), a.log()
    assert a.guest.check(f"cat {PARAMS}/probe").strip() == "500" and a.ctl(f"ni show {a.nid}")["probe"] == 500
