# SPDX-License-Identifier: GPL-2.0
"""Links that go away and come back: the ways, their lengths and numbers, and a table of the measurements.

With --long every way of every length runs 100 times, otherwise some of them once or twice. --rounds sets the number.
The wire of a rail is eth<rail>, a node's address on it 10.0.<rail>.<number of the guest>.
"""

import contextlib
import os
import statistics
import time

import pytest
from conftest import LOGS
from faults import SLOW, Load, ping_until, slow

# Seconds. The connection manager repeats a message after 4.3 s: a repetition while the link is away breaks its queue
# pair.
SHORT, LONG = 1, 6
# Seconds until traffic is back: the median, and the worst, of many rounds on a quiet machine.
MEDIAN, WORST = 2 * SLOW, 5 * SLOW
# Worst of a few rounds, on any machine.
BACK = 15 * SLOW
# Seconds within which informed peers are connected again. A peer that finds out by its transport takes 4 s and more.
TOLD = 2
# Number of rounds from which on a median is meaningful.
MANY = 10


class Interface:
    """`ip link set down`."""

    @staticmethod
    def away(node, rail=0):
        node.guest.check(f"ip link set eth{rail} down")

    @staticmethod
    def back(node, rail=0):
        node.guest.check(f"ip link set eth{rail} up")


class Carrier:
    """The cable."""

    @staticmethod
    def away(node, rail=0):
        node.guest.carrier(False, rail)

    @staticmethod
    def back(node, rail=0):
        node.guest.carrier(True, rail)


class Address:
    """The NI's address."""

    @staticmethod
    def away(node, rail=0):
        node.guest.check(f"ip addr del {address(node, rail)}/24 dev eth{rail}")

    @staticmethod
    def back(node, rail=0):
        node.guest.check(f"ip addr add {address(node, rail)}/24 dev eth{rail}")


class Route:
    """The route to the other node. The kernel sends no event for it, and the NI stays up: the kernel takes the other
    node for reachable if the caller names the interface, as RoCE does."""

    @staticmethod
    def away(node, rail=0):
        node.guest.check(f"ip route del 10.0.{rail}.0/24 dev eth{rail}")

    @staticmethod
    def back(node, rail=0):
        node.guest.check(f"ip route add 10.0.{rail}.0/24 dev eth{rail} src {address(node, rail)}")


KINDS = (Interface, Carrier, Address, Route)


def address(node, rail=0):
    return f"10.0.{rail}.{node.guest.number}"


def gsi(node, rail=0):
    """Returns the state of the queue pair that the connection manager sends with. iWARP has none."""
    if node.guest.provider == "siw":
        return "RTS"
    out = node.guest.check(f"rdma resource show qp link rxe{rail} type GSI")
    return out.split("state ")[1].split()[0]


def assert_can_connect(node, rail, when):
    state = gsi(node, rail)
    assert state == "RTS", f"{when}: {node.guest.name}: the CM's queue pair of rail {rail} is {state}"


def rounds(pytestconfig, few, many):
    """Returns the number of rounds: `many` with --long, or the value of --rounds."""
    asked = pytestconfig.getoption("--rounds")
    if asked:
        return asked
    return many if pytestconfig.getoption("--long") else few


def cells(few, rails=(1, 2)):
    """Returns parameters for pytest: rails, kind, seconds. All of them with --long, otherwise those in `few`."""
    return [
        pytest.param(
            *cell,
            marks=[] if cell in few else pytest.mark.long,
            id=f"{'one' if count == 1 else 'two'}-{kind.__name__.lower()}-{seconds}",
        )
        for count in rails
        for kind in KINDS
        for seconds in (SHORT, LONG)
        for cell in [(count, kind, seconds)]
    ]


HEAD = (
    "drivers", "device", "rails", "away", "for, s", "rounds", "failed", "avoided", "traffic again, s: median", "worst",
    "longest stall, s: median", "worst", "load",
)  # fmt: skip


class Cell:
    """Results of the rounds of one cell. Inside `with`. Writes a line of the table afterwards, which marks a failed
    round."""

    path = os.path.join(LOGS, "flaps.md")

    def __init__(self, who, device, rails, kind, seconds, count):
        self.what = (who, device, str(rails), kind.__name__.lower(), str(seconds))
        self.count, self.load = count, os.getloadavg()[0]
        # Seconds from the link's return until traffic over it, and the longest time without traffic, in each round.
        self.again, self.stalls = [], []
        # Rounds after which LNet had a reason to avoid the rail.
        self.avoided = 0

    def __enter__(self):
        return self

    def round(self, again, stall=None):
        if again is None:
            self.avoided += 1
        else:
            self.again.append(again)
        if stall is not None:
            self.stalls.append(stall)
        self.load = max(self.load, os.getloadavg()[0])

    def line(self, failed):
        def both(values):
            return [f"{statistics.median(values):.2f}", f"{max(values):.2f}"] if values else ["", ""]

        cells = [*self.what, str(len(self.again) + self.avoided), str(int(failed)), str(self.avoided), *both(self.again), *both(self.stalls), f"{self.load:.1f}"]
        return f"| {' | '.join(cells)} |"

    def __exit__(self, kind, *_exc):
        if kind is not None and not self.again and not self.avoided:
            self.load = max(self.load, os.getloadavg()[0])
        line = self.line(kind is not None)
        print(line)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        new = not os.path.exists(self.path)
        with open(self.path, "a", encoding="utf-8") as f:
            if new:
                f.write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n")
            f.write(f"{line}\n")

    def judge(self):
        """Checks the times without traffic, as Lustre notices them. A few rounds only have to end."""
        spent = self.stalls or self.again
        assert max(spent) <= BACK * slow() / SLOW, spent
        if len(spent) >= MANY:
            assert statistics.median(spent) <= MEDIAN and max(spent) <= WORST, spent


def flap_under_load(nodes, kind, device, port, pytestconfig, record_property):
    """Takes the link of one node after the other away under load in both directions, and checks that traffic returns
    and that no transfer is wrong. `device` is for the table; the CM's queue pair is that of rxe<port>."""
    a, b = nodes
    a.ping(b)
    count = rounds(pytestconfig, 2, 100)
    with Cell("ours, ours", device, 1, kind, LONG, count) as cell, contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(a, b)), stack.enter_context(Load(b, a, op="put"))]
        for i in range(count):
            victim = nodes[i % 2]
            time.sleep(1)
            kind.away(victim)
            time.sleep(LONG)
            kind.back(victim)
            cell.round(ping_until(a, b, 20 * slow())[0])
            for node in nodes:
                assert_can_connect(node, port, f"round {i}")
    record_property("flaps", cell.line(failed=False))
    cell.judge()
    # A node whose cable was pulled could not inform its peer.
    assert kind is Carrier or min(cell.again) < TOLD * slow(), cell.again
    for load in loads:
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
