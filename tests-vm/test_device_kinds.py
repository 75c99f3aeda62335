# SPDX-License-Identifier: GPL-2.0
"""Devices other than rxe: siw, and rxe with the limits of ib_imitate.

Here each device has a short test. `pytest --device NAME` runs any other test on it. `make test-long` does that with the
tests of traffic, flow and life cycle.
"""

import re

import pytest
import vm
from device_kinds import DEVICES, UNUSABLE
from faults import Load, close_all, kinds, slow
from counters import DEBUGFS, balanced, polls, rnr
from nodes import Node, parse, until, up

DMA, TIMING = (f"/sys/module/ib_imitate_{what}/parameters" for what in ("dma", "timing"))
# Count of completions, and the parameter that causes them.
FLUSHES = {"late": "flush_ms", "early": "early_ms"}
TOO_MUCH = "/sys/module/ib_imitate/parameters/asked_too_much"
MADE = "/sys/module/ib_imitate/parameters/regions_made"


def modest(node):
    """Returns whether the driver stayed within the limits of the device."""
    return not node.guest.profile or node.guest.check(f"cat {TOO_MUCH}").strip() == "0"


def timing(node):
    return parse(node.guest.check(f"cat {TIMING}/counts"))


def traffic(a, b):
    for size in (0, 100, 4096, 65536, 1048576):
        for shape in ("aligned", "unaligned") if size else ("aligned",):
            a.traffic(b, op="mix", size=size, shape=shape, tshape=shape, count=12, conc=6)
    a.traffic(b, op="mix", size=30001, shape="scatter", tshape="gaps", count=12, conc=6)
    a.traffic(b, op="mix", size=1048576, shape="unaligned", tshape="vmalloc", count=12, conc=6)
    runs = [n.start(m, op="mix", size=65536, count=100, conc=16) for n, m in ((a, b), (b, a))]
    for run in runs:
        r = run.result()
        assert r["count"] == 100 and r["errors"] == 0 and r["verify_errors"] == 0, r


def some(names, few):
    """Returns all names with --long, otherwise only those in `few`."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("device", some([d for d in DEVICES if d != "rxe"], ("siw", "halves", "least")))
def test_device(boot_pair, device):
    """Traffic of every kind works on a device, also after closes under load and a removal of the device."""
    a, b = (Node(g) for g in boot_pair(**DEVICES[device]))
    up(a, b)
    assert a.device.startswith("siw" if device == "siw" else "rxe")
    traffic(a, b)
    balanced(a, b)
    assert (polls(a) > 100) == a.guest.hardware
    run = a.start(b, op="mix", size=20000, count=300, conc=16, timeout=5)
    closes = 1

    def close():
        # Alternates between a close that aborts messages (peer del) and one that drains them (conn close).
        return a.ctl(f"{('peer del', 'conn close')[closes % 2]} {b.nid}", ok=False)["rc"] == 0

    until(close, "the first close")
    while run.running():
        closes += close()
    r = run.result()
    assert r["count"] + r["errors"] == 300 and not r["verify_errors"] and not r["stuck"], (closes, r)
    for node, other in ((a, b), (b, a)):
        with Load(node, other, op="mix", conc=16, timeout=5, verify="full") as load:
            before = node.stats()["finalized"]
            until(lambda n=node, f=before: n.stats()["finalized"] > f + 50, "traffic")
            node.unplug()
            node.plug()
            until(lambda n=node, o=other: n.ping(o, ok=False)["rc"] == 0, "traffic again")
        r = load.result()
        assert not r["verify_errors"] and not r["stuck"], r
    traffic(b, a)
    assert modest(a) and modest(b)
    for node in (a, b):
        if node.guest.dma is not None:
            assert node.guest.check(f"cat {DMA}/violations").strip() == "0"
        if node.guest.timing is not None:
            counts = timing(node)
            assert counts["interrupts"] > 100, counts
            assert all(counts[kind] for kind in ("late", "early") if f"{FLUSHES[kind]}=" in node.guest.timing), counts
        node.unload()
        if node.guest.profile:
            assert node.guest.check(f"cat {MADE}").strip() == "0"


@pytest.mark.parametrize("device", some(["siw", "irdma", "least"], ["siw"]))
@pytest.mark.parametrize("depth", some([1, 2, 255], [1]))
def test_flood(boot_pair, device, depth):
    """No message arrives at a peer without a buffer, which would end a connection on iWARP."""
    a, b = (Node(g) for g in boot_pair(**DEVICES[device]))
    up(a, b, peer_credits=depth, credits=1024)
    a.ping(b)
    before = rnr(a, b) if device != "siw" else 0
    runs = [n.start(m, op="mix", size=100, count=1000, conc=64) for n, m in ((a, b), (b, a))]
    for run in runs:
        r = run.result()
        assert r["count"] == 1000 and r["errors"] == 0, r
    balanced(a, b)
    if device != "siw":
        assert rnr(a, b) == before
    assert "closed" not in a.log() and modest(a) and modest(b)
    a.unload()
    b.unload()


def test_idle_regions_go_to_others(boot_pair):
    """A connection that used all regions of a small device and is idle now gives them to other connections."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["hfi1"]))
    up(a, b, peer_credits=64, credits=1024, conns_per_peer=4)
    for node in (a, b):
        node.ni_add("o2ib1", peer_credits=8, credits=64, conns_per_peer=1)

    def regions():
        line = b.guest.check(f"grep -h ^ni= {DEBUGFS}/{b.nid}")
        return {k: int(v) for k, v in re.findall(r"(\w*regions\w*)=(\d+)", line)}

    def conns(nid):
        return b.guest.check(f"grep -h ^conn= {DEBUGFS}/{nid}")

    assert regions()["max_regions"] == 24

    def all_used():
        # Four connections: the regions do not last for all of them at the same time, so some of these messages fail.
        a.try_traffic(b, op="put", size=262144, count=200, conc=64)
        return regions()["regions"] == 24

    until(all_used, "regions")
    assert "depth=8 " in conns(b.nid), conns(b.nid)
    for op in ("put", "get"):
        a.traffic(f"{b.nid}1", op=op, size=262144, count=100, conc=2, timeout=60)
    assert regions()["regions"] == 24 and regions()["regions_moved"] >= 1, regions()
    a.traffic(b, op="put", size=262144, count=100, conc=4)
    a.unload()
    b.unload()
    for node in (a, b):
        assert node.guest.check(f"cat {MADE}").strip() == "0"


