# SPDX-License-Identifier: GPL-2.0
"""Failover under load and real LNet of NIs whose interface is a bond: see test_failover.py. Run by `make test-lustre
LUSTRE=...`.

LNet resends if it and the peer each have two NIs to choose from: so each node has two nets on its bond, and both of
them move. Then no PUT of a node with ro2iblnd may fail. With ko2iblnd as the other node only ro2iblnd's bond fails
over. A PUT may fail if soft-RoCE refused a registration of ko2iblnd for it each time (lustrefs/rxe_mr_errors.py): such
a PUT ends a connection.
"""

import contextlib
import re
import statistics
import time

import bond
import lustre
import pytest
import vm
from faults import debug_nis, timed
from lustrefs import rxe_mr_errors
from lustre import DEBUGFS, KO, NET, OURS
from nodes import until
from test_failover import BACK, DELETE_LIMIT, LOST
from test_faults_cm import report
from test_lustre import assert_ping, names, nodes, pytestmark, tree  # noqa: F401

# LNet's default is 2. With both NIs gone at once, and back, a message may meet dead connections more often.
RETRIES = 5
PATIENCE = 180
# Messages of a flood that are on their way at a time.
UNDER_WAY = 4
BONDS = {"another-device": bond.TWO, "another-device-and-address": bond.TWO_ADDRESSES, "another-address": bond.ONE}


def device_of(guest, rail):
    """Returns the RDMA device that serves the addresses while eth<rail> is active."""
    return vm.link_name(guest, rail if len(guest.bond.devices) > 1 else 0)


def active(guest):
    return int(guest.check("cat /sys/class/net/bond0/bonding/active_slave").strip()[3:])


def stats(node):
    """Returns LNet's counters."""
    return {key: int(n) for key, n in re.findall(r"^ +(\w+)_count: (\d+)$", node.sh("lnetctl stats show"), re.MULTILINE)}


def lost(node):
    """Returns the messages that ended with a status after which LNet does not resend, by status."""
    now = stats(node)
    assert set(LOST) <= set(now), now
    # LNet does not resend a ping whose caller has given up, but ends it with ECANCELED.
    now["local_error"] -= len(re.findall(r"Error sending GET to \S+: -125$", node.guest.console(), re.MULTILINE))
    return {key: now[key] for key in LOST if now[key]}


def nis(node):
    """Returns NID, device and state of each NI."""
    return sorted((ni["ni"], ni["device"], ni["link"]) for ni in debug_nis(node))


class Load:
    """Floods of PUTs, one after the other, until it is stopped. Inside `with`."""

    def __init__(self, node, other, size):
        self.node = node
        flood = f"echo put {other.nid} 50 {UNDER_WAY} {size} >{DEBUGFS}/lnet_flood/run; cat {DEBUGFS}/lnet_flood/stats >>/tmp/flood"
        self.script = f"while [ ! -e /tmp/stop ]; do {flood}; done"

    def __enter__(self):
        self.node.sh("rm -f /tmp/stop /tmp/flood; touch /tmp/flood")
        self.job = self.node.guest.spawn(self.script)
        return self

    def done(self):
        """Returns the number of finished PUTs, and of those that failed."""
        text = self.node.sh("cat /tmp/flood")
        return [sum(int(n) for n in re.findall(rf"^{key}=(\d+)$", text, re.MULTILINE)) for key in ("done", "errors")]

    def __exit__(self, *_exc):
        if self.node.guest.alive():
            self.node.sh("touch /tmp/stop")
            self.job.wait(PATIENCE)


def goes_on(*loads):
    """Returns the seconds until each load has finished PUTs that started later than now."""
    began = time.monotonic()
    for load in loads:
        # A flood that is finished now may have been finished before.
        want = load.done()[0] + 100
        until(lambda: load.done()[0] >= want, f"{load.node.guest.name}: messages", PATIENCE)  # noqa: B023
    return time.monotonic() - began


def come(node):
    """Returns how many PUTs LNet of the node has got, and how many of them twice."""
    now = lustre.parse(node.sh(f"cat {DEBUGFS}/lnet_flood/stats"))
    return now["puts"], now["twice"]


def flows(*nodes):
    """Returns for each node the seconds until it has PUTs that the other node sent later than now."""
    began = time.monotonic()
    want = {node: come(node)[0] + UNDER_WAY for node in nodes}
    spent = {}

    def look():
        for node in nodes:
            if node not in spent and come(node)[0] > want[node]:
                spent[node] = time.monotonic() - began
        return len(spent) == len(nodes)

    until(look, "PUTs come", BACK, pause=0.1)
    return [spent[node] for node in nodes]


def answered(a, b):
    """Returns the seconds until both NIDs of each node get answers from the other node."""
    began = time.monotonic()
    for one, other in ((a, b), (b, a)):
        for net in (NET, f"{NET}1"):
            ping = f"lnetctl ping --timeout 10 --source 10.0.0.{one.guest.number}@{net} 10.0.0.{other.guest.number}@{net}"
            until(lambda: one.guest.run(ping)[0] == 0, f"{one.guest.name}: {ping}", BACK)  # noqa: B023
    return time.monotonic() - began


