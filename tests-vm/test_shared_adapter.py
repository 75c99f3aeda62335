# SPDX-License-Identifier: GPL-2.0
"""Interfaces that share an adapter, on a stock kernel, because the test kernel has none. The NI is on a bridge over the
adapter's interface, which goes down under load; or it is on a bridge or VXLAN that changes what it rests on; or two
interfaces of a node are in one subnet on one link."""

import contextlib
import re
import time

import pytest
import vm
from faults import debug_nis, ping_until, slow
from link_flap import Carrier, Interface, flap_under_load
from nodes import Node, until
from test_stock_kernels import boot_stock, with_nis
from test_vlan import KERNELS

UPPER = "upper0"
DEVICE = "rxe8"
SYSCTLS = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}


class Macvlan:
    """Macvlan on eth0. The handshake of two soft-RoCE devices on macvlans takes too long: no traffic is tested."""

    MAKE = f"ip link add {UPPER} link eth0 type macvlan mode bridge"


class Bridge:
    """Bridge with one port, eth0."""

    MAKE = f"ip link add {UPPER} mtu 4200 type bridge && ip link set eth0 master {UPPER}"


class VlanBridge:
    """Bridge with two ports, which are VLANs on eth0 and on an interface beside it."""

    MAKE = (
        "ip link add v9 type veth peer name w9 && ip link set v9 up && ip link set w9 up && "
        f"ip link add {UPPER} mtu 1400 type bridge && for d in eth0 v9; do "
        f"ip link add link $d name $d.100 mtu 1400 type vlan id 100; ip link set $d.100 master {UPPER} up; done"
    )


# Two pairs of interfaces. x8 is a VXLAN on one of them.
PAIRS = (
    "for i in 8 9; do ip link add v$i type veth peer name w$i && ip link set v$i up && ip link set w$i up; done; "
    "ip link add {} type vxlan id 8 dev v8 dstport 4789"
)


class Vxlan:
    """VXLAN."""

    MAKE = PAIRS.format(UPPER)


class VxlanBridge:
    """Bridge with one port, a VXLAN, whose carrier does not depend on the interface below it. With an address of its
    own, the bridge does not take that of a port, which would be an event."""

    MAKE = (
        f"{PAIRS.format('x8')} && ip link set x8 up && ip link add {UPPER} address 02:00:00:00:00:08 type bridge && "
        f"ip link set x8 master {UPPER}"
    )


class Stacked(Node):
    """Node on an interface above eth0."""

    def __init__(self, guest):
        super().__init__(guest, f"10.8.0.{guest.number}")

    def stack(self, kind):
        # The device of eth0 would get the GIDs of the upper interface, too, and not its packets.
        vm.unplug(self.guest)
        self.guest.check(
            f"{kind.MAKE} && ip link set {UPPER} up && ip addr add {self.address}/24 dev {UPPER} && "
            f"rdma link add {DEVICE} type rxe netdev {UPPER}"
        )

    def unstack(self):
        self.guest.check(f"rdma link delete {DEVICE}; ip link del {UPPER}")
        vm.plug(self.guest)

    def ni_add(self, net="o2ib", interface=UPPER, **tunables):
        return super().ni_add(net, interface, **tunables)


@pytest.fixture(scope="module", params=KERNELS)
def pair(request):
    """Provides two nodes."""
    modules = ["rdma_rxe", "macvlan", "bridge", "veth", "8021q", "vxlan"]
    with boot_stock(request.param, f"stacked-{request.param}", modules=modules) as nodes:
        yield nodes


@pytest.fixture(params=(Bridge,), ids=("bridge",))
def nodes(pair, request):
    """Provides two nodes, each on an upper interface."""
    stacked = tuple(Stacked(n.guest) for n in pair)
    for node in stacked:
        node.stack(request.param)
    with with_nis(stacked):
        yield stacked
    for node in stacked:
        node.unstack()


@pytest.mark.parametrize("kind", (Interface, pytest.param(Carrier, marks=pytest.mark.long)))
def test_flap(nodes, kind, pytestconfig, record_property):
    """The interface below goes away and comes back under load."""
    flap_under_load(nodes, kind, "rxe, stacked", 8, pytestconfig, record_property)