def test_simultaneous_connects_on_iwarp(boot_pair):
    """If both nodes connect at the same time, one request wins, and the peer rejects the other with a reason."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["siw"]))
    understood, before = 0, []
    for rounds in range(1, 21):
        up(a, b, conns_per_peer=4)
        runs = [n.start(m, op="mix", size=4096, count=40, conc=16, timeout=20) for n, m in ((a, b), (b, a))]
        for run in runs:
            r = run.result()
            assert r["count"] == 40 and not r["errors"] and not r["timeouts"] and not r["stuck"], r
        # The node understood the private data of the reject. siw may lose it on a busy machine: the peer's close is a
        # separate work item there, and may run before the one that reads the reject.
        log = "\n".join(n.log() for n in (a, b)).splitlines()
        lines = [line for line in log if "connecting failed" in line or "reason -" in line]
        understood += lines == before
        before = lines
        a.unload()
        b.unload()
        if rounds >= 5 and understood:
            break
    print(f"understood in {understood} of {rounds} rounds: {before}")
    assert understood


@pytest.mark.long
def test_several_connections_on_iwarp(boot_pair):
    """Each connection has a port of its own, and a port that is not free yet is not used."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["siw"]))
    up(a, b, conns_per_peer=4)
    for _ in range(3):
        a.traffic(b, op="put", size=4096, count=40, conc=16)
        until(lambda: a.conns() == 4, "several connections", timeout=60)
        close_all(a, b)
    assert ": cannot " not in a.log() and "connecting failed" not in a.log() + b.log()
    a.unload()
    b.unload()