def replug(guest, rail):
    """Deletes the device that the NI left, which must not take long, and adds it again."""
    device = device_of(guest, rail)
    spent, _ = timed(lambda: guest.check(f"rdma link delete {device}", PATIENCE))
    assert spent < DELETE_LIMIT, f"{device} was held for {spent:.1f} s"
    guest.check(f"ip link set eth{rail} nomaster")
    vm.enslave(guest, rail)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.long if k.endswith("device-and-address") else []) for k in BONDS])
@pytest.mark.parametrize("pairing", [(OURS, OURS), (OURS, KO)], ids=names)
def test_fail_over(nodes, pairing, kind, pytestconfig, record_property):  # noqa: F811
    made = nodes(pairing, bond=BONDS[kind], files=bond.files(), modules=bond.modules())
    a, b = made
    for node in made:
        node.up(selftest=False)
        node.sh(f"lnetctl net add --net {NET}1 --if bond0; lnetctl set retry_count {RETRIES}; insmod /files/lnet_flood.ko")
        rxe_mr_errors.watch(node)
    assert_ping(a, b)
    for one, other in ((a, b), (b, a)):
        shown = one.sh(f"lnetctl discover {other.nid}")
        assert f"10.0.0.{other.guest.number}@{NET}1" in shown, shown
    ours = [node for node in made if node.lnd == OURS]
    two = len(a.guest.bond.devices) > 1
    count = pytestconfig.getoption("--rounds") or (100 if pytestconfig.getoption("--long") else 4)
    spent, to_it, from_it = [], [], []
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(load) for load in (Load(a, b, 65536), Load(b, a, 4000))]
        for i in range(count):
            node = ours[i // 2 % len(ours)]
            victim = node.guest
            goes_on(*loads)
            old = active(victim)
            began = time.monotonic()
            vm.fail_over(victim, 1 - old)
            for times, took in zip((to_it, from_it), flows(node, b if node is a else a)):
                times.append(took)
            answered(a, b)
            spent.append(time.monotonic() - began)
            want = [device_of(victim, 1 - old), "up"]
            until(lambda: all(ni[1:] == tuple(want) for ni in nis(node)), "it has followed", BACK)  # noqa: B023
            if two and i % 3 == 2:
                replug(victim, old)
        goes_on(*loads)
    refusals = {node: rxe_mr_errors.count(node) for node in made}
    print("registrations refused:", *(f"{node.lnd} {n}" for node, n in refusals.items()))
    assert not any(refusals[node] for node in ours), refusals
    # Each refusal ends the messages on their way on a connection, and LNet resends them RETRIES times.
    unlucky = sum(refusals.values()) * UNDER_WAY // (RETRIES + 1)
    resent = 0
    for load in loads:
        done, errors = load.done()
        print(f"{load.node.lnd}: {done} PUTs, {errors} failed, {stats(load.node)['resend']} sent again")
        resent += stats(load.node)["resend"]
        if load.node.lnd == OURS:
            assert done and errors <= unlucky, (done, errors, refusals, stats(load.node))
    report(
        record_property,
        f"{names(pairing)}, {kind}, {count} times under real LNet",
        f"traffic to it again after {statistics.median(to_it):.2f} s, at worst {max(to_it):.2f} s; "
        f"from it {statistics.median(from_it):.2f}, {max(from_it):.2f}; all NIDs answer after {statistics.median(spent):.2f} s, "
        f"at worst {max(spent):.2f} s; {resent} messages sent again",
    )
    for what, times in (("traffic to it", to_it), ("from it", from_it), ("all NIDs", spent)):
        print(f"{what}, s:", *(f"{t:.2f}" for t in times))
    # Without a resend the test shows nothing.
    assert resent
    for node in ours:
        assert not lost(node), lost(node)
        log = node.guest.dmesg()
        assert "link is down" not in log and "the RDMA device is gone" not in log
        assert "no connection is possible" not in log
        assert not two or "the interface moved from " in log
        assert node.net_show().count("status: up") == 1
    for load, other in zip(loads, reversed(made)):
        # A PUT that the peer's device has acknowledged has arrived. The fate of a failed PUT is unknown. LNet may have
        # resent PUTs that had arrived.
        done, errors = load.done()
        puts, twice = come(other)
        missing = done - (puts - twice)
        print(f"{load.node.lnd}: {missing} did not come, {errors} failed, {twice} came twice")
        assert missing <= errors or other.lnd == KO
    if two:
        for node in ours:
            for _ in range(2):
                old = active(node.guest)
                vm.fail_over(node.guest, 1 - old)
                until(lambda: all(ni[1] != device_of(node.guest, old) for ni in nis(node)), "it has followed", BACK)  # noqa: B023
                replug(node.guest, old)
    answered(a, b)
    # Pings of all NIDs, one after the other, are as slow as the machine.
    assert max(*to_it, *from_it) <= BACK, (to_it, from_it)
