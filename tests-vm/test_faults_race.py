# SPDX-License-Identifier: GPL-2.0
"""Both sides connect at the same time."""

from faults import Ledger, close_all, objects
from nodes import until, up
from test_faults_cm import report
import pytest

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long


def test_both_connect_at_once(nodes, pytestconfig, record_property):
    a, b = nodes
    up(a, b)
    ledger = Ledger(a, b)
    count = 200 if pytestconfig.getoption("--long") else 20
    worst = 0
    for i in range(count):
        close_all(a, b)
        jobs = [n.guest.spawn(n.ctl_script(f"ping {m.nid} timeout=20")) for n, m in ((a, b), (b, a))]
        for job in jobs:
            out = job.wait(60)[1]
            assert "rc=0" in out.split(), out
            worst = max(worst, int(out.split("usec=")[1].split()[0]))
        # One connection is left, and each side means the same one.
        try:
            until(lambda: objects(a) == 1 and objects(b) == 1, "one connection", 20, 0.05)
        except TimeoutError:
            seen = [n.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*") for n in (a, b)]
            raise AssertionError(f"round {i}: not one connection:\n{seen[0]}\n{seen[1]}") from None
    report(record_property, "both at once", f"{count} times, worst {worst / 1000:.0f} ms")
    a.traffic(b, op="mix", size=65536, count=50)
    ledger.check()
