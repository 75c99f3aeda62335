# SPDX-License-Identifier: GPL-2.0
"""Failover under load of an NI whose interface is a bond: its address is then on another RDMA device, while the old one
stays, or on the same device under another hardware address. The NI follows at once and is up all the time, traffic
continues, LNet resends each message that was lost, and the old device is free."""

import contextlib
import statistics
import time

import bond
import pytest
import vm
from faults import SLOW, Ledger, Load, answered, close_all, debug_nis, slow, timed
from nodes import PATIENCE, until, up
from test_faults_cm import report
from test_stage_times import Notices

# Seconds until traffic is back: the median of many rounds, and the worst. Messages of the other node that are on their
# way wait for rxe's retries, six tries of 1.07 s: the node gets no DREQ, because its sender has no GID for it.
MEDIAN = 2 * SLOW
BACK = 15 * SLOW
# Seconds within which an unused device can be deleted.
DELETE_LIMIT = 5 * SLOW
# Statuses after which LNet does not resend.
LOST = ("local_error", "remote_error", "remote_timeout", "network_timeout")


def back():
    """Returns the worst time, scaled by the load of the machine."""
    return round(BACK * slow() / SLOW)


@pytest.fixture
def bonded(boot_pair, request):
    """Provides two nodes on a bond as the parameter says. Leftovers fail the test."""
    nodes = tuple(bond.Bonded(guest) for guest in boot_pair(files=bond.files(), bond=request.param))
    yield nodes
    if not getattr(request.node, "failed_call", True):
        for node in nodes:
            node.unload()


def lost(node):
    """Returns how many messages ended with a status after which LNet does not resend, by status."""
    stats = node.stats()
    return {name: stats[key] for name in LOST if stats.get(key := f"health_{name}")}


def is_on(node, device):
    nis = debug_nis(node)
    return [(ni["device"], ni["link"]) for ni in nis] == [(device, "up")]


def replug(node, rail):
    """Deletes the device that the NI left, which must not take long, and adds it again."""
    device = node.device_of(rail)
    spent, _ = timed(lambda: node.guest.check(f"rdma link delete {device}", PATIENCE))
    assert spent < DELETE_LIMIT, f"{device} was held for {spent:.1f} s"
    node.guest.check(f"ip link set eth{rail} nomaster")
    vm.enslave(node.guest, rail)


def fail_over(nodes, count, record_property, what):
    a, b = nodes
    up(a, b)
    for node in nodes:
        # LNet resends like that.
        node.set(retries=100, retry_ms=50)
    ledger = Ledger(a, b)
    a.ping(b)
    two = len(a.guest.bond.devices) > 1
    spent = []
    # Fewer messages than LNet has credits of a peer: credits of messages that were on their way come back late.
    few = {"conc": 2, "timeout": 20}
    # Uevents are recorded in short runs only.
    notices = {node: Notices(node) for node in nodes if count < 10}
    moves = {node: [] for node in nodes}
    with contextlib.ExitStack() as stack:
        for told in notices.values():
            stack.enter_context(told)
        one, other = stack.enter_context(Load(a, b, op="put-ack", **few)), stack.enter_context(Load(b, a, op="put-ack", size=4000, **few))
        third = stack.enter_context(Load(a, b, **few))
        for i in range(count):
            victim = nodes[i // 2 % 2]
            time.sleep(1)
            old = victim.active()
            new = victim.fail_over()
            spent.append(answered(a, b, back()))
            until(lambda: is_on(victim, victim.device_of(new)), f"round {i}: {victim.guest.name} has followed", timeout=back())
            if two:
                moves[victim].append((victim.nid, victim.device_of(new)))
                if i % 3 == 2:
                    replug(victim, old)
        for node, told in notices.items():
            # One notice for each move, with the device that the NI has then. None if the device is the same.
            want = moves[node]
            until(lambda: told.of("device_moved") == want, f"{node.guest.name} gets the notices {want}")  # noqa: B023
            assert not told.of("device_gone") and not told.of("device_back")
    report(
        record_property,
        f"{what}, {count} times",
        f"traffic again after {statistics.median(spent):.2f} s, at worst {max(spent):.2f} s",
    )
    for load in (one, other, third):
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    for load in (one, other):
        # Every PUT that failed was resent. No node resends an ACK that LNet did not get.
        total = load.result()
        assert total["errors"] == total["timeouts"], total
    for node in nodes:
        assert not lost(node), (node.guest.name, lost(node))
        log = node.log()
        assert "link is down" not in log and "the RDMA device is gone" not in log
        assert "no connection is possible" not in log
        # Moves in both directions are logged, except those that the rate limit drops.
        assert not two or f"{node.nid}: the interface moved from " in log
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    if two:
        for victim in (a, b, a, b):
            close_all(a, b)
            old = victim.active()
            victim.fail_over()
            until(lambda: not is_on(victim, victim.device_of(old)), "it has followed")
            replug(victim, old)
    ledger.check()
    assert max(spent) <= back(), spent
    if count >= 10:
        assert statistics.median(spent) <= MEDIAN, spent


BONDS = [
    pytest.param(bond.TWO, id="another-device"),
    pytest.param(bond.TWO_ADDRESSES, id="another-device-and-address", marks=pytest.mark.long),
    pytest.param(bond.ONE, id="another-address"),
]


@pytest.mark.parametrize("bonded", BONDS, indirect=True)
def test_fail_over(bonded, pytestconfig, record_property, request):
    fail_over(bonded, 100 if pytestconfig.getoption("--long") else 4, record_property, request.node.callspec.id)


@pytest.mark.parametrize("moved", [False, True], ids=["of-the-bond", "moved-to-it"])
@pytest.mark.parametrize("bonded", BONDS[:1], indirect=True)
def test_a_port_is_not_the_bond(bonded, moved):
    """An NI on a bond stays up without a gap when the cable of the active slave is pulled, which sets the slave's port
    down. The address may have moved to the bond after the NI's start."""
    a, b = bonded
    if moved:
        a.guest.check(
            "ip link add plain0 mtu 4200 type veth peer plain1 && ip link set plain0 up && ip link set plain1 up && "
            f"ip addr del {a.address}/24 dev bond0 && ip addr add {a.address}/24 dev plain0 && rdma link add rxe9 type rxe netdev plain0"
        )
    a.load()
    b.load()
    a.ni_add(interface="plain0" if moved else "bond0")
    b.ni_add()
    if moved:
        a.guest.check(f"ip addr del {a.address}/24 dev plain0 && ip addr add {a.address}/24 dev bond0")
    until(lambda: is_on(a, a.device_of(a.active())), "it is on the bond")
    answered(a, b, back())
    for _ in range(2):
        old = a.active()
        a.mark_log()
        a.guest.carrier(False, old)
        until(lambda: is_on(a, a.device_of(1 - old)), "it has followed")
        answered(a, b, back())
        assert "link is down" not in a.log()
        a.guest.carrier(True, old)
        time.sleep(1)
    a.traffic(b, op="mix", size=65536, count=50)