def test_connecting_without_listener_on_iwarp(boot_pair):
    """iWARP returns errors of TCP at once, where other transports send an event. The log has the same lines."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["siw"]))
    up(a)
    r = a.try_traffic(b, op="put-ack", count=2, conc=2, timeout=100)
    assert r["count"] == 0 and r["errors"] == 2 and not r["timeouts"], r
    assert "no listener (is LNet up there?)" in a.log()
    up(b)
    a.traffic(b, op="mix", count=20)
    a.unload()
    b.unload()


@pytest.mark.parametrize(
    ("profile", "line"),
    [
        ("reg_pages=255", "cannot register 1 MiB at once: it has 255 pages per memory region, needed are 256"),
        # 2 MiB, and none as small as the kernel's.
        ("page_sizes=0x200000", "cannot register memory in pages as small as the kernel's"),
        (
            "page_sizes=0x800 reg_pages=511",
            "cannot register 1 MiB at once: it has 511 pages per memory region, needed are 512",
        ),
        (UNUSABLE["cxgb4"], "cannot register 1 MiB at once: it has 128 pages per memory region, needed are 256"),
        (UNUSABLE["hns"], "cannot invalidate memory by work request (hns)"),
    ],
)
def test_too_little_is_refused(boot, profile, line):
    """A device that the driver cannot use gets one log line with the limit, and no NI."""
    guest = boot()
    guest.check(f"insmod /files/ib_imitate.ko {profile}")
    vm.setup_two_links(guest)
    node = Node(guest, address="10.0.1.1")
    node.load()
    assert node.ctl("ni add o2ib veth0", ok=False)["rc"] != 0
    assert f"the RDMA device {line}: " in node.log()
    node.unload()


def conn_lines(node):
    return node.guest.check(f"cat {DEBUGFS}/{node.nid} | grep ^conn= || true").splitlines()


def test_a_device_that_refuses_work_requests_late(boot_pair):
    """The NI is closed after some connections, with one log line, and does not reconnect for ever."""
    a, b = (Node(g) for g in boot_pair(hardware=True, profile="no_inv=1"))
    up(a, b)
    a.ping(b)
    r = a.try_traffic(b, op="put", size=65536, count=40, conc=2, timeout=60)
    assert r["errors"] and not r["stuck"], r
    words = "refused work requests of 8 connections in a row: the NI is closed"
    # The sink is on b, whose device refuses the invalidation.
    until(lambda: words in b.log(), "the NI gives up", timeout=120)
    assert b.log().count(words) == 1 and words not in a.log()
    until(lambda: not conn_lines(b), "no connection")
    refused = b.log().count("a work request could not be built or posted")
    assert 1 <= refused <= 12, b.log()
    ni = b.guest.check(f"grep ^ni= {DEBUGFS}/{b.nid}")
    assert "health=refuses" in ni, ni
    # Neither side connects any more.
    before = b.log()
    # The peer gets a reject, and neither node keeps a message for a path that does not open again.
    for node, other in ((a, b), (b, a)):
        r = node.try_traffic(other, op="put", size=65536, count=4, conc=2, timeout=20)
        assert r["errors"] == 4 and r["usec"] < 15_000_000, r
    until(lambda: not conn_lines(b), "no connection")
    assert b.log().count(words) == 1
    assert b.log()[len(before) :].count("could not be built or posted") == 0
    a.unload()
    b.unload()


@pytest.mark.long
def test_queue_pair_events(boot_pair):
    """A queue pair that reports its first message is established once. If it reports a fatal error, its connection is
    closed, and the node connects again."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["mlx5"]))
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=20, conc=4)
    assert a.conns() == b.conns() == 1
    events = timing(b)["events"]
    assert events
    for _ in range(3):
        run = a.start(b, op="mix", size=65536, count=100_000, conc=4, timeout=20, seconds=5)
        until(lambda: a.conns() == 1, "a connection")
        b.guest.check(f"echo 1 >{TIMING}/fatal")
        r = run.result()
        assert not r["verify_errors"] and not r["stuck"], r
        until(lambda: a.ping(b, ok=False)["rc"] == 0, "traffic again")
    # Each of these connections has reported two events.
    assert timing(b)["events"] >= events + 6
    balanced(a, b)
    a.unload()
    b.unload()


@pytest.mark.long
def test_dead_device(boot_pair):
    """All messages end if a device does nothing any more, no memory is unmapped while the device may use it, and the
    node reaches its peer when the device was made again."""
    a, b = (Node(g) for g in boot_pair(**DEVICES["mlx5"]))
    up(a, b)
    for node, other in ((a, b), (b, a)):
        run = node.start(other, op="mix", size=65536, count=100_000, conc=16, timeout=10, seconds=round(10 * slow()))
        until(lambda n=node: n.conns() == 1, "a connection")
        node.guest.check(f"echo 1 >{TIMING}/dead")
        r = run.result()
        assert r["errors"] and not r["verify_errors"] and not r["stuck"], r
        node.unplug()
        node.guest.check(f"echo 0 >{TIMING}/dead")
        node.plug()
        until(lambda n=node, o=other: n.ping(o, ok=False)["rc"] == 0, "traffic again")
    traffic(a, b)
    balanced(a, b)
    for node in (a, b):
        assert node.guest.check(f"cat {DMA}/violations").strip() == "0"
        node.unload()


PROFILE = "/sys/module/ib_imitate/parameters"


