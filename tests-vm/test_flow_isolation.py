# SPDX-License-Identifier: GPL-2.0
"""A slow LNet, and a node without memory: other connections continue, and nothing is lost."""

import statistics
import time

import pytest
from counters import DEBUGFS, FAIL, balanced, conn, conns, no_memory, rnr, timed
from nodes import until, up

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

SLOW_MS = 50


def nets(nodes, count):
    """Opens `count` connections: an NI each on a net of its own, all on one link."""
    a, b = nodes
    up(a, b)
    for i in range(1, count):
        for n in nodes:
            n.ni_add(net=f"o2ib{i}")
    nids = []
    for i in range(count):
        suffix = f"o2ib{i or ''}"
        nids.append((f"{a.address}@{suffix}", f"{b.address}@{suffix}"))
        a.ctl(f"ping {nids[-1][1]} timeout=60")
    return nids


def slow_one(nodes, count, rounds, ops):
    """Makes LNet slow for one of `count` connections. Compares the others while it is idle, and while it is flooded, in
    turn."""
    a, b = nodes
    slow, *others = nets(nodes, count)
    b.set(slow_ms=SLOW_MS, slow_peer=slow[0])
    fresh = conn(b, slow[1])
    full = fresh["recvs"]
    p99, p50, fewest, held = {True: [], False: []}, {True: [], False: []}, full, 0
    nak = rnr(a, b)
    for n in range(rounds):
        for flooded in (False, True) if n % 2 == 0 else (True, False):
            flood = None
            if flooded:
                flood = a.start(slow[1], op="put", size=100, count=2000, conc=64, verify="off", seconds=600)
                until(lambda: conn(b, slow[1])["with_lnet"] + conn(a, slow[0])["q_main"] > 0, "a flood")
            for mine, theirs in others:
                r = timed(a, theirs, from_=mine, op="put-ack", size=1000, count=ops, conc=4, verify="off")
                p99[flooded].append(r["lat_p99_us"])
                p50[flooded].append(r["lat_p50_us"])
                if flooded:
                    c = conn(b, slow[1])
                    fewest, held = min(fewest, c["recvs"]), max(held, c["with_lnet"])
            if flooded:
                assert flood.running(), "the flood was over before the measurement"
                # A signal ends a run of lnet_lite after the messages on their way.
                flood.job.kill()
                flood.job.wait(120)
                until(lambda: conn(b, slow[1])["with_lnet"] == 0, "the slow one to be through", timeout=120)
    ratio = {k: statistics.median(v[True]) / statistics.median(v[False]) for k, v in (("p50", p50), ("p99", p99))}
    print(f"{count - 1} other connections, {rounds} pairs: p50 x {ratio['p50']:.2f}, p99 x {ratio['p99']:.2f}")
    print(f"slow one: fewest receives posted {fewest} of {full}, most messages with LNet {held}")
    assert rnr(a, b) == nak
    # 16 receives may wait for their doorbell.
    assert fewest >= full - 16, fewest
    b.set(slow_ms=0)
    return ratio


def test_slow_consumer_delays_only_itself(nodes):
    ratio = slow_one(nodes, 3, 2, 60)
    # A loose limit for a machine with other work. The long form checks more.
    assert ratio["p50"] < 2, ratio


@pytest.mark.long
def test_slow_consumer_delays_only_itself_long(nodes):
    ratio = slow_one(nodes, 16, 4, 50)
    assert ratio["p50"] < 1.2, ratio


# Seconds from the return of memory until 20 more messages have arrived.
RESUME = f"""
got() {{ grep ^conn= {DEBUGFS}/*@o2ib | sed 's/.* rx_msgs=//; s/ .*//'; }}
now() {{ cut -d' ' -f1 /proc/uptime; }}
n=$(got); echo 0 >{FAIL}/failslab/probability; echo 0 >{FAIL}/fail_page_alloc/probability; t=$(now)
while [ $(got) -lt $((n + 20)) ]; do :; done
echo "$(now) $t" | awk '{{ print $1 - $2 }}'
"""


OPS = 5000


def starved(nodes, seconds, op, size):
    """Takes the receiver's memory away for a while in the middle of a run."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    full = timed(a, b, op=op, size=size, count=300, conc=16, verify="off")["rate"]
    before = conn(b)
    run = a.start(b, op=op, size=size, count=OPS, conc=16, verify="data")
    until(lambda: conn(b)["rx_msgs"] > before["rx_msgs"] + 50, "traffic")
    with no_memory(b):
        began = conn(b)["rx_msgs"]
        time.sleep(seconds)
        during = conn(b)["rx_msgs"] - began
        assert run.running(), "the run was over before the memory was"
        again = float(b.guest.check(RESUME, 60))
    r = run.result()
    # Nothing is lost or duplicated: the target has as many messages as were sent, each with its own content.
    assert r["count"] == r["issued"] == OPS and r["errors"] == 0, r
    assert r["peer_puts"] == OPS and r["peer_verified"] == OPS * size and r["peer_verify_errors"] == 0, r
    balanced(a, b)
    after = timed(a, b, op=op, size=size, count=300, conc=16, verify="off")["rate"]
    print(f"{op} {size}: {OPS} sent, as many came; {during} messages in {seconds} s without memory; traffic again after {again:.2f} s; {full}/s before, {after}/s after")
    return again, full, after


@pytest.mark.parametrize(("op", "size"), [("put", 1000), ("put-ack", 1000)])
def test_no_memory_is_back_pressure(nodes, op, size):
    a, b = nodes
    closed = b.log().count("closed")
    again, _full, _after = starved(nodes, 4, op, size)
    assert again < 3, again
    stats = a.stats()
    assert not any(stats.get(k) for k in ("verify_errors", "stuck_mds")), stats
    # The connection is still the same.
    assert len(conns(b)) == 1 and b.log().count("closed") == closed
