# SPDX-License-Identifier: GPL-2.0
"""Connections and NIs that start and end, orderly and by failures."""

import errno
import os
import re
import subprocess
import time

import pytest
import vm
from faults import SLOW, Inject, Load, silence, slow
from counters import conns
from nodes import PATIENCE, Node, until, up
from test_hostile_connect import counted
from test_runtime_settings import write


def cycle(a, b):
    up(a, b)
    a.traffic(b, op="mix", size=20000, count=12, conc=4)
    b.traffic(a, op="mix", size=100, count=4)
    a.unload()
    b.unload()


def slab(node):
    """Returns the number of bytes of live objects in the slab caches that the driver allocates from. Objects in the
    per-CPU lists count as live, more of them on more CPUs: the caches are shrunk before they are read."""
    node.guest.check("sync; echo 3 >/proc/sys/vm/drop_caches; for s in /sys/kernel/slab/*/shrink; do echo 1 >$s; done")
    lines = node.guest.check("cat /proc/slabinfo").splitlines()
    fields = (line.split() for line in lines if line.startswith(("kmalloc", "radix", "skbuff")))
    return {f[0]: int(f[1]) * int(f[3]) for f in fields}


def cycles(a, b, count):
    """Repeats load, NI up, traffic, NI down and unload. After the first cycles no slab cache may grow."""
    # The first cycles fill what the kernel allocates once and keeps.
    for _ in range(3):
        cycle(a, b)
    # A leak grows in every pass. Caches of the kernel stop growing after a while.
    for _ in range(3):
        before = slab(a)
        for _ in range(count):
            cycle(a, b)
        # A leak of one small object per cycle is 100 bytes or more. Per-CPU caches and delayed frees add noise that
        # does not grow with the count.
        after = slab(a)
        grown = {k: after[k] - before.get(k, 0) for k in after if after[k] > before.get(k, 0)}
        if sum(grown.values()) < 65536 + 64 * count:
            break
    else:
        raise AssertionError(f"grown three times, at last by {grown}")
    # The driver holds no reference to the device either.
    for node in (a, b):
        node.unplug()
        node.plug()


def test_cycles(nodes):
    cycles(*nodes, 7)


@pytest.mark.long
def test_100_cycles(nodes):
    cycles(*nodes, 100)


def test_ni_del_under_load(nodes):
    a, b = nodes
    up(a, b)
    a.ping(b)
    runs = [a.start(b, op="mix", size=65536, count=100000, conc=32, timeout=20), b.start(a, op="put", size=4096, count=100000, conc=32, timeout=20)]
    until(lambda: a.stats()["finalized"] > 300, "traffic")
    # ni_del returns when LNet has every message back.
    a.ni_del()
    assert runs[0].result()["issued"] < 100000
    runs[1].job.kill()
    runs[1].job.wait()
    a.ni_add()
    b.ctl(f"peer del {a.nid}", ok=False)
    a.traffic(b, op="mix", count=20)
    b.traffic(a, op="mix", count=20)


def test_an_ni_goes_though_a_peer_goes_on_sending(nodes):
    """A deletion of an NI ends although the peer sends without a pause: LNet waits for a moment without messages."""
    a, b = nodes
    up(a, b, conns_per_peer=4, peer_credits=32)
    b.ping(a)
    until(lambda: len(conns(b)) == 4, "all connections")
    # The messages that are queued take more than a second, however late the peer sends the next ones.
    a.set(slow_ms=200)
    run = b.start(a, op="put", size=4096, count=100000, conc=64, timeout=20)
    until(lambda: a.stats()["target_puts"] > 20, "traffic")
    a.mark_log()
    began = time.monotonic()
    a.ni_del()
    took = time.monotonic() - began
    # The driver waits three seconds for a pause, and one for the queued messages. Shutdown takes the rest.
    assert took < 15 * slow(), f"{took:.1f} s"
    assert a.log().count("is being deleted and messages still arrive") == 1
    run.job.kill()
    run.job.wait()
    a.set(slow_ms=0)
    a.ni_add()
    b.ctl(f"peer del {a.nid}", ok=False)
    a.traffic(b, op="mix", count=20)
    b.traffic(a, op="mix", count=20)


