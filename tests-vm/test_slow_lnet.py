# SPDX-License-Identifier: GPL-2.0
"""The driver below an LNet that is slow, full, forgetful or late."""

import pytest
from faults import slow, timed
from counters import conn, conns
from nodes import until, up
from test_hostile_connect import counted


def test_slow_consumer(nodes):
    """Credits are withheld while LNet is busy, nothing is lost, and other messages go on."""
    a, b = nodes
    up(a, b)
    b.set(slow_ms=20)
    a.traffic(b, op="mix", size=4096, count=100, conc=64)
    b.set(slow_ms=0)
    a.traffic(b, op="mix", size=4096, count=100, conc=64)


@pytest.mark.parametrize("size", [100, 20000])
def test_late_match(nodes, size):
    """A message works if lnd_recv comes later, from another thread."""
    a, b = nodes
    up(a, b)
    b.set(recv_delay_ms=30)
    a.traffic(b, op="put-ack", size=size, count=60, conc=32)
    assert b.stats()["delayed_recvs"] > 0
    b.set(recv_delay_ms=0)


@pytest.mark.parametrize("size", [100, 20000])
def test_lazy_portal(nodes, size):
    """Messages wait in the driver's buffers until LNet takes them."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=size, count=6, conc=6)
    while b.stats()["delayed"] < 6:
        assert run.running()
    # Two of eight credits are left, one of them for the return of credits: the other direction, whose answers need
    # credits too, does not stall.
    b.traffic(a, op="mix", size=4096, count=20)
    b.set(lazy=0)
    r = run.result()
    assert r["count"] == 6 and not r["errors"], r
    # All credits are withheld, and then returned.
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=size, count=40, conc=40, ask=0)
    while b.stats()["delayed"] < 8:
        assert run.running()
    assert b.stats()["delayed"] == 8
    b.set(lazy=0)
    r = run.result()
    assert r["count"] == 40 and not r["errors"], r


def test_receives_stay_posted_after_many_delays(nodes):
    """Receives stay posted although each message that LNet keeps uses a buffer."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    full = conn(b)["recvs"]
    for _ in range(5):
        b.set(lazy=1)
        run = a.start(b, op="put", size=100, count=8, conc=8)
        until(lambda: b.stats()["delayed"] == 8, "kept by LNet")
        b.set(lazy=0)
        assert run.result()["count"] == 8
    # LNet has as many messages as it can, and has not decided about them yet.
    b.set(slow_ms=1000)
    run = a.start(b, op="put", size=100, count=24, conc=20, timeout=120)
    seen = []
    while run.running() and len(seen) < 5:
        c = conn(b)
        if c["with_lnet"] == 8:
            seen.append(c["recvs"])
    b.set(slow_ms=0)
    assert run.result()["count"] == 24
    # Up to seven receives may wait for their doorbell.
    assert seen and min(seen) > full - 8, seen


def test_device_goes_while_lnet_keeps_messages(nodes):
    """Messages that LNet keeps, or has not seen yet, do not hold the device."""
    a, b = nodes
    up(a, b, peer_credits=64)
    a.ping(b)
    b.set(lazy=1, slow_ms=20)
    # More messages than spare buffers, and so slow that some reach LNet after the end.
    run = a.start(b, op="put", size=100, count=64, conc=64, ask=0, timeout=60)
    until(lambda: conn(b)["with_lnet"] > 40, "many requests")
    spent, _ = timed(b.unplug)
    assert spent < 5 * slow(), spent
    assert b.stats()["delayed"] > 0
    b.set(lazy=0, slow_ms=0)
    assert not run.result()["stuck"]
    b.plug()
    until(lambda: a.ping(b, ok=False)["rc"] == 0, "traffic again")
    a.traffic(b, op="mix", size=20000, count=20)


def test_every_third_does_not_match(nodes):
    a, b = nodes
    up(a, b)
    b.set(match_fail_every=3)
    r = a.try_traffic(b, op="put", size=20000, count=60, conc=8, ask=0)
    assert r["issued"] == 60 and not r["timeouts"], r
    b.set(match_fail_every=0)
    a.traffic(b, op="mix", size=20000, count=20)
    assert a.conns() == 1


@pytest.mark.parametrize("size", (100, 20000))
def test_lnet_refuses_messages(nodes, size):
    """A message for a NID that LNet does not accept, as after a wrong route, costs that message only."""
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=size, count=4)
    b.set(parse_err_every=20)
    for op in ("put", "get"):
        # Some runs wait in vain for the ACK or the REPLY of a refused message.
        r = a.try_traffic(b, op=op, size=size, count=60, conc=4, timeout=10)
        assert r["issued"] == 60 and not r["stuck"], r
    b.set(parse_err_every=0)
    a.traffic(b, op="mix", size=size, count=20)
    for node in nodes:
        assert not counted(node, "closed", "Protocol")
        assert len(conns(node)) == 1
    refused = counted(b, "other", "NotForLNet")
    assert refused >= 6 and refused == b.stats()["parse_refused"]
    assert f"{a.nid}: LNet refused a message for {b.nid}: error (-71): dropped; check the routes on the peer" in b.log()


def test_slow_finalize(nodes):
    a, b = nodes
    up(a, b)
    for node in nodes:
        node.set(finalize_delay_ms=10)
    a.traffic(b, op="mix", size=20000, count=60, conc=32)
    for node in nodes:
        node.set(finalize_delay_ms=0)


def test_few_credits_of_the_ni(nodes):
    a, b = nodes
    up(a, b, credits=8, peer_credits=8)
    a.traffic(b, op="mix", size=20000, count=200, conc=128)


def test_unload_while_messages_wait(nodes):
    """`ni del` works with held receives: LNet discards them, and the driver frees them."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    b.set(lazy=1)
    run = a.start(b, op="put", size=20000, count=6, conc=6, ask=0, timeout=30)
    until(lambda: b.stats()["delayed"] >= 6 or not run.running(), "held receives")
    assert run.running()
    job = b.guest.spawn(b.ctl_script(f"ni del {b.nid}"))
    b.set(lazy=0)
    assert "rc=0" in job.wait(240)[1]
    r = run.result()
    assert r["issued"] == 6 and not r["stuck"], r
