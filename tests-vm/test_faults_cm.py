# SPDX-License-Identifier: GPL-2.0
"""Messages of the connection manager that are lost on the wire."""

import statistics

import pytest
from faults import Ledger, close_all, lose, objects, ping_until, timed
from nodes import until, up

# Recovered, or failed cleanly: timeout / 4, that is how long an attempt may take.
LIMIT = 13
# What a slow machine adds to that: commands, a second attempt's handshake.
SLACK = 2


@pytest.fixture
def roles(nodes, request):
    """(active, passive): both ways, in the short form one."""
    return (nodes, nodes[::-1]) if request.config.getoption("--long") else (nodes,)


def report(record_property, name, value):
    record_property(name, value)
    print(f"{name}: {value}")


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
        assert spent < LIMIT + SLACK
        # Only what no retry can cure may fail.
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
    # The least of each is what it costs; the rest is what else the machine had to do.
    assert min(times["lost"]) < 2 * min(times["kept"]), times


def test_lost_rtu_and_the_passive_side_speaks_first(nodes, record_property):
    """Nothing of the peer establishes the connection then, only the CM's repeated REP."""
    up(*nodes)
    a, b = nodes
    ledger = Ledger(a, b)
    with lose(b, "RTU", first=True) as wire:
        # Both have something to say; a is the one that asks.
        run = a.start(b, op="put", size=100, count=1, conc=1)
        spent, answer = timed(lambda: b.ping(a, ok=False))
        assert run.result()["errors"] == 0
        report(record_property, "both", f"{spent:.2f} s rc {answer['rc']} lost {wire.lost()}")
    assert answer["rc"] == 0 and spent < LIMIT
    ledger.check()


@pytest.mark.parametrize("how", ["first", "always"])
def test_reject(nodes, roles, record_property, how):
    """Nobody listens: a REJ of the CM, which repeats nothing by itself."""
    up(*nodes)
    ledger = Ledger(*nodes)
    for active, passive in roles:
        passive.ni_del()
        with lose(active, "REJ", first=how == "first") as wire:
            spent, answer = timed(lambda a=active, p=passive: a.ping(p, ok=False))
            lost = wire.lost()
        report(record_property, f"REJ {how} {active.guest.name}", f"{spent:.2f} s rc {answer['rc']} lost {lost}")
        assert lost >= 1 and answer["rc"] != 0 and spent < LIMIT + SLACK
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
                assert wire.lost() >= 1
                # The closer is free to connect again, the other may have to find out first.
                again, failed = ping_until(closer, other, LIMIT)
                back, missed = ping_until(other, closer, LIMIT)
                report(record_property, f"{name} after", f"{again:.2f} s {failed} failed, back {back:.2f} s {missed} failed")
            assert spent < 5
            closer.traffic(other, op="mix", size=65536, count=20)
            ledger.check()


def test_mra(nodes):
    """The CM sends MRA on request only, and the driver does not ask. Were it sent and lost, nothing would change."""
    up(*nodes)
    a, b = nodes
    with lose(a, "MRA") as at_a, lose(b, "MRA") as at_b, lose(a, "REP", first=True) as rep:
        # A REQ that comes twice is the occasion.
        spent, _ = timed(lambda: a.ping(b))
        assert rep.lost() == 1 and spent < LIMIT
        assert (at_a.lost(), at_b.lost()) == (0, 0)
    a.traffic(b, op="mix", size=65536, count=20)
