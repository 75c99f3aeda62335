# SPDX-License-Identifier: GPL-2.0
"""Changes of the device, the link, the address and the path to the peer under traffic."""

import time

import pytest
import vm
from faults import SLOW, Ledger, Load, close_all, debug_nis, nft, ping_until, silence, timed
from counters import DEBUGFS
from nodes import PATIENCE, Node, parse, until, up
from test_faults_cm import report

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

DELETE_LIMIT = 5 * SLOW
# After this time the peer has certainly detected the loss, and the NI is back.
BACK_LIMIT = 40 * SLOW


def unplug(node):
    """Unplugs the device. Returns the seconds that took."""
    spent, _ = timed(node.unplug)
    assert [ni["device"] for ni in debug_nis(node)] == ["none"]
    return spent


def remove_module(node):
    """Removes the provider's module with every link. Returns the seconds that took."""
    module = vm.PROVIDERS[node.guest.provider]
    spent, _ = timed(lambda: node.guest.check(f"rdma link delete {node.device} && rmmod {module}", PATIENCE))
    return spent


def insert_module(node):
    module = vm.PROVIDERS[node.guest.provider]
    node.guest.check(f"insmod $(find /modules -name '{module}.ko*' | head -1)")
    node.plug()


def rounds(pytestconfig, short, long):
    return long if pytestconfig.getoption("--long") else short


def under_load(nodes, count, leave, come_back, record_property, what, settle=1.0):
    a, b = nodes
    up(a, b)
    a.ping(b)
    worst = {"leave": 0, "back": 0}
    ops = ("get", "put")
    for i in range(count):
        # Either side, and either direction of traffic.
        victim, op = nodes[i % 2], ops[i // 2 % 2]
        with Load(a, b, op=op) as load:
            time.sleep(settle)
            worst["leave"] = max(worst["leave"], leave(victim))
            time.sleep(0.3)
            come_back(victim)
            back, _ = ping_until(a, b, BACK_LIMIT)
            worst["back"] = max(worst["back"], back)
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    report(record_property, what, f"{count} times, worst {worst['leave']:.2f} s, traffic again after {worst['back']:.2f} s at worst")
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    return worst


def test_unplug(nodes, pytestconfig, record_property):
    worst = under_load(nodes, rounds(pytestconfig, 5, 50), unplug, Node.plug, record_property, "rdma link delete")
    assert worst["leave"] <= DELETE_LIMIT
    for node in nodes:
        until(lambda n=node: all(ni["device"] == n.device for ni in debug_nis(n)), "attached")


def test_provider_module(nodes, pytestconfig, record_property):
    worst = under_load(
        nodes, rounds(pytestconfig, 2, 10), remove_module, insert_module, record_property, "rmmod of the provider"
    )
    assert worst["leave"] <= DELETE_LIMIT


def test_ni_deleted_without_device(nodes):
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=20)
    unplug(a)
    until(lambda: debug_nis(a)[0]["device"] == "none", "gone")
    # The NI has no link, and is not reported as down, because its device is gone.
    assert debug_nis(a)[0]["link"] == "none"
    spent, _ = timed(a.ni_del)
    assert spent < DELETE_LIMIT
    log = a.log()
    assert f"{a.nid}: the RDMA device is gone" in log and "link is down" not in log
    assert f"{a.nid}: the NI is stopped" in log
    # No NI can be added now. One can when the device is back.
    assert a.ctl("ni add o2ib eth0", ok=False)["rc"] != 0
    assert 'no RDMA device has this address, see "rdma link"' in a.guest.dmesg()
    a.plug()
    a.ni_add()
    ping_until(a, b, BACK_LIMIT)


def test_module_unloaded_without_device(nodes):
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=20)
    unplug(a)
    a.ni_del()
    a.idle()
    a.guest.check("rmmod ro2iblnd", PATIENCE)
    a.plug()
    a.guest.check("insmod /files/ro2iblnd.ko", PATIENCE)
    a.ni_add()
    ping_until(a, b, BACK_LIMIT)


def during_traffic(nodes, change, record_property, what, back=BACK_LIMIT):
    """Makes a change under traffic: traffic continues, or starts again."""
    a, b = nodes
    up(a, b)
    ledger = Ledger(a, b)
    a.ping(b)
    with Load(a, b) as load:
        time.sleep(1)
        change()
        spent, failed = ping_until(a, b, back)
        report(record_property, what, f"answer after {spent:.2f} s, {failed} pings failed")
    total = load.result()
    report(record_property, f"{what}, load", total)
    assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    ledger.check()


@pytest.mark.parametrize("seconds", [0.5, 6])
def test_wire_cut_and_mended(nodes, record_property, seconds):
    """Traffic starts again after no packet got through in either direction, for less and for more time than the
    transport retries."""
    a, b = nodes

    def change():
        with silence(a), silence(b):
            time.sleep(seconds)

    during_traffic(nodes, change, record_property, f"wire cut for {seconds} s")


