# SPDX-License-Identifier: GPL-2.0
"""Cost of an operation: work requests, doorbells and completions."""

import pytest
from counters import balanced, rise, timed
from nodes import up

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

KINDS = {"IMMEDIATE": ("put", 100), "PUT": ("put", 65536), "GET": ("get", 65536)}
COLUMNS = ("wrs", "doorbells", "cqes", "recv_cqes")


def measure(a, b, kind, conc, count):
    """Returns, per operation, {end: {counter: number}}, and the rate."""
    op, size = KINDS[kind]
    before = balanced(a, b)
    r = timed(a, b, op=op, size=size, count=count, conc=conc, verify="off")
    after = balanced(a, b)
    per = [{k: v / count for k, v in rise(x, y).items()} for x, y in zip(before, after)]
    return {"sender": per[0], "receiver": per[1], "rate": r["rate"], "p50": r["lat_p50_us"]}


def table(a, b, peer_credits, counts):
    """Measures and prints every cell."""
    up(a, b, peer_credits=peer_credits, credits=1024)
    a.ping(b)
    print(f"\npeer_credits {peer_credits}; per operation at the sender and the receiver: work requests, doorbells, send and receive completions")
    cells = {}
    for kind in KINDS:
        for conc, count in counts.items():
            cell = cells[kind, conc] = measure(a, b, kind, conc, count)
            ends = " | ".join(" ".join(f"{cell[end][k]:5.2f}" for k in COLUMNS) for end in ("sender", "receiver"))
            print(f"{kind:9} {conc:3} | {ends} | {cell['rate']:5}/s p50 {cell['p50']} us")
    return cells


def judge(cells, counts):
    for (kind, conc), cell in cells.items():
        told = (kind, conc, cell)
        # The figures include lnet_lite's own queries before and after, and NOOPs at the receiver.
        slack = 12 / counts[conc]
        sender, receiver = cell["sender"], cell["receiver"]
        if kind == "IMMEDIATE":
            assert 1 <= sender["wrs"] <= 1 + slack and receiver["wrs"] <= 0.5 + slack, told
        elif kind == "PUT":
            # Sender: PUT_REQ, then WRITEs and PUT_DONE. Receiver: REG (on rxe after a LOCAL_INV) and PUT_ACK, then
            # LOCAL_INV.
            assert 3 <= sender["wrs"] <= 4 + slack and receiver["wrs"] <= 4.5 + slack, told
        else:
            # Sender: REG (on rxe after a LOCAL_INV) and GET_REQ, then LOCAL_INV. Receiver: WRITEs and GET_DONE.
            assert 4 <= sender["wrs"] <= 4.5 + slack and 2 <= receiver["wrs"] <= 3.5 + slack, told
        for end in (sender, receiver):
            # The completion of the last work request of each list stands for all before it. LOCAL_INVs have their own,
            # too.
            inv = 0 if kind == "IMMEDIATE" else 1
            assert end["doorbells"] - slack <= end["cqes"] <= end["doorbells"] + inv + slack, told
    for kind in KINDS:
        assert cells[kind, 64]["sender"]["doorbells"] <= cells[kind, 1]["sender"]["doorbells"] + 0.1, cells
    # A quarter, plus the noise of a busy machine.
    assert cells["IMMEDIATE", 64]["sender"]["doorbells"] <= 0.35, cells


@pytest.mark.parametrize("peer_credits", [8, 128])
def test_cost_of_operations(nodes, peer_credits):
    counts = {1: 50, 64: 300}
    judge(table(*nodes, peer_credits, counts), counts)


@pytest.mark.long
@pytest.mark.parametrize("peer_credits", [8, 32, 128, 255])
def test_cost_of_operations_long(nodes, peer_credits):
    counts = {1: 300, 16: 800, 64: 1500}
    judge(table(*nodes, peer_credits, counts), counts)
