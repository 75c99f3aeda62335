# SPDX-License-Identifier: GPL-2.0
"""Messages of the connection manager that are lost on the wire."""

import re
import statistics

import pytest
from faults import DEBUGFS, Ledger, close_all, debug_nis, lose, objects, ping_until, slow, timed
from nodes import CTL, until, up

# Seconds to recover or to fail cleanly: timeout / 4, the longest that an attempt may take.
LIMIT = 13


def slack():
    """Returns the seconds to add to LIMIT: for commands, and for the handshake of a second attempt."""
    return 2 * slow()


@pytest.fixture
def roles(nodes, request):
    """Returns (active, passive) pairs: both directions with --long, otherwise one."""
    return (nodes, nodes[::-1]) if request.config.getoption("--long") else (nodes,)


def report(record_property, name, value):
    record_property(name, value)
    print(f"{name}: {value}")


def test_a_neighbour_moves_meanwhile(nodes):
    """A message waits for the next attempt if the neighbour moves while the request goes to its old address."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("of RoCE")
    up(a, b)
    there = "52:54:00:00:00:02"
    with lose(b, "REQ"):
        run = a.start(b, op="put-ack", size=100, count=2, conc=2, timeout=60)
        for mac in "52:54:00:00:0f:02", there:
            until(lambda: "state CONNECT" in a.guest.check("rdma resource show cm_id"), "a request is on its way")
            a.guest.check(f"ip neigh replace {b.address} lladdr {mac} dev eth0 nud reachable")
            until(lambda: "an address changed" in a.log(), "it is told")
            a.mark_log()
    r = run.result()
    assert r["count"] == 2 and not r["errors"], r
    assert a.stats()["notify_down"] == 0


@pytest.mark.parametrize("how", ["first", "always"])
@pytest.mark.parametrize("message", ["REQ", "REP", "RTU"])
def test_handshake(nodes, roles, record_property, message, how):
    up(*nodes)
    ledger = Ledger(*nodes)
    for active, passive in roles:
        deaf = active if message == "REP" else passive
        with lose(deaf, message, first=how == "first") as wire:
            spent, answer = timed(lambda a=active, p=passive: a.ping(p, ok=False))
            lost = wire.lost()
        report(record_property, f"{message} {how} {active.guest.name}", f"{spent:.2f} s rc {answer['rc']} lost {lost}")
        assert lost >= 1
        assert spent < LIMIT + slack()
        # A ping may fail only if no retry can help.
        assert answer["rc"] == 0 or (how == "always" and message != "RTU")
        spent, failed = ping_until(active, passive, LIMIT)
        report(record_property, f"{message} {how} {active.guest.name} after", f"{spent:.2f} s, {failed} failed")
        active.traffic(passive, op="mix", size=65536, count=20)
        passive.traffic(active, op="mix", size=65536, count=20)
        ledger.check()


def test_lost_rtu_costs_nothing(nodes, record_property):
    up(*nodes)
    a, b = nodes
    a.ping(b)
    close_all(*nodes)
    times = {"kept": [], "lost": []}
    for _ in range(7):
        times["kept"].append(a.ping(b)["usec"])
        close_all(*nodes)
        with lose(b, "RTU") as wire:
            times["lost"].append(a.ping(b)["usec"])
            assert wire.lost() >= 1
        close_all(*nodes)
    report(record_property, "first exchange, us", f"RTU kept {times['kept']}, lost {times['lost']}")
    report(record_property, "medians, us", {k: statistics.median(v) for k, v in times.items()})
    # The minimum of each list is the cost. The rest is other load of the machine. An attempt that waits for the CM's
    # repetition takes 4.3 s.
    assert min(times["lost"]) < min(times["kept"]) + 1_500_000, times


def established(node):
    """Returns the number of established connections."""
    text = node.guest.check(f"cat {DEBUGFS}/ro2iblnd/{node.nid}")
    return len(re.findall(r"^conn=.* state=Established ", text, re.MULTILINE))


def test_lost_rtu_without_traffic(nodes, record_property):
    """The CM's repeated REP, which gets another RTU, establishes a connection without traffic. The second connection of
    a peer has no message of its own, so no message of the peer can establish it."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    ledger = Ledger(a, b)
    with lose(b, "RTU") as wire:
        a.ping(b)
        until(lambda: established(a) == 2 and wire.lost() >= 2, "both are asked for, and both RTUs are lost", LIMIT, 0.05)
        # A message over the first connection has established that connection.
        assert established(b) == 1
    spent, _ = timed(lambda: until(lambda: established(b) == 2, "the other one is up", LIMIT, 0.05))
    report(record_property, "up after", f"{spent:.2f} s")
    for one, other in ((a, b), (b, a)):
        one.traffic(other, op="mix", size=65536, count=20)
    assert established(a) == established(b) == 2
    ledger.check()