def test_says_what_it_is(nodes):
    """The driver logs its version, the kernel, LNet, OFED and the kernel crate in one line when it is loaded."""
    a, _b = nodes
    header = os.path.join(os.path.dirname(__file__), "..", "include", "ro2iblnd_version.h")
    with open(header, encoding="utf-8") as f:
        version = re.search(r'RO2IBLND_VERSION "(.*)"', f.read())[1]
    a.mark_log()
    a.load()
    release = a.guest.check("uname -r").strip()
    lines = re.findall(r"ro2iblnd: (.*, for Linux .*)", a.log())
    assert len(lines) == 1, lines
    ofed = "RDMA core: OFED, " if vm.build_env().get("OFED") else ""
    wanted = f"{version}, for Linux {release}, lnet_lite {version}, {ofed}kernel crate: "
    crate, _, sources = lines[0].removeprefix(wanted).partition(", sources: ")
    assert lines[0].startswith(wanted) and crate in ("in-tree", "own"), lines
    # The id of the sources identifies the build.
    source_id = os.path.join(os.path.dirname(__file__), "..", "scripts", "source-id")
    assert sources == subprocess.run([source_id], capture_output=True, text=True, check=True).stdout.strip()


def test_module_in_use_stays(nodes):
    a, b = nodes
    up(a, b)
    assert a.guest.run("rmmod ro2iblnd")[0] != 0
    a.traffic(b, op="mix", count=8)
    a.ni_del()
    a.guest.check("rmmod ro2iblnd && insmod /files/ro2iblnd.ko")
    a.ni_add()
    a.traffic(b, op="mix", count=8)


def test_connections_closed_under_load(nodes):
    """Messages may fail when connections close, but each is finalized, and the next connection is established."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    a.ping(b)
    # An ACK on its way is lost when the connection closes, and LNet waits for it in vain.
    run = a.start(b, op="mix", size=20000, count=400, conc=16, timeout=10)
    closes = 1

    def close():
        # Alternates between a close that aborts messages (peer del) and one that drains them (conn close).
        return a.ctl(f"{('peer del', 'conn close')[closes % 2]} {b.nid}", ok=False)["rc"] == 0

    until(close, "the first close")
    while run.running():
        closes += close()
        time.sleep(0.1)
    r = run.result()
    assert r["issued"] == 400 and r["count"] + r["errors"] == 400 and not r["verify_errors"], r
    assert not r["stuck"], (closes, r)
    a.traffic(b, op="mix", count=20)


@pytest.mark.parametrize("op", ["get", "put-ack"])
def test_a_close_costs_nothing(nodes, op):
    """An administrator's close fails no message: messages on their way finish first, and later messages wait for the
    next connection. Administrators close connections to apply new settings."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    a.ping(b)
    # A message that takes longer than a second is aborted, and a slow machine may stall for that long: three of ten
    # tries have to pass. Without the wait no try passes.
    right, totals = 0, []
    for _ in range(10):
        closes = 0
        with Load(a, b, op=op) as load:
            for _ in range(3):
                time.sleep(0.5)
                closes += a.ctl(f"conn close {b.nid}", ok=False)["rc"] == 0
        total = load.result()
        assert closes and total.pop("count") > 0 and not total["verify_errors"] and not total["stuck"], (closes, total)
        totals.append(total)
        right += not any(total.values())
        if right == 3:
            break
    # On a slow kernel some message always takes that long.
    assert right == 3 or (SLOW > 1 and min(total["errors"] for total in totals) <= 2), totals
    # The close does not wait for a peer that does not answer.
    a.ping(b)
    with silence(b):
        # On siw a send completes when TCP has taken it. A PUT_REQ still waits for its answer.
        run = a.start(b, op="put-ack", size=65536, count=4, conc=4, timeout=10)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 0], "something is under way")
        a.ctl(f"conn close {b.nid}")
        until(lambda: not conns(a), "closed", timeout=5 * slow())
    run.result()


def test_both_connect_at_once(nodes):
    a, b = nodes
    for _ in range(5):
        up(a, b)
        runs = [one.start(other, op="mix", size=4096, count=40, conc=8) for one, other in ((a, b), (b, a))]
        for run in runs:
            r = run.result()
            assert r["count"] == 40 and not r["errors"], r
        a.unload()
        b.unload()