def test_ni_follows_the_link_below(nodes):
    """LNet learns at once that the interface below is down, although the upper interface is still up for a moment."""
    a, b = nodes
    a.ping(b)
    a.mark_log()
    Interface.away(a)
    assert "link is down" in a.log(), a.log()
    Interface.back(a)
    ping_until(a, b, 20 * slow())


def test_interface_below_a_port_goes(pair):
    """A bridge carries packets while one of its ports does, though the interface below another port is down. No traffic
    is tested: the RDMA core expects the tag of the VLAN, which soft-RoCE does not see above the bridge."""
    node = Stacked(pair[0].guest)
    node.stack(VlanBridge)
    with with_nis((node,)):
        until(lambda: debug_nis(node)[0]["link"] == "up", "the link is up")
        node.mark_log()
        node.guest.check("ip link set v9 down")
        # The check of the link has run.
        time.sleep(1)
        assert debug_nis(node)[0]["link"] == "up" and "link is down" not in node.log(), node.log()
        Interface.away(node)
        assert "link is down" in node.log(), node.log()
        Interface.back(node)
        until(lambda: debug_nis(node)[0]["link"] == "up", "the link is up again")
    node.unstack()
    node.guest.check("ip link del v9; ip link del eth0.100")


@contextlib.contextmanager
def without_traffic(pair, kind):
    """Provides a node on an upper interface that leads to no other node, and a function that waits for a state of its
    link."""
    node = Stacked(pair[0].guest)
    node.stack(kind)

    def link(state):
        until(lambda: debug_nis(node)[0]["link"] == state, f"the link is {state}", timeout=20 * slow())

    with with_nis((node,)):
        link("up")
        yield node, link
    node.unstack()
    node.guest.check("ip link del v8; ip link del v9")


def test_vxlan_gets_another_interface(pair):
    """An NI on a VXLAN that is put on another interface is up if that interface is. The kernel refuses a dstport
    then."""
    on = f"ip link set {UPPER} type vxlan id 8 dev"
    with without_traffic(pair, Vxlan) as (node, link):
        node.guest.check(f"{on} v9")
        link("up")
        node.guest.check("ip link set v8 down")
        # The VXLAN does not rest on it any more.
        time.sleep(1)
        link("up")
        node.guest.check("ip link set v9 down")
        link("down")
        node.guest.check(f"ip link set v8 up && {on} v8")
        link("up")
        node.guest.check(f"{on} v9")
        link("down")
        node.guest.check(f"{on} v8")
        link("up")


def test_bridge_gets_another_port(pair):
    """An NI on a bridge is up when the bridge gets a port that carries packets, though the carrier of the bridge has
    never changed, and down when that port leaves."""
    with without_traffic(pair, VxlanBridge) as (node, link):
        node.guest.check("ip link set v8 down")
        link("down")
        for _ in range(2):
            node.guest.check(f"ip link set v9 master {UPPER}")
            link("up")
            node.guest.check("ip link set v9 nomaster")
            link("down")
        node.guest.check("ip link set v8 up")
        link("up")
        node.guest.check("ip link del x8")
        link("down")


# Two interfaces of a node on one link


def sysctls(node, values):
    for name, value in values.items():
        node.guest.check(f"echo {value} >/proc/sys/net/ipv4/conf/all/{name}")


class Twin(Node):
    """Node with two interfaces and an RDMA device on each: v0 and v1, whose other ends are on a bridge with eth0."""

    def __init__(self, guest):
        super().__init__(guest, f"10.9.0.{guest.number}")
        self.second = f"10.9.0.{100 + guest.number}"
        self.second_nid = f"{self.second}@o2ib1"

    def make(self):
        self.guest.check("ip link add twins mtu 4200 type bridge && ip link set eth0 master twins")
        self.guest.check("ip link set twins up")
        for i, address in enumerate((self.address, self.second)):
            self.guest.check(
                f"ip link add v{i} mtu 4200 type veth peer name w{i} mtu 4200 && ip link set w{i} master twins up && "
                f"ip link set v{i} up && ip addr add {address}/24 dev v{i} && "
                f"rdma link add rxe{8 + i} type rxe netdev v{i}"
            )

    def unmake(self):
        self.guest.check("for i in 0 1; do rdma link delete rxe$((8 + i)); ip link del v$i; done; ip link del twins")

    def ni_add(self, net="o2ib", interface="v0", **tunables):
        return super().ni_add(net, interface, **tunables)


