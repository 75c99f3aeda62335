# SPDX-License-Identifier: GPL-2.0
"""Connects from both sides at the same time."""

import pytest
from faults import DEBUGFS, Ledger, close_all, objects
from nodes import until, up
from test_faults_cm import report

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long


def ends(node):
    """Returns the established connections of a node: (requested by this side, by the other)."""
    text = node.guest.check(f"cat {DEBUGFS}/ro2iblnd/*@*")
    return tuple(sum(f"role={role} state=Established" in line for line in text.splitlines()) for role in ("active", "passive"))


def agree(a, b):
    """Returns whether there is one connection, or one from each side: a request that is sent after the peer's was
    accepted meets no race, and is accepted. Both sides know the same connections, and no other object is left."""
    mine, theirs = ends(a), ends(b)
    return mine == theirs[::-1] and sum(mine) in (1, 2) and max(mine) == 1 and objects(a) == objects(b) == sum(mine)


def test_both_connect_at_once(nodes, pytestconfig, record_property):
    a, b = nodes
    up(a, b)
    ledger = Ledger(a, b)
    count = 200 if pytestconfig.getoption("--long") else 20
    worst = 0
    two = 0
    for i in range(count):
        close_all(a, b)
        jobs = [n.guest.spawn(n.ctl_script(f"ping {m.nid} timeout=20")) for n, m in ((a, b), (b, a))]
        for job in jobs:
            out = job.wait(60)[1]
            assert "rc=0" in out.split(), out
            worst = max(worst, int(out.split("usec=")[1].split()[0]))
        try:
            until(lambda: agree(a, b), "the same connections", 20, 0.05)
        except TimeoutError:
            seen = [n.guest.check(f"cat {DEBUGFS}/ro2iblnd/*@*") for n in (a, b)]
            raise AssertionError(f"round {i}: not the same connections:\n{seen[0]}\n{seen[1]}") from None
        two += sum(ends(a)) == 2
    report(record_property, "both at once", f"{count} times, worst {worst / 1000:.0f} ms, {two} times two connections")
    a.traffic(b, op="mix", size=65536, count=50)
    ledger.check()