def test_many_connect_at_once(nodes):
    a, b = nodes
    up(a, b, conns_per_peer=4)
    runs = [one.start(other, op="mix", size=4096, count=100, conc=16) for one, other in ((a, b), (b, a))]
    for run in runs:
        r = run.result()
        assert r["count"] == 100 and not r["errors"], r


def test_one_of_several_is_replaced(nodes):
    """The driver replaces one broken connection of several without a message, but not if all are closed."""
    a, b = nodes
    up(a, b, conns_per_peer=3)
    a.traffic(b, op="mix", size=4096, count=60, conc=12)

    def numbers(node):
        return {c["number"] for c in conns(node)}

    until(lambda: len(numbers(a)) == len(numbers(b)) == 3, "all connections")
    for node in (a, b):
        before = numbers(a)
        with Inject(node, "ro2ib_ib_post_send", -errno.ENOMEM, times=1) as inject:
            node.ctl(f"ping {(b if node is a else a).nid} timeout=20", ok=False)
            assert inject.left() == 0
        until(lambda: len(numbers(a)) == len(numbers(b)) == 3 and numbers(a) != before, "the third", 20)
        assert len(numbers(a) & before) == 2, (numbers(a), before)
    b.ctl(f"conn close {a.nid}")
    until(lambda: not conns(a) and not conns(b), "all closed")
    time.sleep(5)
    assert not conns(a) and not conns(b)
    a.traffic(b, op="mix", count=20)


def test_accepted_depth_is_remembered(nodes, pytestconfig):
    """The driver remembers the depth that a peer accepts. A write to a setting other than the depth asks no peer for a
    larger depth. A peer that accepts less is asked once, and not again for each connection."""
    if pytestconfig.getoption("--device") in ("hfi1", "least"):
        pytest.skip("its regions or queues are not enough for a depth of 32, so the node does not request it")
    a, b = nodes
    up(a, conns_per_peer=3, peer_credits=32)
    up(b, conns_per_peer=3)
    a.traffic(b, op="mix", size=4096, count=60, conc=12)

    def depths(node):
        return [c["depth"] for c in conns(node)]

    def breaks():
        before = {c["number"] for c in conns(a)}
        with Inject(a, "ro2ib_ib_post_send", -errno.ENOMEM, times=1) as inject:
            a.ctl(f"ping {b.nid} timeout=20", ok=False)
            assert inject.left() == 0
        until(lambda: depths(a) == depths(b) == [8] * 3 and {c["number"] for c in conns(a)} != before, "the third", 40)

    until(lambda: depths(a) == depths(b) == [8] * 3, "all connections")
    refused = counted(b, "refused", "Depth")
    assert refused == 1
    write(a, "probe", 1000)
    breaks()
    assert counted(b, "refused", "Depth") == refused
    # The larger depth is requested once.
    write(a, "ni_tune", "*@o2ib peer_credits=16")
    breaks()
    assert counted(b, "refused", "Depth") == refused + 1


def test_connecting_without_listener(nodes):
    """Connecting fails at once if the address has no listener, and after a while if no node has the address."""
    a, b = nodes
    up(a)
    r = a.try_traffic(b, op="put-ack", count=4, conc=4, ask=0, timeout=100)
    assert r["count"] == 0 and r["errors"] == 4 and not r["timeouts"] and r["usec"] < 30_000_000, r
    r = a.try_traffic("10.0.0.77@o2ib", op="put-ack", count=4, conc=4, ask=0, timeout=100)
    assert r["count"] == 0 and r["errors"] == 4 and not r["timeouts"], r
    b.load()
    b.ni_add()
    a.traffic(b, op="mix", count=20)