@pytest.mark.parametrize("how", ["first", "always"])
def test_reject(nodes, roles, record_property, how):
    """A port without a listener answers with a REJ of the CM, which the CM does not repeat by itself."""
    up(*nodes)
    ledger = Ledger(*nodes)
    for active, passive in roles:
        passive.ni_del()
        with lose(active, "REJ", first=how == "first") as wire:
            spent, answer = timed(lambda a=active, p=passive: a.ping(p, ok=False))
            lost = wire.lost()
        report(record_property, f"REJ {how} {active.guest.name}", f"{spent:.2f} s rc {answer['rc']} lost {lost}")
        assert lost >= 1 and answer["rc"] != 0 and spent < LIMIT + slack()
        passive.ni_add()
        spent, failed = ping_until(active, passive, LIMIT)
        report(record_property, f"REJ {how} {active.guest.name} after", f"{spent:.2f} s, {failed} failed")
        active.traffic(passive, op="mix", size=65536, count=20)
        ledger.check()


@pytest.mark.parametrize("how", ["first", "always"])
@pytest.mark.parametrize("message", ["DREQ", "DREP"])
def test_disconnect(nodes, roles, record_property, message, how):
    up(*nodes)
    ledger = Ledger(*nodes)
    for active, passive in roles:
        for closer, other in ((active, passive), (passive, active)):
            active.ping(passive)
            deaf = other if message == "DREQ" else closer
            name = f"{message} {how} by {'active' if closer is active else 'passive'} {closer.guest.name}"
            with lose(deaf, message, first=how == "first") as wire:
                closer.ctl(f"conn close {other.nid}")
                spent, _ = timed(lambda c=closer: until(lambda: objects(c) == 0, "closed", LIMIT, 0.05))
                report(record_property, name, f"closed in {spent:.2f} s, lost {wire.lost()}")
                until(lambda w=wire: w.lost() >= 1, "it is lost")
                # The closer connects again. If the other node heard nothing, it has a dead connection too, and prefers
                # the new one.
                again, failed = ping_until(closer, other, LIMIT)
                back, missed = ping_until(other, closer, LIMIT)
                report(record_property, f"{name} after", f"{again:.2f} s {failed} failed, back {back:.2f} s {missed} failed")
            assert spent < 3 + slack() and failed == 0 and missed == 0
            closer.traffic(other, op="mix", size=65536, count=20)
            ledger.check()


def close_unheard(closer, other):
    """Closes a connection while `other` hears no DREQ."""
    closer.ping(other)
    until(lambda: objects(other) == 1, "one connection")
    closer.ctl(f"conn close {other.nid}")
    until(lambda: objects(closer) == 0, "closed", LIMIT, 0.05)


def lingering(node):
    return sum(int(ni["lingering"]) for ni in debug_nis(node))


def test_lost_dreq_is_repeated(nodes, record_property):
    """The CM repeats a lost DREQ. No message follows the close: only the id of the connection is left, and tells the
    peer again."""
    up(*nodes)
    ledger = Ledger(*nodes)
    for closer, other in (nodes, nodes[::-1]):
        with lose(other, "DREQ", first=True) as wire:
            close_unheard(closer, other)
            assert lingering(closer) == 1 and objects(other) == 1
            spent, _ = timed(lambda o=other: until(lambda: objects(o) == 0, "heard", LIMIT, 0.05))
            assert wire.lost() == 1
        report(record_property, f"DREQ of {closer.guest.name} heard again after", f"{spent:.2f} s")
        until(lambda c=closer: lingering(c) == 0, "the id is gone", LIMIT)
        # The first message meets no dead connection.
        other.ping(closer)
        ledger.check()


