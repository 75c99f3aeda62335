# SPDX-License-Identifier: GPL-2.0
"""Tunables and their effect: on the wire, in the time that an operation takes, in the counters of the device. Each test
runs under lnet_lite (test_tunable_effects.py) and under real LNet (test_lustre_tunable_effects.py), on a Bed of
either."""

import re

from faults import ROCE, Heard, silence
from counters import conn
from nodes import until
from test_runtime_settings import PARAMS, debugfs, write
from vm import link_name

# Packets of reliable connections, without messages of the connection manager.
RC = f"{ROCE} @th,64,8 < 0x20"
# Messages of the protocol by their magic behind UDP and BTH, the first or only packet of a SEND. The checksum is four
# words later.
MESSAGE = f"{ROCE} @th,64,8 {{ 0x00, 0x04 }} @th,160,32 0x911be90b"
# Packets that do not fit into an MTU of 2048.
LARGE = f"{RC} meta length gt 2200"
# Keys that are shown under another name than the name that sets them.
SHOWN = {"peer_credits": "queue_depth"}


def mtus(node):
    """Returns the path MTUs of the connections of a node with ro2iblnd."""
    return {int(n) for n in re.findall(r" mtu=(\d+)", debugfs(node))}


class Bed:
    """Two nodes with an NI each and a connection. `a` runs ro2iblnd unless a test says otherwise. The differences
    between the two LNets are in the derived classes:

    messages(one, other, size, count)      PUTs and GETs, `count` of each, none of which may fail
    start(one, other, size, count, conc)   PUTs that may fail: running(), result() as (errors, seconds)
    lose(one, other)                       a PUT; seconds until it failed, None if it did not
    reach(one, other)                      an answered message, over a new connection if there is none
    reach_again(one, other)                an answered message, which may take a while
    close(one)                             close the connections of `one` with the other
    connected(one)                         number of its connections with the other
    lazy(node, on)                         its LNet takes no more PUTs, though its transport does
    shown(node, key)                       the value that LNet reports as in force
    older(node)                            number of connections with older values, and of all connections
    log(node), mark(node)                  its kernel log since the mark
    """

    def __init__(self, a, b):
        self.a, self.b = a, b

    def apart(self):
        """Closes all connections of both nodes."""
        for node in (self.a, self.b):
            self.close(node)
        until(lambda: not self.connected(self.a) and not self.connected(self.b), "closed")

    def reconnect(self, one, other):
        """Replaces the connections by a new one, which `one` opens."""
        self.apart()
        self.reach(one, other)

    def tune(self, node, **values):
        """Sets values by ni_tune on the running node, and checks that they are shown at once."""
        write(node, "ni_tune", " ".join(["*@o2ib", *(f"{key}={value}" for key, value in values.items())]))
        for key, value in values.items():
            assert self.shown(node, SHOWN.get(key, key)) == value, key

    def all_are_older(self, node):
        """Returns whether all connections still have older values, because a new value applies to new connections."""
        older, count = self.older(node)
        return older == count >= 1

    def none_is_older(self, node):
        return self.older(node)[0] == 0

    def told(self, node, text):
        assert text in self.log(node), self.log(node)


def tos(bed):
    """Packets of a connection, in both directions, carry the class that its opener had at that time. An existing
    connection keeps its class."""
    a, b = bed.a, bed.b
    classes = [f"{RC} ip dscp {n}" for n in (0, 96 >> 2)]
    with Heard(a.guest, *classes) as here, Heard(b.guest, *classes) as there:
        bed.tune(a, tos=96)
        bed.messages(a, b, 20000, 20)
        assert [h.count()[1] for h in (here, there)] == [0, 0]
        assert bed.all_are_older(a)
        bed.reconnect(a, b)
        assert bed.none_is_older(a)
    with Heard(a.guest, *classes) as here, Heard(b.guest, *classes) as there:
        bed.messages(a, b, 20000, 20)
        for plain, marked in (here.count(), there.count()):
            assert plain == 0 and marked >= 20
    # The other node has no class set: connections that it opens have no class.
    bed.reconnect(b, a)
    with Heard(a.guest, *classes) as here:
        bed.messages(b, a, 20000, 20)
        plain, marked = here.count()
        assert plain >= 20 and marked == 0