@pytest.mark.parametrize("conns", [1, 4])
@pytest.mark.parametrize("dead", ["address", "node"])
def test_dead_peers_do_not_delay_others(nodes, dead, conns):
    """A hundred peers whose node or address does not answer do not delay messages to other peers."""
    a, b = nodes
    if dead == "node" and a.guest.provider == "siw":
        pytest.skip("siw's connect waits for TCP, two minutes: sixteen of these do hold up others")
    up(a, b, conns_per_peer=conns)
    dead_nids = 100
    a.guest.check("ip route replace 10.16.0.0/24 dev eth0")
    if dead == "node":
        # The neighbour entries of the dead peers still resolve.
        a.guest.check(f"for i in $(seq 1 {dead_nids}); do ip neigh replace 10.16.0.$i lladdr 02:00:00:00:16:01 dev eth0 nud permanent; done")
    try:
        run = a.start("10.16.0.1@o2ib", op="put", size=100, count=dead_nids, peers=dead_nids, conc=dead_nids, timeout=120)
        time.sleep(1)
        took = a.ctl(f"ping {b.nid} timeout=60")["usec"] / 1e6
        r = run.result(200)
    finally:
        a.guest.check("ip neigh flush dev eth0 nud permanent; ip route del 10.16.0.0/24 dev eth0")
    assert r["errors"] == dead_nids and not r["timeouts"] and not r["stuck"], r
    # 6 * 16 attempts are ahead, each for a quarter of a second, or for 2 s: 2 s and 12 s on a quiet machine.
    assert took < {"address": 8, "node": 20}[dead] * slow(), (took, r)
    until(lambda: a.conns() == b.conns() == conns, "the rest of the connections")


def test_keepalive(nodes):
    """An idle connection sends NOOPs, which keep the connection and use no credits."""
    a, b = nodes
    up(a, b, lnd="keepalive=1")
    a.ping(b)

    def noops():
        text = a.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*")
        return sum(int(part.split()[0]) for part in text.split(" tx_noops=")[1:])

    first = noops()
    until(lambda: noops() >= first + 3, "three NOOPs")
    assert a.conns() == b.conns() == 1
    a.traffic(b, op="mix", count=20)