@pytest.mark.parametrize("hardware", [True, False])
def test_a_device_that_does_not_destroy_queue_pairs(boot_pair, hardware):
    """What the device can reach stays, with one log line for each queue pair. Messages pass over new connections, NIs
    can be deleted, and the module cannot be unloaded."""
    a, b = (Node(g) for g in boot_pair(hardware=hardware, profile="no_inline=1", **({"dma": ""} if hardware else {})))
    up(a, b)
    line = "a queue pair stays: the device refuses to destroy it"
    before = kinds(a)
    for i in range(3):
        a.traffic(b, op="mix", size=65536, count=20, conc=4)
        a.guest.check(f"echo 1 >{PROFILE}/stalled")
        for node in (a, b) if i % 2 else (b, a):
            node.ctl(f"conn close any from={node.nid}", ok=False)
        until(lambda n=i + 1: a.log().count(line) == n, "a queue pair that stays")
        a.guest.check(f"echo 0 >{PROFILE}/stalled")
    a.traffic(b, op="mix", size=65536, count=20, conc=4)
    close_all(a, b)
    until(lambda: kinds(a) == {**before, "qp": before["qp"] + 3, "cq": before["cq"] + 3}, "three queue pairs that stay")
    a.ni_del(a.nid)
    if hardware:
        assert a.guest.check(f"cat {DMA}/violations").strip() == "0"
    assert a.guest.run("rmmod ro2iblnd")[0] != 0
    assert a.log().count(line) == 3
    # Nothing of the driver is left that waits for the device.
    a.ni_add()
    a.traffic(b, op="mix", size=65536, count=20, conc=4)
    a.ni_del(a.nid)
    b.unload()


def test_inline_size_is_found_once(boot_pair):
    """A device that refuses a queue pair with too much inline data gets requests with less. The driver finds the size
    once, not for each connection."""
    a, b = (Node(g) for g in boot_pair(hardware=True, profile="inline_max=96"))
    up(a, b)
    for _ in range(3):
        a.traffic(b, op="mix", size=4096, count=20, conc=4)
        for node in (a, b):
            lines = conn_lines(node)
            assert lines and all("depth=8 " in line for line in lines), lines
        close_all(a, b)
    for node in (a, b):
        assert node.guest.check(f"cat {PROFILE}/qps_refused").strip() == "1"
    assert modest(a) and modest(b)
    a.unload()
    b.unload()


NO_QUEUE_PAIR = [(12, "out of memory (-12)"), (75, "the device has no more of them (-75)")]


@pytest.mark.parametrize(("number", "words"), NO_QUEUE_PAIR)
def test_no_queue_pairs_left(boot_pair, number, words):
    """The log names queue pairs as the limit, and later connections have the depth that they requested."""
    a, b = (Node(g) for g in boot_pair(hardware=True, profile="qps=64"))
    up(a, b)
    a.guest.check(f"echo {number} >{PROFILE}/qps_error; echo 1 >{PROFILE}/qps")
    a.ping(b)
    for node in (a, b):
        node.ni_add("o2ib1", peer_credits=8, credits=64)
    r = a.try_traffic(f"{b.nid}1", op="put", count=1, conc=1, timeout=10)
    assert r["errors"] == 1, r
    line = f"cannot make the queue pair or its completion queue: {words}: the device has 64 queue pairs at most"
    until(lambda: line in a.log(), "a line in the log")
    a.guest.check(f"echo 64 >{PROFILE}/qps")
    a.traffic(f"{b.nid}1", op="mix", count=20, conc=4)
    lines = a.guest.check(f"cat {DEBUGFS}/{a.nid}1 | grep ^conn=").splitlines()
    assert lines and all("depth=8 " in line for line in lines), lines
    a.unload()
    b.unload()


def test_idle_regions_are_given_back(boot_pair):
    """A burst creates regions. A connection that is idle afterwards gives one back every 10 s, and keeps two."""
    a, b = (Node(g) for g in boot_pair(hardware=True, profile="regions=1000"))
    for node in (a, b):
        node.load("timeout=8")
    a.ni_add()
    b.ni_add()
    a.traffic(b, op="put", size=262144, count=100, conc=4, timeout=60)

    def made():
        return int(b.guest.check(f"cat {MADE}"))

    most = made()
    assert most > 2, most
    until(lambda: made() <= 2, "regions are given back", timeout=60 * most)
    assert a.conns() == b.conns() == 1
    a.traffic(b, op="put", size=262144, count=20, conc=8, timeout=60)
    assert made() > 2
    a.unload()
    b.unload()
    for node in (a, b):
        assert node.guest.check(f"cat {MADE}").strip() == "0"
