# SPDX-License-Identifier: GPL-2.0
"""What happens to a node while the file system is in use.

Each function takes the bed and the node that is hit, and returns when the cause is gone: with what there is to tell,
if anything."""

import contextlib
import time

import lustre
from faults import ROCE, Filter

AWAY = 5


def device(_bed, node):
    """rdma link deleted, added again 2 s later"""
    node.sh("rdma link delete rxe0")
    time.sleep(2)
    node.sh("rdma link add rxe0 type rxe netdev eth0")


def interface(_bed, node):
    """interface down for 5 s"""
    node.sh("ip link set eth0 down")
    time.sleep(AWAY)
    node.sh("ip link set eth0 up")


def carrier(_bed, node):
    """carrier lost for 5 s"""
    node.guest.carrier(False)
    time.sleep(AWAY)
    node.guest.carrier(True)


@contextlib.contextmanager
def _unheard(bed, match):
    with contextlib.ExitStack() as stack:
        filters = [stack.enter_context(Filter(n.guest, match)) for n in bed.nodes]
        yield lambda: sum(f.lost() for f in filters)


def silence(bed, _node):
    """all packets lost for 5 s, both ways"""
    with _unheard(bed, ROCE):
        time.sleep(AWAY)


def loss(bed, _node):
    """0.1 % of packets lost for 60 s, both ways"""
    with _unheard(bed, f"{ROCE} numgen random mod 1000 < 1") as lost:
        time.sleep(60)
        return f"{lost()} packets"


def ni(_bed, node):
    """NI deleted and added"""
    took = node.net_del(120)
    node.net_add(node.options)
    return f"deleted in {took:.1f} s"


def reload(_bed, node):
    """driver unloaded and loaded"""
    return f"deleted in {node.swap(node.lnd):.1f} s"


def swap(_bed, node):
    """driver changed for ko2iblnd, 10 s later back"""
    took = node.swap(lustre.KO)
    time.sleep(10)
    back = node.swap(lustre.OURS)
    return f"deleted in {took:.1f} and {back:.1f} s"
