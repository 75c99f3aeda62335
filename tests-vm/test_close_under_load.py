# SPDX-License-Identifier: GPL-2.0
"""Closes under load, one after the other, in every way.

One guest with two links and an NI on each. Traffic runs in both directions all the time.
"""

import contextlib
import re
import time

import pytest
from faults import SLOW, Ledger, Load, kinds, lose, objects, silence, timed, wire
from nodes import CTL, PATIENCE, SOFTIRQ, TELL, Node, until
from test_faults_cm import report

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

LIMIT = 5 * SLOW
# The transport's retries, 6 times 1.07 s on soft-RoCE, detect a silent peer: on messages on their way, or on the NOOP
# that each connection sends after a second of silence. A slow machine needs longer.
RETRIES = 6.5 * SLOW
FOUND = 1.3 * SLOW + RETRIES + 4 * SLOW
DEBUGFS = "/sys/kernel/debug/ro2iblnd"
NIDS = ("10.0.1.1@o2ib", "10.0.1.2@o2ib")
# Connections between the two NIs, which a round closes. The debug kernel has few rounds, hence many connections.
CONNS = 4 if SLOW == 1 else 16

# One round: notes the time, closes, waits until no connection is closing, notes the time again, and waits for a
# connection for the next round.
SCRIPT = """
now() {{ read -r up rest </proc/uptime; t=${{up%.*}}${{up#*.}}; }}
ctl() {{ exec 3<>{ctl}/ctl; echo "$1" >&3 2>/dev/null; rc=$?; exec 3>&-; return $rc; }}
going() {{ cat {debugfs}/* 2>/dev/null | grep -q -e state=Closing -e state=Draining -e state=Dead; }}
there() {{ cat {debugfs}/* 2>/dev/null | grep -q state=Established; }}
ups() {{ grep -c state=Established {debugfs}/$1 2>/dev/null; }}
# Both sides have the same connections: the one that the other side has lost is gone.
even() {{ u=$(ups {a}); [ $u -gt 0 ] && [ $u = "$(ups {b})" ]; }}
worst=0; sum=0; n=0; closes=0; slow=0; missing=0
i=0
while [ $i -lt {count} ]; do
	if [ $((i % 2)) = 0 ]; then mine={a}; other={b}; my=veth0; its=veth1; else mine={b}; other={a}; my=veth1; its=veth0; fi
	i=$((i + 1))
	now; t0=$t
	until there; do now; [ $((t - t0)) -gt {patience} ] && {{ missing=$((missing + 1)); break; }}; sleep 0.02; done
	sleep $((RANDOM % {slow})).$((RANDOM % 4))$((RANDOM % 10))
	closes=$((closes + $(ups $mine)))
	now; t0=$t
	( sleep {limit}; echo "round $i"; cat {debugfs}/* {ctl}/stats; dmesg | tail -n 30 ) >>/tmp/slow 2>&1 & watch=$!
	{act}
	while going; do now; [ $((t - t0)) -gt {patience} ] && break; sleep 0.01; done
	kill $watch
	now; d=$((t - t0)); n=$((n + 1)); sum=$((sum + d))
	[ $d -gt $worst ] && worst=$d
	[ $d -gt {limit}00 ] && slow=$((slow + 1))
	{after}
done
echo "n=$n closes=$closes worst=$worst sum=$sum slow=$slow missing=$missing"
"""

