# SPDX-License-Identifier: GPL-2.0
"""Links that go and come back under load: an interface that is set down, a cable that is pulled, an address or a
route that is taken away. Traffic must be there again when they are, every time, and nothing may be left behind.

What kills is a message of the connection manager for which there is no route: rxe's queue pair for such messages goes
into the error state by it and stays there, until the device is made anew."""

import statistics
import time

import pytest
from faults import SLOW, Ledger, Load, ping_until, silence
from nodes import until, up
from test_faults_cm import report

# Seconds. The connection manager repeats a message after 4.3 s: what it repeats while the link is away is what kills.
SHORT, LONG = 1, 6
# Seconds until traffic is there again: the median, and the worst, of many rounds on a quiet machine.
MEDIAN, WORST = 2 * SLOW, 5 * SLOW
# Of a few, on any machine.
BACK = 15 * SLOW


class Interface:
    """`ip link set down`."""

    @staticmethod
    def away(node):
        node.guest.check("ip link set eth0 down")

    @staticmethod
    def back(node):
        node.guest.check("ip link set eth0 up")


class Carrier:
    """The cable."""

    @staticmethod
    def away(node):
        node.guest.carrier(False)

    @staticmethod
    def back(node):
        node.guest.carrier(True)


class Address:
    """The NI's address."""

    @staticmethod
    def away(node):
        node.guest.check(f"ip addr del {node.address}/24 dev eth0")

    @staticmethod
    def back(node):
        node.guest.check(f"ip addr add {node.address}/24 dev eth0")


class Route:
    """The route to the other node. Nobody is told of it, and the NI stays up: who names the interface, as RoCE does,
    is taken at his word that the other node is there."""

    @staticmethod
    def away(node):
        node.guest.check("ip route del 10.0.0.0/24 dev eth0")

    @staticmethod
    def back(node):
        node.guest.check(f"ip route add 10.0.0.0/24 dev eth0 src {node.address}")


def gsi(node):
    """State of the queue pair that the connection manager sends with; iWARP has none."""
    if node.guest.provider == "siw":
        return "RTS"
    out = node.guest.check("rdma resource show qp link rxe0 type GSI")
    return out.split("state ")[1].split()[0]


def rounds(pytestconfig, short, long):
    if pytestconfig.getoption("--long"):
        return long
    return short


def flap(nodes, kind, seconds, count, record_property):
    a, b = nodes
    up(a, b)
    ledger = Ledger(a, b)
    a.ping(b)
    spent = []
    # Either side has requests of its own: whoever sees the link come back first connects.
    with Load(a, b) as one, Load(b, a, op="put") as other:
        for i in range(count):
            victim = nodes[i % 2]
            time.sleep(1)
            kind.away(victim)
            time.sleep(seconds)
            kind.back(victim)
            took, failed = ping_until(a, b, 20 * SLOW)
            spent.append(took)
            for node in nodes:
                assert gsi(node) == "RTS", f"round {i}: {node.guest.name}: the CM's queue pair is {gsi(node)}"
    report(
        record_property,
        f"{kind.__doc__} away for {seconds} s, {count} times",
        f"traffic again after {statistics.median(spent):.2f} s, at worst {max(spent):.2f} s",
    )
    for load in (one, other):
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    ledger.check()
    if count >= 10:
        assert statistics.median(spent) <= MEDIAN and max(spent) <= WORST, spent
    assert max(spent) <= BACK, spent


# All of them with --long; else those that are most apart.
FEW = [(Interface, LONG), (Carrier, LONG), (Address, SHORT), (Route, SHORT)]
FLAPS = [
    pytest.param(kind, seconds, marks=[] if (kind, seconds) in FEW else pytest.mark.long, id=f"{kind.__name__.lower()}-{seconds}")
    for kind in (Interface, Carrier, Address, Route)
    for seconds in (SHORT, LONG)
]


@pytest.mark.parametrize(("kind", "seconds"), FLAPS)
def test_flap(nodes, kind, seconds, pytestconfig, record_property):
    flap(nodes, kind, seconds, rounds(pytestconfig, 2, 100), record_property)


def test_the_device_is_mute(nodes):
    """What the driver cannot prevent on rxe: another user of the CM has a request on its way when the link goes. Then it says
    what is wrong, and what helps, and LNet avoids the NI."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("it has no such queue pair")
    up(a, b)
    with silence(b):
        other = a.guest.spawn(f"rping -c -C 1 -a {b.address}")
        until(lambda: "state CONNECT" in a.guest.check("rdma resource show cm_id"), "a request is on its way")
        Interface.away(a)
        # The connection manager repeats its request, and finds no route.
        until(lambda: gsi(a) == "ERR", "the CM's queue pair fails", timeout=20 * SLOW)
        Interface.back(a)
    other.kill()
    a.ping(b, ok=False)
    line = "no node can be connected to: queue pair 1 of rxe0 is in the error state"
    until(lambda: line in a.log(), "it is said", timeout=20 * SLOW)
    a.guest.check("rdma link delete rxe0; rdma link add rxe0 type rxe netdev eth0")
    ping_until(a, b, 20 * SLOW)
    assert a.log().count(line) == 1
