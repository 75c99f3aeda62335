# SPDX-License-Identifier: GPL-2.0
"""Tunables seen to act: on the wire, in the time that something takes, in what the device counts. The same under lnet_lite
(test_tunables.py) and under real LNet (test_lustre_tunables.py), on a Bed of either."""

import re

from faults import ROCE, Heard, silence
from flow import conn
from nodes import until
from test_operator import PARAMS, debugfs, write
from vm import link_name

# Of reliable connections: not the messages of the connection manager.
RC = f"{ROCE} @th,64,8 < 0x20"
# Messages of the protocol by their magic behind UDP and BTH, the first or only packet of a SEND. Then the sum, four words on.
MESSAGE = f"{ROCE} @th,64,8 {{ 0x00, 0x04 }} @th,160,32 0x911be90b"
# More than fits into an MTU of 2048.
LARGE = f"{RC} meta length gt 2200"
# What is shown under another name than it is set by.
SHOWN = {"peer_credits": "queue_depth"}


def mtus(node):
    """Path MTUs of the connections of a node with ro2iblnd."""
    return {int(n) for n in re.findall(r" mtu=(\d+)", debugfs(node))}


class Bed:
    """Two nodes with an NI each and a connection; where not said otherwise `a` runs ro2iblnd. What differs between the two LNets
    is in the classes derived of this one:

    messages(one, other, size, count)      so many PUTs, and GETs, none of which may fail
    start(one, other, size, count, conc)   PUTs, whatever becomes of them: running(), result() as (errors, seconds)
    lose(one, other)                       a PUT; seconds until it failed, None if it did not
    reach(one, other)                      an answered message, over a new connection if there is none
    reach_again(one, other)                the same, though it may take a while
    close(one)                             close the connections of `one` with the other
    connected(one)                         number of its connections with the other
    lazy(node, on)                         its LNet takes no more PUTs, though its transport does
    shown(node, key)                       the value that LNet is told is in force
    older(node)                            connections that still run with other values, and all that there are
    log(node), mark(node)                  its kernel log since the mark
    """

    def __init__(self, a, b):
        self.a, self.b = a, b

    def apart(self):
        """No connection left."""
        for node in (self.a, self.b):
            self.close(node)
        until(lambda: not self.connected(self.a) and not self.connected(self.b), "closed")

    def reconnect(self, one, other):
        """A new connection, opened by `one`."""
        self.apart()
        self.reach(one, other)

    def tune(self, node, **values):
        """Set while it runs, by ni_tune; shown at once."""
        write(node, "ni_tune", " ".join(["*@o2ib", *(f"{key}={value}" for key, value in values.items())]))
        for key, value in values.items():
            assert self.shown(node, SHOWN.get(key, key)) == value, key

    def all_are_older(self, node):
        """What is in force waits for new connections."""
        older, count = self.older(node)
        return older == count >= 1

    def none_is_older(self, node):
        return self.older(node)[0] == 0

    def told(self, node, text):
        assert text in self.log(node), self.log(node)


def tos(bed):
    """The packets of a connection carry the class that was set when it was opened, those of who opened it and of the
    peer; one that is there keeps its own."""
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
    # The other node was told nothing: what it opens has no class.
    bed.reconnect(b, a)
    with Heard(a.guest, *classes) as here:
        bed.messages(b, a, 20000, 20)
        plain, marked = here.count()
        assert plain >= 20 and marked == 0


def retry_count(bed):
    """A peer that hears nothing: each try takes 1.07 s on soft-RoCE, the first and as many more as was said."""
    a, b = bed.a, bed.b
    took = []
    # Who connects says it for both ends.
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
    """How often its device was told to come again later, and how often it gave up."""
    text = node.guest.check(f"rdma -p statistic show link {link_name(node.guest)}/1")
    return [int(re.search(rf"\b{key} (\d+)", text)[1]) for key in ("rcvd_rnr_err", "retry_rnr_exceeded_err")]


def rnr_retry_count(bed):
    """A node whose receive queues are empty: its peer comes again as often as this node said when they connected,
    whichever of them connects, and whatever the peer itself is tuned to. `b` runs ro2iblnd here, and has ib_profile."""
    a, b = bed.a, bed.b

    def deaf(on):
        b.guest.check(f"echo {on} >/sys/module/ib_profile/parameters/deaf")

    for tries, opener, other in ((1, a, b), (5, a, b), (2, b, a)):
        bed.tune(b, rnr_retry_count=tries)
        bed.tune(a, rnr_retry_count=4)
        bed.reconnect(opener, other)
        before = naks(a)
        bed.mark(a)
        # What is posted already is used up.
        deaf(1)
        lost = any(bed.lose(a, b) for _ in range(40))
        deaf(0)
        assert lost, bed.log(a)
        bed.told(a, "a send failed: RnrRetryExc")
        assert [now - was for now, was in zip(naks(a), before)] == [tries + 1, 1]
        bed.apart()
    # 7 is without end: the message waits for as long as the connection stays.
    bed.tune(b, rnr_retry_count=7)
    bed.reach(a, b)
    before = naks(a)
    deaf(1)
    load = bed.start(a, b, 200, 100, 8)
    until(lambda: naks(a)[0] - before[0] > 40, "asked again and again")
    assert load.running() and bed.connected(a) == 1 and naks(a)[1] == before[1]
    deaf(0)
    # Its buffers are gone: what is left of the run goes over a new connection.
    bed.close(b)
    load.result()
    bed.reach_again(a, b)
    bed.messages(a, b, 20000, 20)