WAYS = {
    "ni": ("ctl \"ni del $mine\"", "ctl \"ni add o2ib $my {conns}\""),
    "peer": ("ctl \"peer del $other from=$mine\"", ""),
    "remote": ("ctl \"conn close $other from=$mine\"", ""),
    # The peer forgets everything without a message, and comes back as another incarnation.
    "reset": (
        'ctl "ni del $other"; ctl "ni add o2ib $its {conns}"; '
        "until even; do now; [ $((t - t0)) -gt {patience} ] && break; sleep 0.02; done",
        "",
    ),
    "rmmod": (
        "ctl \"ni del {a}\"; ctl \"ni del {b}\"; rmmod ro2iblnd || echo not unloaded",
        "insmod /files/ro2iblnd.ko; ctl \"ni add o2ib veth0 {conns}\"; ctl \"ni add o2ib veth1 {conns}\"",
    ),
}  # fmt: skip
# Rounds: a few, and enough to close 2000 connections.
COUNTS = {"ni": 10, "peer": 20, "remote": 20, "reset": 10, "rmmod": 10}
MANY = 600 if SLOW == 1 else 150


@pytest.fixture
def both(boot):
    """Provides a guest with two links and an NI on each."""
    import vm

    guest = boot("two", tools=("nft",))
    vm.setup_two_links(guest)
    node = Node(guest, "10.0.1.1")
    node.load()
    for device in ("veth0", "veth1"):
        node.ni_add(interface=device, conns_per_peer=CONNS)
    yield node
    if guest.alive() and node.loaded:
        node.unload()


def run(node, way, count, timeout):
    act, after = (s.format(a=NIDS[0], b=NIDS[1], conns=f"conns_per_peer={CONNS}", patience=3000 * SLOW) for s in WAYS[way])
    script = SCRIPT.format(
        ctl=CTL, debugfs=DEBUGFS, count=count, a=NIDS[0], b=NIDS[1], act=act, after=after, limit=LIMIT, slow=SLOW, patience=3000 * SLOW
    )
    out = node.guest.check(script, timeout)
    found = re.search(r"n=(\d+) closes=(\d+) worst=(\d+) sum=(\d+) slow=(\d+) missing=(\d+)", out)
    assert found, out
    assert "not unloaded" not in out, out
    return [int(x) for x in found.groups()]


def close_often(node, way, count, record_property):
    ledger = Ledger(node)
    sums = {}
    with (
        Load(node, NIDS[1], op="get", from_=NIDS[0], verify="data") as one,
        Load(node, NIDS[0], op="put", from_=NIDS[1], verify="data") as two,
    ):
        n, closes, worst, total, slow, missing = run(node, way, count, timeout=(60 + 10 * count) * SLOW)
    for load in (one, two):
        for k, v in load.result().items():
            sums[k] = sums.get(k, 0) + v
    report(
        record_property,
        f"close by {way}",
        f"{closes} connections in {n} rounds, worst {worst * 10} ms, mean {total * 10 / n:.0f} ms; load {sums}; {wire(node)}",
    )
    found = f"slow {slow}, without a connection {missing}\n"
    assert slow == 0 and missing == 0, found + node.guest.check("cat /tmp/slow")
    assert sums["count"] > 0 and sums["verify_errors"] == 0 and sums["stuck"] == 0, sums
    ledger.check()


@pytest.mark.parametrize("way", WAYS)
def test_close_under_load(both, way, pytestconfig, record_property):
    count = MANY if pytestconfig.getoption("--long") else COUNTS[way]
    with contextlib.ExitStack() as stack:
        if way == "reset":
            for device in ("veth0", "veth1"):
                stack.enter_context(lose(both, "DREQ", device=device))
        close_often(both, way, count, record_property)


def test_peer_silent(both, pytestconfig, record_property):
    """The transport's retries detect a peer that is gone without a message."""
    node = both
    ledger = Ledger(node)
    worst = closed = 0
    count = 30 if pytestconfig.getoption("--long") else 3
    for i in range(count):
        op = ("get", "put")[i % 2]
        # Load from both NIs: a node without a message finds out by keepalive only.
        with Load(node, NIDS[1], op=op, from_=NIDS[0]), Load(node, NIDS[0], op=op, from_=NIDS[1]):
            until(lambda: objects(node), "connection", 30)
            with silence(node, "veth0"), silence(node, "veth1"):
                spent, _ = timed(lambda: until(lambda: states(node, "Established") == 0, "found out", 60, 0.05))
                worst = max(worst, spent)
                closed = max(closed, closing(node))
    report(record_property, "peer silent", f"{count} times, found out within {worst:.2f} s, closed {closed:.2f} s later")
    # All connections at about the same time, not one after the other.
    assert worst <= FOUND and closed <= LIMIT
    ledger.check()


