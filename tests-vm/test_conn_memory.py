# SPDX-License-Identifier: GPL-2.0
"""Memory of an idle connection, by the kernel's count of free pages: queue pair, queues, buffers, regions and the
provider's memory for them. test_lustre.py compares it with ko2iblnd's."""

import re

import pytest
from nodes import Node, up, until
from test_faults_cm import report

CONNS = 64
# KiB that a connection of a depth may keep on one node. Message buffers are 4 KiB each, and the protocol requires two
# per credit. The rest is mostly the provider's send queue and completion queue. rxe rounds the entries of the latter up
# to a power of two, of 128 bytes each (20 KiB at depth 8, 256 KiB at 128).
BOUNDS = {8: 285, 128: 2850}


def free_kib(node):
    node.guest.check("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1")
    return int(re.search(r"MemFree: +(\d+)", node.guest.check("cat /proc/meminfo"))[1])


@pytest.mark.parametrize("depth", [8, pytest.param(128, marks=pytest.mark.long)])
def test_memory_of_a_connection(boot_pair, record_property, depth):
    a, b = (Node(g) for g in boot_pair(memory=2048))
    tunables = dict(peer_credits=depth, credits=2 * depth)
    up(a, b, **tunables)
    # The first connection allocates memory that stays.
    a.ping(b)
    for node in (a, b):
        node.ni_del()
        node.ni_add(conns_per_peer=CONNS, **tunables)
    before = free_kib(a)
    a.ping(b)
    until(lambda: a.ctl(f"conn list {a.nid}").get("conns", 0) == CONNS, "all are connected")
    each = (before - free_kib(a)) / CONNS
    report(record_property, "memory", f"depth {depth}: {each:.0f} KiB a connection")
    assert 0 < each < BOUNDS[depth]
    for node in (a, b):
        node.unload()
