# SPDX-License-Identifier: GPL-2.0
"""An NI whose interface is a VLAN on the adapter's interface: traffic, and changes under traffic. The VLAN, or the
interface below it, goes and comes back, or the node is switched to another VLAN. It runs on a stock kernel, because the
test kernel has no VLANs."""

import time

import pytest
from faults import Load, ping_until, slow
from link_flap import LONG, Carrier, Interface, assert_can_connect, flap_under_load
from nodes import Node
from test_stock_kernels import boot_stock, with_nis

VLAN = "vlan7"
KERNELS = ["6.12", *(pytest.param(k, marks=pytest.mark.long) for k in ("5.10", "6.1", "7.3"))]


class Tagged(Node):
    """Node on a VLAN of eth0."""

    def __init__(self, guest):
        super().__init__(guest, f"10.7.0.{guest.number}")

    def tag(self, number):
        self.guest.check(
            f"ip link add link eth0 name {VLAN} type vlan id {number} && ip addr add {self.address}/24 dev {VLAN} && "
            f"ip link set {VLAN} up"
        )

    def ni_add(self, net="o2ib", interface=VLAN, **tunables):
        return super().ni_add(net, interface, **tunables)

    def packets(self):
        return int(self.guest.check(f"cat /sys/class/net/{VLAN}/statistics/tx_packets"))


@pytest.fixture(scope="module", params=KERNELS)
def pair(request):
    """Provides two nodes, each with a VLAN."""
    with boot_stock(request.param, f"vlan-{request.param}", modules=["rdma_rxe", "8021q"]) as nodes:
        tagged = tuple(Tagged(n.guest) for n in nodes)
        for node in tagged:
            node.tag(7)
        yield tagged


@pytest.fixture
def nodes(pair):
    with with_nis(pair):
        yield pair


def test_traffic(nodes):
    """Traffic goes over the VLAN."""
    a, b = nodes
    before = a.packets(), b.packets()
    for size in (100, 4096, 1 << 20):
        a.traffic(b, op="mix", size=size, count=20)
        b.traffic(a, op="mix", size=size, count=20)
    # A packet has 4 KiB of data, and each node has sent ten times 1 MiB and more.
    assert all(node.packets() - was > 2500 for node, was in zip(nodes, before))


class Vlan:
    """The VLAN's interface is set down."""

    @staticmethod
    def away(node):
        node.guest.check(f"ip link set {VLAN} down")

    @staticmethod
    def back(node):
        node.guest.check(f"ip link set {VLAN} up")


class Made:
    """The VLAN is deleted, which waits until the peers are informed, and created again."""

    @staticmethod
    def away(node):
        began = time.monotonic()
        node.guest.check(f"ip link del {VLAN}")
        assert time.monotonic() - began < 2 * slow()

    @staticmethod
    def back(node):
        node.tag(7)


@pytest.mark.parametrize(
    "kind", (pytest.param(Vlan, marks=pytest.mark.long), Interface, pytest.param(Carrier, marks=pytest.mark.long), Made)
)
def test_flap(nodes, kind, pytestconfig, record_property):
    """The VLAN or the link below it goes away and comes back under load."""
    flap_under_load(nodes, kind, "rxe, VLAN", 0, pytestconfig, record_property)


def test_switched(nodes):
    """One node after the other is switched to another VLAN under load, where the peer is not yet. The NI keeps its
    address and name all the time."""
    a, b = nodes
    a.ping(b)
    with Load(a, b) as load:
        for number in (8, 7):
            for node in nodes:
                node.guest.check(f"ip link del {VLAN}")
                node.tag(number)
                time.sleep(LONG)
            for one, other in ((a, b), (b, a)):
                ping_until(one, other, 20 * slow())
                assert_can_connect(one, 0, f"VLAN {number}")
    total = load.result()
    assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    a.traffic(b, op="mix", size=65536, count=50)