def states(node, *names):
    """Returns how many connections are in one of these states."""
    words = " ".join(f"-e state={name}" for name in names)
    return int(node.guest.run(f"cat {DEBUGFS}/* | grep -c {words}")[1])


def closing(node):
    """Returns the seconds until no connection is closing."""
    return timed(lambda: until(lambda: states(node, "Closing", "Draining", "Dead") == 0, "closed", 60, 0.05))[0]


def test_guest_killed(boot_pair, pytestconfig, record_property):
    """A node whose power was cut can connect again after its reboot."""
    guests = boot_pair()
    a, b = (Node(g) for g in guests)
    for node in (a, b):
        node.load()
        node.ni_add()
    ledger = Ledger(a)
    worst = closed = 0
    for _ in range(5 if pytestconfig.getoption("--long") else 1):
        a.ping(b)
        with Load(a, b):
            until(lambda: states(a, "Established"), "connection", 30)
            b.guest.kill()
            spent, _ = timed(lambda: until(lambda: states(a, "Established") == 0, "found out", 60, 0.05))
            worst = max(worst, spent)
            closed = max(closed, closing(a))
            b.guest.start()
            import vm

            vm.setup_link(b.guest)
            b.load()
            b.ni_add()
        until(lambda: a.ping(b, ok=False)["rc"] == 0, "traffic with the new life")
        a.traffic(b, op="mix", size=65536, count=20)
        b.traffic(a, op="mix", size=65536, count=20)
    report(record_property, "guest killed", f"found out within {worst:.2f} s, closed {closed:.2f} s later")
    assert worst <= FOUND and closed <= LIMIT
    ledger.check()
    for node in (a, b):
        node.unload()


def test_numbers_are_read_meanwhile(nodes):
    """Reading the counters of live and closed connections all the time does no harm, with completions in softirqs."""
    for node in nodes:
        node.load()
        node.guest.check(TELL.format(SOFTIRQ))
        node.ni_add(conns_per_peer=4)
    a, b = nodes
    a.ping(b)
    read = f"while [ ! -e /tmp/read ]; do cat {DEBUGFS}/*@*; done >/dev/null; rm /tmp/read"
    readers = [node.guest.spawn(read) for node in nodes]
    with Load(a, b) as load:
        for _ in range(10):
            a.ctl(f"conn close {b.nid}", ok=False)
            time.sleep(0.3)
    assert load.result()["count"] > 0
    for node, reader in zip(nodes, readers, strict=True):
        node.guest.check("touch /tmp/read")
        reader.wait(PATIENCE)
    for node in nodes:
        node.unload()


def test_nothing_grows(both, record_property):
    """Many closes do not increase the memory of the kernel."""
    node = both

    def free():
        node.guest.check("echo 3 > /proc/sys/vm/drop_caches; sleep 1")
        text = node.guest.check("cat /proc/meminfo")
        return {k: int(v) for k, v in re.findall(r"^(Slab|SUnreclaim|MemFree): +(\d+)", text, re.MULTILINE)}

    close_often(node, "remote", 10, record_property)
    before, objs = free(), kinds(node)
    close_often(node, "remote", 50, record_property)
    after = free()
    report(record_property, "slab", f"before {before}, after {after}")
    assert kinds(node) == objs
    # A connection with its buffers has more than 1 MiB: a leak of 50 would show.
    assert before["MemFree"] - after["MemFree"] < 20000
    assert after["SUnreclaim"] - before["SUnreclaim"] < 4000
