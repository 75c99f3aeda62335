# SPDX-License-Identifier: GPL-2.0
"""Depth of the queues: the depth that both ends agree on, and their behaviour when the device has no room for it."""

import pytest
from counters import balanced, conns, depths, failing
from nodes import until, up

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

CREDITS = (8, 32, 128, 255)
# Depth after each number of failures, from 255 and from 8: a quarter less each time.
FOUND = {8: {0: 8, 1: 6, 2: 4, 3: 3}, 255: {1: 191, 2: 143, 4: 80, 9: 18, 16: 1}}


def close(a, b):
    a.ctl(f"conn close {b.nid}", ok=False)
    until(lambda: not any(conns(n) for n in (a, b)), "no connection", timeout=60)


def agreed(a, b, depth):
    assert depths(a, b) == [[depth], [depth]]
    balanced(a, b)
    for n, m in ((a, b), (b, a)):
        n.traffic(m, op="mix", size=5000, count=20, conc=10)
    balanced(a, b)
    assert depths(a, b) == [[depth], [depth]]


@pytest.mark.parametrize("mine", [8, *(pytest.param(n, marks=pytest.mark.long) for n in CREDITS[1:])])
def test_peer_credits_crosswise(nodes, mine):
    """Both ends use the smaller depth, whichever node connects."""
    a, b = nodes
    a.load()
    a.ni_add(peer_credits=mine, credits=1024)
    b.load()
    for theirs in CREDITS:
        b.ni_add(peer_credits=theirs, credits=1024)
        for asks, other in ((a, b), (b, a)):
            asks.ping(other)
            agreed(a, b, min(mine, theirs))
            close(a, b)
        b.ni_del()


@pytest.mark.parametrize("side", ["active", "passive"])
def test_no_queue_pair_of_that_depth(nodes, side):
    """Both ends use a smaller depth if no queue pair of the full depth is available, and the next connection has the
    full depth."""
    a, b = nodes
    up(a, b, peer_credits=8)
    lacks = a if side == "active" else b
    for failures, depth in FOUND[8].items():
        with failing(lacks, "ro2ib_create_qp", failures):
            a.ping(b)
        agreed(a, b, depth)
        close(a, b)
        a.ping(b)
        agreed(a, b, 8)
        close(a, b)


def test_seventeen_attempts_at_most(nodes):
    a, b = nodes
    up(a, b, peer_credits=255, credits=1024)
    for failures, depth in FOUND[255].items():
        with failing(a, "ro2ib_create_qp", failures):
            a.ping(b)
        agreed(a, b, depth)
        close(a, b)
    # All calls fail: an attempt tries 17 depths and gives up.
    with failing(a, "ro2ib_create_qp", 1000) as left:
        assert a.ping(b, ok=False)["rc"] != 0
        tried = 1000 - left()
    print(f"tried {tried} queue pairs")
    assert 0 < tried <= 17, tried
    # The passive end has no queue pair: it rejects, and nothing is left behind.
    with failing(b, "ro2ib_create_qp", 1000) as left:
        assert a.ping(b, ok=False)["rc"] != 0
        tried = 1000 - left()
    print(f"refused after {tried}")
    assert 0 < tried, tried
    a.ping(b)
    agreed(a, b, 255)


def test_small_depth_of_one_peer_is_its_own(nodes, hostile):
    """If a hostile peer requests depth 1, other peers still get the full depth."""
    a, b = nodes
    up(a, b, peer_credits=32)
    c = hostile.connect(a.address, depth=1)
    assert c.params["depth"] == 1
    b.ping(a)
    assert sorted(x["depth"] for x in conns(a)) == [1, 32]
    assert depths(b) == [[32]]
    c.close()