# rxe: a packet without a route makes the queue pair fail, and the queue pair of the CM (GSI) does not come back until
# the device is removed. So these two tests have no traffic when the link goes.


def idle(nodes, change, record_property, what):
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=20)
    close_all(a, b)
    change()
    spent, failed = ping_until(a, b, BACK_LIMIT)
    report(record_property, what, f"answer after {spent:.2f} s, {failed} pings failed")
    b.traffic(a, op="mix", size=65536, count=50)


@pytest.mark.parametrize("side", [0, 1])
def test_link_down_and_up(nodes, record_property, side):
    node = nodes[side]

    def change():
        node.guest.check("ip link set eth0 down")
        time.sleep(2)
        assert "link is down" in node.log()
        node.guest.check("ip link set eth0 up")

    idle(nodes, change, record_property, f"link of {node.guest.name} down for 2 s")


@pytest.mark.parametrize("side", [0, 1])
def test_address_flushed(nodes, record_property, side):
    node = nodes[side]

    def change():
        node.guest.check("ip addr flush dev eth0")
        time.sleep(2)
        node.guest.check(f"ip addr add {node.address}/24 dev eth0")

    idle(nodes, change, record_property, f"address of {node.guest.name} away for 2 s")


def test_port_events_close_no_connection(nodes):
    """Events of a port that changes nothing about the connections of RoCE cost no message and no connection."""
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=20)
    a.guest.check("insmod /files/ib_event.ko")
    for event in ("lid_change", "pkey_change", "sm_change", "client_reregister", "gid_change", "port_active"):
        run = a.start(b, op="mix", size=65536, count=40, conc=8)
        a.guest.check(f"echo eth0 {event} >/sys/module/ib_event/parameters/tell")
        r = run.result()
        assert r["count"] == 40 and not r["errors"] and not r["verify_errors"], (event, r)
    a.guest.check("rmmod ib_event")
    assert "connection closed" not in a.log() + b.log()


def test_mtu(nodes, record_property):
    a, b = nodes

    def change():
        for mtu in (1500, 4200):
            for node in (a, b):
                node.guest.check(f"ip link set eth0 mtu {mtu}")
            time.sleep(1)

    during_traffic(nodes, change, record_property, "MTU 1500 and back")


def test_neighbour_moves(nodes, record_property):
    """When the peer's MAC address really changes, connections with the old address go."""
    a, b = nodes
    old, new = "52:54:00:00:00:02", "52:54:00:00:0f:02"

    def change():
        for mac in (new, old):
            b.guest.check(f"ip link set eth0 address {mac}")
            a.guest.check(f"ip neigh replace {b.address} lladdr {mac} dev eth0 nud reachable")
            time.sleep(2)

    during_traffic(nodes, change, record_property, "neighbour with a new MAC address")


def test_packet_loss(nodes):
    """The transport repairs a loss of 0.5 %: no message fails."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    nft(b.guest, "table netdev loss { chain in { type filter hook ingress device eth0 priority 0;\n"
        "udp dport 4791 numgen random mod 1000 < 5 drop\n}\n}")  # fmt: skip
    try:
        a.traffic(b, op="mix", size=65536, count=100)
        b.traffic(a, op="mix", size=65536, count=100)
    finally:
        b.guest.check("nft delete table netdev loss")
    a.traffic(b, op="mix", size=65536, count=50)


def test_short_timeout_and_four_connections_survive_packet_loss(nodes):
    """With options of sites with soft-RoCE (a timeout of 10 s, depth 42, four connections, one gather element) loss for
    as long as the timeout ends no connection twice, and the four connections are there afterwards."""
    a, b = nodes
    up(a, b, lnd="conns_per_peer=4 peer_credits=42 peer_credits_hiw=64 concurrent_sends=84 ntx=2048 credits=1024 "
                 "timeout=10 wrq_sge=1 dev_failover=1 map_on_demand=1")  # fmt: skip
    a.traffic(b, op="mix", size=65536, count=20)
    until(lambda: a.conns() == b.conns() == 4, "all four are there")
    nft(b.guest, "table netdev loss { chain in { type filter hook ingress device eth0 priority 0;\n"
        "udp dport 4791 numgen random mod 100 < 5 drop\n}\n}")  # fmt: skip
    try:
        began = time.monotonic()
        while time.monotonic() < began + 12:
            r = a.try_traffic(b, op="mix", size=65536, count=40, conc=8, timeout=60)
            assert r["count"] == r["issued"] == 40, r
    finally:
        b.guest.check("nft delete table netdev loss")
    a.traffic(b, op="mix", size=65536, count=50)
    for node in nodes:
        until(lambda node=node: node.conns() == 4, "four connections again, and no more")
        ended = parse(node.guest.check(f"grep of=closed {DEBUGFS}/{node.nid}"))
        assert sum(n for n in ended.values() if isinstance(n, int)) <= 4, ended
