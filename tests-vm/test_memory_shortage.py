# SPDX-License-Identifier: GPL-2.0
"""A node without memory writes its data out: slower, over the same connection, and nothing is lost."""

import time

import pytest
from counters import balanced, conn, conns, no_memory
from nodes import until, up

# Seconds without memory.
SHORT, LONG = 5, 60
# Frames from an allocation to the driver, without LNet behind it.
FRAMES = 9


@pytest.mark.parametrize(("op", "size"), [("put", 1000), ("put", 65536), ("get", 65536), ("get", 1048576)])
def test_no_memory_slows_writes(nodes, pytestconfig, op, size):
    a, b = nodes
    up(a, b)
    a.ping(b)
    closed = [node.log().count("closed") for node in nodes]
    seconds = LONG if pytestconfig.getoption("--long") else SHORT
    # The answering node has the data of a GET.
    here, there = (b, a) if op == "get" else (a, b)
    before = conn(a)
    run = here.start(there, op=op, size=size, count=1000000, conc=8, verify="data", timeout=50)
    until(lambda: conn(a)["tx_msgs"] > before["tx_msgs"] + 20, "traffic")
    short = conn(a)["no_memory"]
    with no_memory(a, depth=FRAMES):
        # The node has no memory for its own debugfs either.
        began = conn(b)["rx_msgs"]
        time.sleep(seconds)
        sent = conn(b)["rx_msgs"] - began
        assert run.running(), "the run was over before the memory was back"
    run.stop()
    short = conn(a)["no_memory"] - short
    r = run.result()
    assert r["count"] == r["issued"] and r["errors"] == 0 and r["timeouts"] == 0 and r["verify_errors"] == 0, r
    assert op == "get" or (r["peer_puts"] >= r["count"] and r["peer_verify_errors"] == 0), r
    print(f"{op} {size}: {sent} messages in {seconds} s; {short} found no memory; longest {r['lat_max_us']} us")
    assert sent > seconds, (sent, short)
    # A small message uses a buffer that was allocated before.
    assert short > 0 or (op, size) == ("put", 1000)
    assert [len(conns(node)) for node in nodes] == [1, 1]
    assert [node.log().count("closed") for node in nodes] == closed
    balanced(a, b)
