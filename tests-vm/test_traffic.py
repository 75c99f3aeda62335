# SPDX-License-Identifier: GPL-2.0
"""Messages of every kind, size and shape, with each byte verified."""

import errno
import os
import random

import pytest
from faults import Inject
from counters import balanced, polls, rise
from nodes import up

SIZES = (0, 1, 3976, 3977, 4096, 65536, 1048576)
OPS = ("put", "put-ack", "get", "mix")
SHAPES = ("aligned", "contig", "scatter", "unaligned", "gaps", "vmalloc")


def shapes(size):
    """Returns the shapes that a transfer of a size can have."""
    if size == 0:
        return ("aligned",)
    return tuple(s for s in SHAPES if not (s == "gaps" and size > 500000))


def test_every_op_size_and_shape(nodes):
    a, b = nodes
    up(a, b)
    a.ping(b)
    b.ping(a)
    for size in SIZES:
        for shape in shapes(size):
            for op in OPS:
                a.traffic(b, op=op, size=size, shape=shape, count=4, conc=4)


@pytest.mark.parametrize("n", (0, 1))
def test_half_is_polled_in_a_softirq(nodes, polled, pytestconfig, n):
    """Completions are polled in a softirq in one of these two tests, and not in the other (conftest.py), also when the
    driver is reloaded."""
    a, b = nodes
    if pytestconfig.getoption("--device") == "rxe" and os.environ.get("KERNEL_FLAVOR") != "stock":
        assert polled == {"half": n == 0, "others": n == 1, "none": False}[pytestconfig.getoption("--polled")]
    for _again in range(2):
        up(a, b)
        before = polls(a)
        a.traffic(b, op="put-ack", size=100, count=200, conc=8)
        # An interrupt that is moderated stands for several completions.
        assert (polls(a) - before > 20) == polled
        a.unload()
        b.unload()


def test_unequal_shapes(nodes):
    a, b = nodes
    up(a, b)
    for shape in SHAPES:
        for tshape in SHAPES:
            if shape != tshape:
                a.traffic(b, op="mix", size=30001, shape=shape, tshape=tshape, count=8, conc=4)


def test_pages_that_are_neighbours(nodes):
    """Adjacent pages are one gather element, up to 64 KiB, so that few WRITEs move the data that takes many WRITEs from
    scattered pages."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    wrs = {}
    for shape in ("scatter", "contig"):
        before = balanced(a, b)[0]
        a.traffic(b, op="put-ack", size=1 << 20, shape=shape, count=8, conc=1)
        # For a GET the peer's memory counts, because the peer sends the WRITEs.
        a.traffic(b, op="get", size=1 << 20, tshape=shape, count=8, conc=1)
        wrs[shape] = rise(before, balanced(a, b)[0])["wrs"] / 8
    # PUT_REQ, WRITEs, PUT_DONE; REG_MR (on rxe after a LOCAL_INV), GET_REQ, LOCAL_INV. The number of WRITEs depends on
    # the device: 16 and 1 with sixteen elements each.
    assert wrs["contig"] * 2 < wrs["scatter"], wrs


def test_257_fragments(nodes):
    a, b = nodes
    up(a, b)
    for op in ("put", "get"):
        a.traffic(b, op=op, size=1048576, shape="unaligned", tshape="unaligned", count=6, conc=3)
        a.traffic(b, op=op, size=1048576, shape="unaligned", tshape="vmalloc", count=6, conc=3)


@pytest.mark.parametrize("op", ["put-ack", "get"])
def test_gaps_that_come_with_the_mapping(nodes, op):
    """Data arrives through bounced pages if pages without gaps have gaps when they are mapped, as swiotlb may cause."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    sink = b if op == "put-ack" else a
    for shape in ("aligned", "unaligned"):
        with Inject(sink, "ro2ib_map_mr_sg", -errno.EINVAL, times=1) as inject:
            a.traffic(b, op=op, size=65537, shape=shape, tshape=shape, count=4, conc=1)
            assert inject.left() == 0