@pytest.fixture
def twins(pair):
    nodes = tuple(Twin(n.guest) for n in pair)
    for node in nodes:
        node.make()
    shown = "cat /proc/sys/net/ipv4/conf/all/{}"
    before = [{name: node.guest.check(shown.format(name)).strip() for name in SYSCTLS} for node in nodes]
    yield nodes
    for node, values in zip(nodes, before):
        sysctls(node, values)
        node.unmake()


LINE = (
    "is in the same subnet and answers ARP requests for the address of this NI (arp_ignore is 0): "
    "set net.ipv4.conf.all.arp_ignore=1"
)


def test_two_interfaces_on_one_link(twins):
    """With the kernel's defaults the log warns for each NI that peers may not reach it, and has the reason. With the
    settings in that line the log has no warning, and all NIDs answer."""
    a, b = twins
    for node in twins:
        sysctls(node, {"arp_ignore": 0, "arp_announce": 0, "rp_filter": 0})
    with with_nis(twins):
        for node in twins:
            node.ni_add("o2ib1", "v1")
            log = node.log()
            assert f"{node.nid}: peers may not reach this NI: v1 {LINE}" in log, log
            assert f"{node.second_nid}: peers may not reach this NI: v0 {LINE}" in log, log
    for node in twins:
        sysctls(node, SYSCTLS)
        node.guest.check("ip neigh flush all")
        node.mark_log()
    with with_nis(twins):
        for node in twins:
            node.ni_add("o2ib1", "v1")
        for one, other in ((a, b), (b, a)):
            one.traffic(other, op="mix", size=65536, count=20)
            one.traffic(other.second_nid, op="mix", size=65536, count=20)
        # Another address of the subnet is added.
        a.guest.check("echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore")
        assert all("peers may not" not in node.log() for node in twins)
        a.guest.check("ip addr add 10.9.0.201/24 dev v1")
        assert f"{a.nid}: peers may not reach this NI: v1 {LINE}" in a.log(), a.log()


def test_strict_source_validation_on_one_link(twins):
    """rp_filter 1 drops packets to the interface that does not have the route, unless a rule names the source."""
    a, b = twins
    for node in twins:
        sysctls(node, {**SYSCTLS, "rp_filter": 1})
        node.mark_log()
    with with_nis(twins):
        for node in twins:
            node.ni_add("o2ib1", "v1")
            log = node.log()
            line = "peers may not reach this NI: v0 is in the same subnet and has the route"
            assert f"{node.second_nid}: {line}" in log, log
            assert f"{node.nid}: peers may not" not in log, log
    for node in twins:
        node.guest.check("ip route add 10.9.0.0/24 dev v1 table 8 && ip neigh flush all")
        node.guest.check(f"ip rule add from {node.second} lookup 8")
        node.mark_log()
    with with_nis(twins):
        for node in twins:
            node.ni_add("o2ib1", "v1")
            assert "peers may not" not in node.log(), node.log()
        a.traffic(b.second_nid, op="mix", size=65536, count=20)
        a.traffic(b, op="mix", size=65536, count=20)
    for node in twins:
        node.guest.check(f"ip rule del from {node.second} lookup 8")


# Last, because the kernel is tainted afterwards.
def test_the_numa_node_is_that_of_the_adapter(pair):
    """The NUMA node of an NI is that of its adapter. LNet prefers an NI near the memory, and an upper interface has no
    NUMA node: the driver uses that of the interface below it."""
    node = pair[0]
    pci = node.guest.check("basename $(readlink -f /sys/class/net/eth0/device/..)").strip()
    # Like the firmware of a machine with several nodes.
    node.guest.check(
        f"rdma link delete {vm.link_name(node.guest)}; echo 0 >/sys/bus/pci/devices/{pci}/numa_node; "
        f"cd /sys/bus/pci/drivers/virtio-pci && echo {pci} >unbind && echo {pci} >bind"
    )
    vm.setup_link(node.guest)
    stacked = Stacked(node.guest)
    for kind in (Macvlan, Bridge):
        stacked.stack(kind)
        stacked.load()
        stacked.ni_add()
        shown = node.ctl_text("ni list")
        assert re.search(rf"{re.escape(stacked.nid)} .* dev_cpt=0\b", shown), (kind, shown)
        stacked.unload()
        stacked.unstack()
