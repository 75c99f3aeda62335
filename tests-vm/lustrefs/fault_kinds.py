# SPDX-License-Identifier: GPL-2.0
"""Faults of a node while the file system is in use.

Each function takes the bed, the node that is hit, and the length, and returns when the cause is gone, with a note for
the table, if any. The first line of its docstring, which names the row, is for its default length.
"""

import contextlib
import time

import lustre
from faults import ROCE, Filter

AWAY = 5


def device(_bed, node, seconds=2):
    """rdma link deleted, added again 2 s later"""
    node.sh("rdma link delete rxe0")
    time.sleep(seconds)
    node.sh("rdma link add rxe0 type rxe netdev eth0")


def interface(_bed, node, seconds=AWAY):
    """interface down for 5 s"""
    node.sh("ip link set eth0 down")
    time.sleep(seconds)
    node.sh("ip link set eth0 up")


def carrier(_bed, node, seconds=AWAY):
    """carrier lost for 5 s"""
    node.guest.carrier(False)
    time.sleep(seconds)
    node.guest.carrier(True)


@contextlib.contextmanager
def _unheard(bed, match):
    with contextlib.ExitStack() as stack:
        filters = [stack.enter_context(Filter(n.guest, match)) for n in bed.nodes]
        yield lambda: sum(f.lost() for f in filters)


def silence(bed, _node, seconds=AWAY):
    """all packets lost for 5 s, both ways"""
    with _unheard(bed, ROCE):
        time.sleep(seconds)


def loss(bed, _node, seconds=60, per_mille=1):
    """0.1 % of packets lost for 60 s, both ways"""
    with _unheard(bed, f"{ROCE} numgen random mod 1000 < {per_mille}") as lost:
        time.sleep(seconds)
        return f"{lost()} packets"


def more_loss(bed, node):
    """0.2 % of packets lost for 60 s, both ways"""
    return loss(bed, node, per_mille=2)


def ni(_bed, node, seconds=0):
    """NI deleted and added"""
    took = node.net_del(120)
    time.sleep(seconds)
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


def conns_per_peer(_bed, node, number):
    """another number of connections, and all closed"""
    node.sh(f"lnetctl net set --all --conns-per-peer {number}")
    node.sh(f"lctl --net {lustre.NET} disconnect")
    return str(number)


def checksums(_bed, node, number):
    """checksums on or off"""
    node.sh(f"echo {number} >/sys/module/{lustre.OURS}/parameters/cksum")
    return "on" if number else "off"