def test_unanswered_dreq_holds_nothing(nodes, record_property):
    """An id that waits for the answer to its DREQ goes at once with the NI, the device and the module."""
    up(*nodes)
    a, b = nodes
    close_all(a, b)
    with lose(b, "DREQ"):
        close_unheard(a, b)
        assert lingering(a) == 1
        spent, _ = timed(a.unplug)
        report(record_property, "link deleted within", f"{spent:.2f} s")
        assert spent < 3 + slack() and lingering(a) == 0
        a.plug()
        until(lambda: all(ni["device"] == a.device for ni in debug_nis(a)), "attached")
        close_all(b)
        close_unheard(a, b)
        assert lingering(a) == 1
        spent, _ = timed(lambda: (a.ni_del(), a.guest.check("rmmod ro2iblnd")))
        report(record_property, "NI and module gone within", f"{spent:.2f} s")
        assert spent < 3 + slack()
        a.guest.check("insmod /files/ro2iblnd.ko")
        a.ni_add()
        # The DREQ is not repeated now. The peer learns of the close from the new connection.
        a.ping(b)
        b.traffic(a, op="mix", size=65536, count=20)


def test_id_of_a_dead_peer_goes(nodes, record_property):
    """An id whose answer never comes goes after a while."""
    up(*nodes)
    a, b = nodes
    ledger = Ledger(a, b)
    with lose(b, "DREQ"):
        close_unheard(a, b)
        spent, _ = timed(lambda: until(lambda: lingering(a) == 0, "the id is gone", 60, 0.1))
        report(record_property, "id gone after", f"{spent:.2f} s")
    ledger.check()


def test_mra(nodes):
    """The CM sends MRA on request only, and the driver does not ask. If an MRA were sent and lost, nothing would
    change."""
    up(*nodes)
    a, b = nodes
    with lose(a, "MRA") as at_a, lose(b, "MRA") as at_b, lose(a, "REP", first=True) as rep:
        # A repeated REQ could cause an MRA.
        spent, _ = timed(lambda: a.ping(b))
        assert rep.lost() == 1 and spent < LIMIT
        assert (at_a.lost(), at_b.lost()) == (0, 0)
    a.traffic(b, op="mix", size=65536, count=20)


@pytest.mark.parametrize("size", [1000, 20000])
def test_sent_messages_have_arrived(nodes, record_property, size):
    """A PUT that did not fail at its sender has arrived, also if the receiver was closing. The receiver closes its
    connections under PUTs, again and again. The fate of failed PUTs is unknown."""
    a, b = nodes
    if "early_ms" in (b.guest.timing or ""):
        pytest.skip("it acknowledges messages into buffers that it has flushed")
    up(a, b)
    a.ping(b)
    before = b.stats()["recv_put"]
    count = failed = late = 0
    # One in five closes has such a PUT.
    for _ in range(5):
        # If connections break at once, the peer pauses between attempts.
        closes = b.guest.spawn(f"for i in $(seq 30); do echo 'peer del any from={b.nid}' >{CTL}/ctl; sleep 1.05; done")
        while not closes.poll():
            total = a.try_traffic(b, op="put", size=size, count=500, conc=64)
            count += total["count"]
            failed += total["errors"]
        until(lambda: b.stats()["recv_put"] - before >= count, "all have come", LIMIT)
        text = b.guest.check(f"cat {DEBUGFS}/ro2iblnd/{b.nid}")
        late = sum(int(n) for n in re.findall(r"^closed_conns=.* late_rx=(\d+)", text, re.MULTILINE))
        if late:
            break
    report(record_property, f"closed under PUTs of {size}", f"{count} PUTs sent, {failed} failed, {late} came late")
    assert count > 0 and late > 0


def test_an_attempt_that_is_closed_costs_no_message(nodes):
    """An administrator's close fails no message that waits for a connection: it goes over the next connection."""
    a, b = nodes
    up(a, b)
    ledger = Ledger(a, b)
    with lose(b, "REQ") as wire:
        load = a.start(b, op="get", size=64, count=1, conc=1)
        until(lambda: wire.lost() > 0, "asked", LIMIT, 0.05)
        a.ctl(f"conn close {b.nid}")
        until(lambda: "closed by lctl disconnect" in a.log(), "closed")
    total = load.result()
    assert (total["count"], total["errors"], total["timeouts"]) == (1, 0, 0), total
    ledger.check()
