# SPDX-License-Identifier: GPL-2.0
"""Links that go down and come back under real LNet: one rail, and Multi-Rail over two. Run by `make test-lustre
LUSTRE=...`.

The load is one-sided PUTs of 64 KiB in both directions, which may fail: lnet_selftest hangs by itself when some of its
messages fail. The test checks when LNet messages flow again, and with two rails that they do not stop and that both
rails are used again.

In the end each node has to answer the other. ko2iblnd may be unable to: soft-RoCE refuses its registrations, and each
refusal breaks a connection ("ko2iblnd on soft-RoCE" in Documentation/ko2iblnd-differences.md). So a ping may stay
without an answer if its node was refused a registration in that time, and ro2iblnd was not. That node then does not
have to stop cleanly, because it cannot. For the same reason LNet may avoid the returned rail of two for a minute or
longer: rail_health.py detects that. The table marks such rounds.
"""

import contextlib
import time

import pytest
import vm
from link_flap import BACK, LONG, Carrier, Cell, Interface, assert_can_connect, cells, rounds
from lustre import DEBUGFS, KO, OURS
from lustrefs import rxe_mr_errors
from nodes import until
from rail_health import TRIES, Rail
from test_lustre import WITH_OURS, assert_ping, names, nodes, pytestmark, tree  # noqa: F401

# Seconds of traffic before each round.
SETTLE = 2
SHORTLY = {OURS: "ours", KO: "ko"}
# A longer time without a message is a stall, in seconds.
STALL = 0.5


class Flow:
    """Monitor of a node's messages and their stalls."""

    def __init__(self, node):
        self.node, self.last, self.since = node, node.messages(), time.monotonic()
        self.longest, self.stalls = 0.0, 0

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.1)

    def look(self):
        now, count = time.monotonic(), self.node.messages()
        # A few messages of LNet's own (pings, of the health check) are no traffic.
        if count > self.last + 5:
            self.stalls += now - self.since > STALL
            self.longest = max(self.longest, now - self.since)
            self.last, self.since = count, now

    def flows_within(self, seconds):
        """Returns the seconds until there is traffic."""
        began, before = time.monotonic(), self.last
        until(lambda: self.look() or self.last > before, "traffic", timeout=seconds, pause=0.1)
        return time.monotonic() - began


@contextlib.contextmanager
def load(*made):
    """Sends PUTs from each node to the other."""
    jobs = []
    for node, other in zip(made, reversed(made)):
        node.sh("insmod /files/lnet_flood.ko")
        run = f"echo put {other.nid} 100 8 65536 >{DEBUGFS}/lnet_flood/run"
        jobs.append((node, f"while [ ! -e /tmp/stop ]; do {run}; done 2>/dev/null"))
    jobs = [(node, node.guest.spawn(script)) for node, script in jobs]
    try:
        yield
    finally:
        for node, _job in jobs:
            node.sh("touch /tmp/stop")
    for node, job in jobs:
        try:
            # After 150 s LNet gives up a message that ko2iblnd could not send.
            job.wait(150 if all(node.lnd == OURS for node in made) else 400)
        except vm.Timeout:
            told = node.guest.run(f"cat {DEBUGFS}/lnet_flood/stats {DEBUGFS}/ro2iblnd/*@*; lnetctl stats show; lnetctl net show -v 3")[1]
            raise AssertionError(f"{node.guest.name} ({node.lnd}): messages without end:\n{told}") from None


def flap(nodes, cell, kind, seconds, count):
    """Takes rail 1 of two, or the only rail, down and up `count` times, on each node with ro2iblnd in turn: ko2iblnd
    does not survive the loss of its own link on rxe."""
    a, _b = nodes
    rails = a.guest.rails
    rail = rails - 1
    victims = [node for node in nodes if node.lnd == OURS]
    for i in range(count):
        victim = victims[i % len(victims)]
        flow = Flow(a)
        flow.watch(SETTLE)
        before = a.sent()
        flow.longest = 0.0
        kind.away(victim, rail)
        flow.watch(seconds)
        during = a.sent()
        kind.back(victim, rail)
        if rails == 1:
            cell.round(flow.flows_within(BACK))
        else:
            cell.round(both_carry(nodes, rail, flow), flow.longest)
            assert during[0] > before[0], "the other rail carried nothing"
        for node in nodes:
            assert_can_connect(node, rail, f"round {i}")


def both_carry(nodes, number, flow):
    """Returns the seconds until both rails have messages. None if LNet avoids the returned rail although ro2iblnd
    works."""
    rail = Rail(nodes, number)

    def both():
        start = nodes[0].sent()
        flow.watch(1)
        if all(now > was + 10 for now, was in zip(nodes[0].sent(), start)):
            return True
        rail.look()
        return False

    began = time.monotonic()
    try:
        until(both, "both rails carry messages", timeout=60, pause=0)
    except TimeoutError as e:
        if all(node.lnd == OURS for node in nodes):
            raise AssertionError(f"{e}\n{rail.told()}") from None
        rail.assert_avoided()
        return None
    return time.monotonic() - began


def assert_answers(one, other, made):
    """Checks that `other` answers `one`, if ko2iblnd can."""
    for _ in range(TRIES):
        before = [rxe_mr_errors.count(node) for node in made]
        answered, out = one.ping(other)
        if answered:
            return
        after = [rxe_mr_errors.count(node) for node in made]
        to_blame = [node for node, was, now in zip(made, before, after) if now > was]
        assert to_blame, f"no answer, and no registration was refused: {out}"
    print(f"{one.guest.name}: no answer from {other.guest.name}; registrations refused: {after}")


def assert_all_answer(made):
    """Checks that each node answers, and that no registration of ro2iblnd was refused."""
    a, b = made
    assert_answers(a, b, made)
    assert_answers(b, a, made)
    for node in made:
        count = rxe_mr_errors.count(node)
        node.is_spoilt = node.lnd == KO and count > 0
        assert count == 0 or node.lnd == KO, f"{node.guest.name}: {count} of its registrations were refused"


# Without --long only the pairs that differ most.
FEW = [(rails, kind, LONG) for rails in (1, 2) for kind in (Interface, Carrier)]


@pytest.mark.parametrize(("rails", "kind", "seconds"), cells(FEW))
@pytest.mark.parametrize("pairing", WITH_OURS, ids=names)
def test_flap(nodes, pairing, rails, kind, seconds, pytestconfig):  # noqa: F811
    made = nodes(pairing, rails=rails)
    a, b = made
    for node in made:
        node.up()
    assert_ping(a, b)
    for one, other in ((a, b), (b, a)) if rails == 2 else ():
        one.sh(f"lnetctl discover {other.nid}")
    for node in made:
        rxe_mr_errors.watch(node)
    count = rounds(pytestconfig, pairing.count(OURS), 100)
    who = ", ".join(SHORTLY[lnd] for lnd in pairing)
    with load(a, b), Cell(who, "rxe", rails, kind, seconds, count) as cell:
        flap(made, cell, kind, seconds, count)
    assert_all_answer(made)
    cell.judge()