def retry_count(bed):
    """retry_count limits the tries to a silent peer: each takes 1.07 s on soft-RoCE, the first and `retry_count`
    more."""
    a, b = bed.a, bed.b
    took = []
    # The node that connects sets the value for both ends.
    for opener, other, tries, others in ((a, b, 1, 5), (a, b, 5, 1), (b, a, 1, 5)):
        bed.tune(opener, retry_count=tries)
        bed.tune(other, retry_count=others)
        bed.reconnect(opener, other)
        assert bed.none_is_older(a)
        bed.mark(a)
        with silence(b):
            took.append(bed.lose(a, b))
        bed.told(a, "a send failed: RetryExc")
        bed.reach_again(a, b)
    one, five, by_the_peer = took
    assert one > 2 and by_the_peer > 2 and five > 6 and five - max(one, by_the_peer) > 2.5, took


def naks(node):
    """Returns how many RNR NAKs the device of a node received, and how often it gave up."""
    text = node.guest.check(f"rdma -p statistic show link {link_name(node.guest)}/1")
    return [int(re.search(rf"\b{key} (\d+)", text)[1]) for key in ("rcvd_rnr_err", "retry_rnr_exceeded_err")]


def rnr_retry_count(bed):
    """A peer repeats a send to a node without receive buffers as often as that node said when they connected, whichever
    of them connects, and whatever the peer itself is tuned to. `b` runs ro2iblnd here, and has ib_imitate."""
    a, b = bed.a, bed.b

    def deaf(on):
        b.guest.check(f"echo {on} >/sys/module/ib_imitate/parameters/deaf")

    for tries, opener, other in ((1, a, b), (5, a, b), (2, b, a)):
        bed.tune(b, rnr_retry_count=tries)
        bed.tune(a, rnr_retry_count=4)
        bed.reconnect(opener, other)
        before = naks(a)
        bed.mark(a)
        # The messages first use up the posted buffers.
        deaf(1)
        lost = any(bed.lose(a, b) for _ in range(40))
        deaf(0)
        assert lost, bed.log(a)
        bed.told(a, "a send failed: RnrRetryExc")
        assert [now - was for now, was in zip(naks(a), before)] == [tries + 1, 1]
        bed.apart()
    # 7 means no limit: the message waits as long as the connection stays.
    bed.tune(b, rnr_retry_count=7)
    bed.reach(a, b)
    before = naks(a)
    deaf(1)
    load = bed.start(a, b, 200, 100, 8)
    until(lambda: naks(a)[0] - before[0] > 40, "asked again and again")
    assert load.running() and bed.connected(a) == 1 and naks(a)[1] == before[1]
    deaf(0)
    # The node has no buffers left: the rest of the run goes over a new connection.
    bed.close(b)
    load.result()
    bed.reach_again(a, b)
    bed.messages(a, b, 20000, 20)


def checksum(bed):
    """The parameter applies to the next message of this node, without a new connection: it carries a checksum or none.
    The receiver checks each checksum and finds no fault."""
    a, b = bed.a, bed.b
    bed.mark(b)

    def sums():
        with Heard(b.guest, f"{MESSAGE} @th,256,32 0", f"{MESSAGE} @th,256,32 != 0") as there:
            with Heard(a.guest, f"{MESSAGE} @th,256,32 != 0") as here:
                bed.messages(a, b, 200, 20)
                bed.messages(a, b, 20000, 20)
                assert here.count() == [0]
                return there.count()

    for value in (0, 1, 0):
        write(a, "cksum", value)
        counts = sums()
        # No message has a checksum with 0, and each has one with 1.
        assert counts[value] >= 40 and counts[1 - value] == 0, counts
    assert bed.connected(a) == 1 and "bad checksum" not in bed.log(b).lower()


def large_packets(bed, device="eth0"):
    """Returns the number of packets above an MTU of 2048 that `b` hears during messages of 64 KiB."""
    with Heard(bed.b.guest, LARGE, device=device) as there:
        bed.messages(bed.a, bed.b, 65536, 20)
        return there.count()[0]


class Owed:
    """Peer that owes an answer because its LNet takes no message, while its transport acknowledges. Inside `with`."""

    def __init__(self, bed):
        self.bed, self.a = bed, bed.a

    def _conn(self):
        return conn(self.a, peer=self.bed.b.nid)

    def __enter__(self):
        self.bed.lazy(self.bed.b, True)
        self.before = self._conn()["tx_noops"]
        self.load = self.bed.start(self.a, self.bed.b, 100000, 1, 1)
        until(lambda: "oldest=answer" in debugfs(self.a), "a PUT waits")
        return self

    def waits(self):
        """Returns for how many milliseconds the peer has owed the answer, and how many probes it got in that time."""
        c = self._conn()
        return c["oldest_ms"], c["tx_noops"] - self.before

    def asked(self, since=0):
        """Returns the last age in milliseconds without a probe, and the first with a probe."""
        last = since
        while True:
            ms, noops = self.waits()
            if noops:
                return last, ms
            assert ms < 60_000
            last = ms

    def __exit__(self, *_exc):
        self.bed.lazy(self.bed.b, False)
        self.load.result()