def checksum(bed):
    """With the next message: each carries a sum, or none, as the parameter has it at that moment; without a new
    connection, and of this node only. The receiver, which checks what carries a sum, finds no fault."""
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
        # None of what wants none, all of what wants one.
        assert counts[value] >= 40 and counts[1 - value] == 0, counts
    assert bed.connected(a) == 1 and "bad checksum" not in bed.log(b).lower()


def large_packets(bed, device="eth0"):
    """Packets above an MTU of 2048 that `b` hears while messages of 64 KiB come."""
    with Heard(bed.b.guest, LARGE, device=device) as there:
        bed.messages(bed.a, bed.b, 65536, 20)
        return there.count()[0]


class Owed:
    """The peer's LNet takes nothing, so it owes an answer, and its transport acknowledges all the same. Inside `with`."""

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
        """For how many milliseconds the peer has owed it, and how often it was asked meanwhile."""
        c = self._conn()
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
        self.bed.lazy(self.bed.b, False)
        self.load.result()


def probe(bed):
    """How long a peer that owes an answer may be silent until it is asked. No keepalive."""
    asked = {}
    for ms in 500, 3000:
        bed.tune(bed.a, probe=ms, keepalive=0)
        with Owed(bed) as owed:
            asked[ms] = owed.asked()
            # Not again soon, however short that is: it may be busy.
            until(lambda: owed.waits()[1] >= 2, "asked again")
            assert owed.waits()[0] >= asked[ms][0] + 2500
        assert asked[ms][1] >= ms, asked
    assert asked[500][0] < 3000, asked
    assert bed.connected(bed.a) == 1


def probe_at_once(bed):
    """By ni_tune and by the parameter, for what waits already; and 0 is never. No keepalive by the parameter."""
    a = bed.a
    for how in (lambda ms: bed.tune(a, probe=ms), lambda ms: write(a, "probe", ms)):
        how(0)
        with Owed(bed) as owed:
            until(lambda: owed.waits()[0] > 6000, "a while")
            assert owed.waits()[1] == 0
            how(250)
            # Without that at a quarter of the timeout, 12.5 s.
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
    """A PUT that is not answered fails after as long as is in force by then: what waits already counts."""
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
        # Looked at each quarter of it.
        assert errors == 1 and after <= seconds <= after * 1.5 + 4, (after, seconds)
        bed.told(a, "the peer did not answer in time")


def keepalive(bed):
    """An idle connection says a word as often as was said, from then on; 0 is never."""
    a = bed.a

    def noops():
        return conn(a, peer=bed.b.nid)["tx_noops"]

    def in_a_while():
        before = noops()
        a.guest.check("sleep 5")
        return noops() - before

    for seconds in (0, 1, 0):
        bed.tune(a, keepalive=seconds, timeout=4)
        # Once more at most: it is looked at every second.
        a.guest.check("sleep 2")
        said = in_a_while()
        assert 2 <= said <= 6 if seconds else said == 0, (seconds, said)
    assert bed.none_is_older(a) and bed.connected(a) == 1


def depth(bed):
    """A peer whose LNet takes nothing gets as many messages as the connection is deep, and no more: of what was in force
    when it was made. Both nodes were started with 32."""
    a, b = bed.a, bed.b

    def sent():
        """Messages that come to a node that takes none, of 48."""
        bed.lazy(b, True)
        with Heard(b.guest, MESSAGE) as there:
            load = bed.start(a, b, 200, 48, 48)
            until(lambda: conn(a, peer=b.nid)["q_main"], "some wait for a credit")
            a.guest.check("sleep 1")
            come = there.count()[0]
        bed.lazy(b, False)
        load.result()
        return come

    shallow, deep = range(6, 11), range(28, 35)
    assert sent() in deep
    bed.tune(a, peer_credits=8)
    assert bed.all_are_older(a)
    assert sent() in deep
    bed.reconnect(a, b)
    assert bed.none_is_older(a)
    assert sent() in shallow
    bed.tune(a, peer_credits=32)
    bed.reconnect(b, a)
    assert sent() in deep