def test_messages_go_between_transfers(nodes, record_property):
    """Messages are sent between transfers even if a peer always has more transfers waiting than the send queue
    takes."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    small = a.start(b, op="put", size=64, count=100000, conc=1, seconds=10, verify="off")
    big = b.start(a, op="get", size=1 << 20, shape="scatter", tshape="scatter", count=250, conc=24, verify="off", timeout=600)
    r, m = big.result(900), small.result()
    assert r["count"] == 250 and not r["errors"], r
    told = f"PUTs of 64 bytes: {m['count']}, the slowest {m['lat_max_us'] / 1e6} s, while GETs took {r['seconds']} s"
    record_property("told", told)
    assert not m["errors"] and m["lat_max_us"] * 2 < r["usec"], told


def test_big_md(nodes):
    a, b = nodes
    up(a, b)
    for size in (1, 4096, 65536):
        a.traffic(b, op="put-ack", size=size, shape="bigmd", tshape="bigmd", count=8, conc=4)
        a.traffic(b, op="get", size=size, tshape="bigmd", count=8, conc=4)


@pytest.mark.parametrize(("size", "sink"), [(5000, 65536), (1, 65536), (4000, 4001), (100000, 1048576)])
def test_get_sink_larger_than_reply(nodes, size, sink):
    a, b = nodes
    up(a, b)
    for shape in ("aligned", "unaligned", "gaps", "vmalloc"):
        if shape == "gaps" and sink > 500000:
            continue
        a.traffic(b, op="get", size=size, sink=sink, shape=shape, count=8, conc=4)


def drawn(rng):
    """Returns an operation of any size, shape and sink. Small sizes are as likely as large ones."""
    op = rng.choice(("put", "put-ack", "get"))
    size = min(rng.randrange(1 << rng.randrange(1, 21)), 1 << 20)
    sink = min(size + rng.choice((0, 0, 1, rng.randrange(1, 1 << rng.randrange(1, 20)))), 1 << 20)
    most = max(size, sink)
    kinds = [s for s in SHAPES if most and not (s == "gaps" and most > 500000)] or ["aligned"]
    return {"op": op, "size": size, "sink": sink, "shape": rng.choice(kinds), "tshape": rng.choice(kinds), "count": 2, "conc": 2}


@pytest.mark.parametrize("cksum", [0, 1])
def test_any_size_and_shape(nodes, cksum, pytestconfig, record_property):
    """Operations drawn from a seed work in both directions: 100 cases, 10,000 with --long."""
    rng, rounds = random.Random(cksum), 5000 if pytestconfig.getoption("--long") else 50
    a, b = nodes
    up(a, b, lnd=f"cksum={cksum}")
    for _ in range(rounds):
        what = drawn(rng)
        for here, there in ((a, b), (b, a)):
            here.traffic(there, **what)
    record_property("cases", 2 * rounds)


@pytest.mark.parametrize("op", ["put-ack", "get"])
def test_truncation(nodes, op):
    a, b = nodes
    up(a, b)
    for size, sink in ((65536, 5000), (65536, 1), (5000, 100), (1048576, 65536), (4096, 0)):
        a.traffic(b, op=op, size=size, sink=sink, count=8, conc=4)


@pytest.mark.parametrize("size", [100, 65536])
def test_no_match(nodes, size):
    a, b = nodes
    up(a, b)
    r = a.try_traffic(b, op="put", size=size, nomatch=1, count=8, conc=4)
    assert r["issued"] == 8 and r["timeouts"] == 0, r
    # An optimised GET gets an error. A small GET gets no answer.
    r = a.try_traffic(b, op="get", size=size, nomatch=1, count=8, conc=8, timeout=4 if size == 100 else 60)
    assert r["issued"] == 8 and r["count"] == 0, r
    assert r["timeouts"] == (8 if size == 100 else 0), r
    # A failed match closes no connection.
    a.traffic(b, op="mix", size=size, count=8)
    assert "closed" not in a.log()


def test_no_room_for_what_does_not_fit(nodes):
    a, b = nodes
    up(a, b)
    r = a.try_traffic(b, op="put", size=65536, sink=5000, trunc=0, count=4, conc=2)
    assert r["issued"] == 4 and r["timeouts"] == 0, r
    a.traffic(b, op="put", size=65536, count=8)


def test_routed_get(nodes):
    a, b = nodes
    up(a, b)
    for size in (0, 1, 3976, 3977, 65536, 1048576):
        a.traffic(b, op="get", size=size, route=1, count=8, conc=4)


def test_both_ways_at_once(nodes):
    a, b = nodes
    up(a, b)
    a.ping(b)
    runs = [n.start(m, op="mix", size=65536, count=300, conc=16) for n, m in ((a, b), (b, a))]
    for run in runs:
        r = run.result()
        assert r["count"] == 300 and r["errors"] == 0 and r["verify_errors"] == 0, r


def test_many_at_a_time(nodes):
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=4096, count=600, conc=256)
    a.traffic(b, op="put-ack", size=100, count=600, conc=256)


def test_checksums_both_sides(nodes):
    a, b = nodes
    up(a, b, lnd="cksum=1")
    for op in ("put-ack", "get"):
        for size in (0, 1, 3976, 3977, 65536):
            for shape in ("aligned", "gaps") if size else ("aligned",):
                a.traffic(b, op=op, size=size, shape=shape, count=8, conc=4)
                b.traffic(a, op=op, size=size, shape=shape, count=8, conc=4)