def probe(bed):
    """`probe` is the silence of a peer that owes an answer before the driver sends a NOOP. Keepalive is off."""
    asked = {}
    for ms in 500, 3000:
        bed.tune(bed.a, probe=ms, keepalive=0)
        with Owed(bed) as owed:
            asked[ms] = owed.asked()
            # However short the value, the driver does not probe again soon: the peer may be busy.
            until(lambda: owed.waits()[1] >= 2, "asked again")
            assert owed.waits()[0] >= asked[ms][0] + 2500
        assert asked[ms][1] >= ms, asked
    assert asked[500][0] < 3000, asked
    assert bed.connected(bed.a) == 1


def probe_at_once(bed):
    """ni_tune and the parameter change `probe` for a message that waits already. 0 means never. Keepalive is off by the
    parameter."""
    a = bed.a
    for how in (lambda ms: bed.tune(a, probe=ms), lambda ms: write(a, "probe", ms)):
        how(0)
        with Owed(bed) as owed:
            until(lambda: owed.waits()[0] > 6000, "a while")
            assert owed.waits()[1] == 0
            how(250)
            # The old value would act at a quarter of the timeout, 12.5 s.
            before, _ms = owed.asked(6000)
            assert before < 11_000
        how(60_000)
        with Owed(bed) as owed:
            until(lambda: owed.waits()[0] > 3000, "a while")
            assert owed.waits()[1] == 0
            how(500)
            _before, ms = owed.asked(3000)
            assert ms < 20_000
        write(a, "ni_tune", "")
    assert a.guest.check(f"cat {PARAMS}/probe").strip() == "500" and bed.shown(a, "probe") == 500


def timeout(bed):
    """A PUT without an answer fails after the timeout that is in force by then, also if the PUT waits already."""
    a, b = bed.a, bed.b
    for before, after in ((60, 4), (6, 16)):
        bed.tune(a, timeout=before)
        bed.reach_again(a, b)
        bed.mark(a)
        with Owed(bed) as owed:
            bed.tune(a, timeout=after)
            assert bed.none_is_older(a)
            until(lambda: not owed.load.running(), "it failed")  # noqa: B023
            errors, seconds = owed.load.result()
        # The driver checks each quarter of the timeout.
        assert errors == 1 and after <= seconds <= after * 1.5 + 4, (after, seconds)
        bed.told(a, "the peer did not answer in time")


def keepalive(bed):
    """An idle connection sends a NOOP every `keepalive` seconds as soon as the value is set. 0 means never."""
    a = bed.a

    def noops():
        return conn(a, peer=bed.b.nid)["tx_noops"]

    def in_a_while():
        before = noops()
        a.guest.check("sleep 5")
        return noops() - before

    for seconds in (0, 1, 0):
        bed.tune(a, keepalive=seconds, timeout=4)
        # One more NOOP at most: the driver checks every second.
        a.guest.check("sleep 2")
        said = in_a_while()
        assert 2 <= said <= 6 if seconds else said == 0, (seconds, said)
    assert bed.none_is_older(a) and bed.connected(a) == 1


def depth(bed):
    """A peer whose LNet takes no message gets as many messages as the depth of the connection, which is the depth that
    was in force when it was established. Both nodes start with 32."""
    a, b = bed.a, bed.b

    def sent(expected):
        """Checks how many of 48 messages `a` sends to a node whose LNet takes none. That node may still owe credits of
        an earlier load, at most half of them, which the probe of the waiting sender brings back. The probes are NOOPs,
        as many as the wait is long."""

        def messages():
            c = conn(a, peer=b.nid)
            return c["tx_msgs"] - c["tx_noops"]

        bed.lazy(b, True)
        before = messages()
        load = bed.start(a, b, 200, 48, 48)
        until(lambda: conn(a, peer=b.nid)["q_main"], "some wait for a credit")
        until(lambda: messages() >= before + expected.start, "as many as the depth are sent")
        a.guest.check("sleep 1")
        count = messages() - before
        bed.lazy(b, False)
        load.result()
        assert count in expected, count

    shallow, deep = range(6, 9), range(28, 33)
    sent(deep)
    bed.tune(a, peer_credits=8)
    assert bed.all_are_older(a)
    sent(deep)
    bed.reconnect(a, b)
    assert bed.none_is_older(a)
    sent(shallow)
    bed.tune(a, peer_credits=32)
    bed.reconnect(b, a)
    sent(deep)