def causes(node, of):
    """Returns how often each cause ended an object of the kind `of`."""
    line = node.guest.check(f"grep 'of={of} ' /sys/kernel/debug/ro2iblnd/{node.nid}")
    return {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", line)}


def test_resent_get_blames_no_interface(nodes):
    """A GET that LNet resends lowers no NI's health. Its first reply has used up the MD: LNet has no buffer for the
    second one, the local NI works, and memory is not short."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.set(retries=3, retry_ms=20)
    # The GET is at the peer, which has not answered.
    b.set(slow_ms=10000)
    before = a.stats()
    run = a.start(b, op="get", size=65536, count=1, conc=1, timeout=60)
    until(lambda: a.stats()["opt_get_replies"] > before["opt_get_replies"], "asked", pause=0.02)
    time.sleep(0.5)
    b.ctl(f"peer del {a.nid}")
    r = run.result()
    b.set(slow_ms=0)
    after = a.stats()
    assert r["errors"] == 1 and not r["stuck"], r
    assert after["opt_get_again"] == before["opt_get_again"] + 1, after
    assert after["health_local_dropped"] == before["health_local_dropped"], after
    assert causes(a, "other")["NoMemory"] == 0
    a.traffic(b, op="mix", count=20)


def test_ni_deletion_does_not_wait_for_link(nodes):
    """The deletion of an NI does not wait for the link. Messages that wait for the link hold the NI: the driver returns
    them to LNet at once."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.guest.carrier(False)
    until(lambda: not conns(a), "the connection is over")
    # LNet queues most of them: it sends eight at a time.
    run = a.start(b, op="put", size=100, count=250, conc=250, timeout=60, ask=0)
    until(lambda: "waiting=8" in a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}"), "they wait")
    began = time.monotonic()
    a.ni_del()
    took = time.monotonic() - began
    r = run.result()
    a.guest.carrier(True)
    assert 8 < r["issued"] == r["errors"], r
    # It took 22 s when messages waited until their timeout, and 30 s when eight failed per second.
    assert took < min(6 * slow(), 18), f"{took:.1f} s"


def test_messages_of_deleted_ni_do_not_connect(nodes):
    """A message that LNet has queued for an NI that it deletes starts no connection. LNet sends eight messages at a
    time, to a peer that does not exist."""
    a, _b = nodes
    up(a)
    run = a.start("10.0.0.77@o2ib", op="put", size=100, count=128, conc=128, timeout=200, ask=0)
    until(lambda: "waiting=8" in a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}"), "they wait")
    began = time.monotonic()
    a.ni_del()
    took = time.monotonic() - began
    r = run.result()
    # A message that was not sent before the deletion is not sent afterwards.
    assert 8 < r["issued"] == r["errors"], r
    # The running attempt ends first. With one attempt for each eight messages the deletion took 50 s.
    assert took < min(10 * slow(), 40), f"{took:.1f} s"


def test_ni_deletion_does_not_wait_for_backoff(nodes):
    """The deletion of an NI does not wait for the pause between two attempts. Attempts that fail for a local reason are
    repeated with pauses of up to ten seconds."""
    a, _b = nodes
    up(a)

    def pause():
        found = re.search(r" retry_ms=(\d+) ", a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}"))
        return int(found[1]) if found else 0

    with Inject(a, "ro2ib_cm_resolve_addr", -errno.EADDRNOTAVAIL):
        # Pauses are random, and a message expires after a few of them. The next message then needs a connection.
        run = a.start("10.0.0.77@o2ib", op="put", size=100, count=100, conc=1, timeout=200, ask=0)
        until(lambda: pause() > 5000, "a long pause", timeout=PATIENCE, pause=0.2)
        began = time.monotonic()
        a.ni_del()
        took = time.monotonic() - began
    r = run.result()
    assert r["issued"] == r["errors"] >= 1, r
    assert took < 3.5, f"{took:.1f} s"


def test_messages_wait_for_the_device(nodes):
    """Messages wait while the device is gone for some seconds and LNet has no other NI: none fails, as behind a link
    that is down."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.unplug()
    # The interface keeps its address.
    until(lambda: "device=none" in a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}"), "gone")
    runs = [a.start(b, op=op, size=size, count=20, conc=4, timeout=120) for op, size in (("put", 100), ("put-ack", 65536), ("get", 4096))]
    time.sleep(3)
    a.plug()
    for run in runs:
        r = run.result()
        assert r["count"] == 20 and r["errors"] == r["timeouts"] == r["stuck"] == 0, r


def test_why_a_device_that_is_back_is_of_no_use(nodes):
    """The log reports that the device is gone, that it is back, and, once each, the reasons why the driver cannot use
    it."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    said = "the RDMA device cannot be used: cannot allocate a protection domain: "
    a.unplug()
    assert said not in a.log()
    # The messages wait: the driver looks for the device every second.
    with Inject(a, "ro2ib_alloc_pd", -errno.ENOMEM) as inject:
        a.plug()
        for error, words in (errno.ENOMEM, "out of memory"), (errno.EOPNOTSUPP, ""):
            inject.becomes(-error)
            until(lambda w=said + words, e=error: f"{w}" in a.log() and f"(-{e})" in a.log(), "it is said")
            time.sleep(3)
    until(lambda: a.ping(b, ok=False)["rc"] == 0, "it is of use")
    assert a.log().count(said) == 2, a.log()


def test_peers_of_another_net_are_not_meant(nodes):
    """A command that names a peer of another net does not mean the peer of this net with the same address."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    before = [c["number"] for c in conns(a)]
    other = f"{b.address}@o2ib7"
    for command in f"peer del {other} from={a.nid}", f"conn close {other} from={a.nid}":
        assert a.ctl(command, ok=False)["rc"] == -errno.ENOENT, command
    a.ping(b)
    assert [c["number"] for c in conns(a)] == before


def test_peer_killed_and_restarted(boot_pair):
    guests = boot_pair()
    a, b = (Node(g) for g in guests)
    up(a, b, lnd="timeout=8")
    a.traffic(b, op="mix", count=20)
    before = a.stats()["finalized"]
    # Large messages, so that few are left to fail: eight with each attempt to connect.
    run = a.start(b, op="mix", size=1 << 20, count=40, conc=8, ask=0, timeout=24)
    until(lambda: a.stats()["finalized"] > before + 8, "traffic", pause=0.02)
    b.guest.kill()
    r = run.result(600)
    # A message that waits at the kill for an answer that the driver does not give (an ACK, a REPLY by PUT) gets no
    # status. All others fail with an error.
    assert r["issued"] == 40 and r["errors"] > 0 and r["timeouts"] <= 8 and not r["stuck"], r
    until(lambda: a.conns() == 0, "no connection to the dead")
    b.guest.start()
    from vm import setup_link

    setup_link(b.guest)
    b = Node(b.guest)
    up(b, lnd="timeout=8")
    # The restarted peer is accepted from either side.
    b.traffic(a, op="mix", count=20)
    a.traffic(b, op="mix", count=20)
    a.unload()
    b.unload()
