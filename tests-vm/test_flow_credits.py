# SPDX-License-Identifier: GPL-2.0
"""Credits: one-sided floods at every depth, and accounts that add up."""

import contextlib

import pytest
from faults import silence
from counters import STALL_US, balanced, conn, conns, depths, failing, past, rise, rnr, sane, timed
from nodes import until, up

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

# Settings for each depth: peer_credits at both ends, and how many queue pairs the active end fails to get (each failure
# takes a quarter of the depth).
DEPTHS = {1: (8, 5), 2: (8, 4), 8: (8, 0), 255: (255, 0)}


def connect(a, b, depth):
    peer_credits, failures = DEPTHS[depth]
    up(a, b, peer_credits=peer_credits, credits=1024)
    # A stock kernel has no fault injection.
    with failing(a, "ro2ib_create_qp", failures) if failures else contextlib.nullcontext():
        a.ping(b)
    assert depths(a, b) == [[depth], [depth]]


def flood(a, b, depth, count):
    """Sends from `a` only. Returns a table row of the cost."""
    connect(a, b, depth)
    before, nak = balanced(a, b), rnr(a, b)
    chunk = min(count, 2000 if depth < 8 else 10_000)
    runs = [timed(a, b, op="put", size=100, count=chunk, conc=64, verify="off") for _ in range(count // chunk)]
    after = balanced(a, b)
    there, back = (rise(x, y) for x, y in zip(before, after))
    rate, p99, longest = (max(r[k] for r in runs) for k in ("rate", "lat_p99_us", "lat_max_us"))
    row = f"depth {depth}: {count} messages, {rate}/s at best, p99 {p99} us, max {longest} us,"
    row += f" NOOPs {back['tx_noops'] / count:.3f} per message, doorbells {there['doorbells'] / count:.3f}"
    print(row)
    # A few messages are lnet_lite's own: its report before and after.
    high_water = -(-depth // 2)
    assert back["tx_noops"] <= count / high_water + 10 * len(runs), row
    assert there["wrs"] <= count + 20 * len(runs), row
    # A message that waited for a timer shows as a NOOP of the sender, which probes a silent peer.
    assert there["tx_noops"] <= 10 * len(runs) and longest < STALL_US, row
    assert rnr(a, b) == nak and there["rnr"] == back["rnr"] == 0, row


@pytest.mark.parametrize("depth", DEPTHS)
def test_one_sided_flood(nodes, depth):
    flood(*nodes, depth, 500 if depth < 8 else 2500)


@pytest.mark.long
@pytest.mark.parametrize("depth", DEPTHS)
def test_one_sided_flood_long(nodes, depth):
    flood(*nodes, depth, 1_000_000 if depth == 255 else 100_000)


@pytest.mark.parametrize("depth", [1, 8, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 255))])
def test_accounts_add_up_while_running(nodes, depth):
    """Accounts add up with every kind of message in both directions: each end's account is possible at any time, and
    without traffic each credit is in exactly one place, seen from either end."""
    a, b = nodes
    connect(a, b, depth)
    runs = [
        n.start(m, op=op, size=size, count=100, conc=24, verify="data")
        for n, m in ((a, b), (b, a))
        for op, size in (("put", 100), ("mix", 65536))
    ]
    looks = 0
    while any(r.running() for r in runs):
        for n in (a, b):
            for c in conns(n):
                sane(c)
                looks += 1
    for r in runs:
        got = r.result()
        assert got["count"] == 100 and got["errors"] == 0, got
    balanced(a, b)
    print(f"depth {depth}: {looks} looks")
    assert rnr(a, b) == 0 or all(conn(n)["rnr"] == 0 for n in (a, b))


@pytest.mark.parametrize("how", ["conn close", pytest.param("peer lost", marks=pytest.mark.long)])
def test_all_completions_come_when_everything_flushes(nodes, how, request):
    """Every work request, also every waiting receive, gets a completion when a connection ends with full queues in both
    directions. No completion queue is too short."""
    a, b = nodes
    up(a, b, peer_credits=64, credits=1024)
    for _ in range(3 if request.config.getoption("--long") else 1):
        a.ping(b)
        began = [past(n) for n in (a, b)]
        runs = [
            n.start(m, op=op, size=size, count=4000, conc=128, verify="off", timeout=30)
            for n, m in ((a, b), (b, a))
            for op, size in (("put", 100), ("mix", 200_000))
        ]
        # One connection at each node is enough: there are two if both ends connected at the same time.
        until(lambda: all(any(c["q_main"] + c["q_unreserved"] > 0 for c in conns(n)) for n in (a, b)), "full queues")
        with contextlib.ExitStack() as cut:
            if how == "conn close":
                a.ctl(f"conn close {b.nid}")
            else:
                # The transport gives up, at both ends. The link stays up, because a management datagram without a route
                # breaks rxe's queue pair for all of them.
                for n in (a, b):
                    cut.enter_context(silence(n))
            until(lambda: all(past(n)["wrs"] > old["wrs"] for n, old in zip((a, b), began)), "connections to be over")
        for r in runs:
            r.job.kill()
        for r in runs:
            r.job.wait(200)
        for n in (a, b):
            until(lambda n=n: n.stats()["outstanding"] == 0, "idle", timeout=120)
    a.ctl(f"conn close {b.nid}", ok=False)
    until(lambda: not any(conns(n) for n in (a, b)), "no connection", timeout=60)
    for n in (a, b):
        # The last connection may still be closing.
        until(lambda n=n: past(n)["wrs"] == past(n)["retired"] and past(n)["recv_wrs"] == past(n)["recv_cqes"], past(n), timeout=20)
        p = past(n)
        print(f"{n.guest.name}, {how}: {p}")
        assert p["wrs"] > 100 and p["recv_wrs"] > 100, p
        assert p["rnr"] == 0, p
        assert not [x for x in n.log().splitlines() if "queue full" in x or "CQ err" in x]
