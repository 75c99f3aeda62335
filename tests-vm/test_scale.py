# SPDX-License-Identifier: GPL-2.0
"""A crowd: one node with as many peers as there are NIs on the other node, each with an address of its own. All connect
at once, lose their link at once, and are closed at once. A separate pair of NIs has traffic all the time.

A software device has room for some 250 addresses (the kernel numbers them with a byte), so a thousand peers need four
devices, each on a wire of its own.
"""

import re
import time

import vm
from faults import SLOW, debug_nis, slow
from nodes import PATIENCE, Node, together, until
from test_faults_cm import report

CTL = "/sys/kernel/debug/lnet_lite/ctl"
EACH = 250
# KiB that a connection of depth 8 may keep on one node.
CONN_KIB = 700
# Longest wait of a message between two connected NIs during all that.
HONEST_US = 5_000_000


def net(rail):
    return f"o2ib{rail or ''}"


def crowd(node, rail, count):
    """Adds `count` NIs to `node`."""
    first = f"10.{16 + rail}.0"
    add = f"{{ echo \"ni add {net(rail)} eth{rail}:$i\" >&3; cat <&3; }} 3<>{CTL}"
    script = ["ip -batch - <<'END'"]
    script += [f"addr add {first}.{i + 1}/32 dev eth{rail} label eth{rail}:{i + 1}" for i in range(count)]
    script += ["END", f"i=1; while [ $i -le {count} ]; do {add}; i=$((i + 1)); done"]
    out = node.guest.check("\n".join(script), 600)
    assert out.count("rc=0") == count, out[-400:]


def disperse(node, rail, count):
    """Deletes those NIs one by one: a list of all of them is too long for lnet_lite."""
    delete = f"{{ echo \"ni del 10.{16 + rail}.0.$i@{net(rail)}\" >&3; cat <&3; }} 3<>{CTL}"
    out = node.guest.check(f"i=1; while [ $i -le {count} ]; do {delete}; i=$((i + 1)); done", 600)
    assert out.count("rc=0") == count, out[-400:]


def free_kib(node):
    node.guest.check("sync; echo 3 >/proc/sys/vm/drop_caches")
    return int(re.search(r"MemFree: +(\d+)", node.guest.check("cat /proc/meminfo"))[1])


class Side:
    """NIs of one node, and the crowd of peers behind each of them."""

    def __init__(self, node, rails, count):
        self.node, self.rails, self.count = node, range(rails), count

    def route(self):
        self.node.guest.check(" && ".join(f"ip route replace 10.{16 + r}.0.0/24 dev eth{r}" for r in self.rails))

    def ni_add(self):
        for rail in self.rails:
            self.node.ni_add(net=net(rail), interface=f"eth{rail}", credits=1024)

    def nids(self):
        return [f"10.0.{rail}.1@{net(rail)}" for rail in self.rails]

    def conns(self):
        return sum(self.node.ctl(f"conn list {nid}").get("conns", 0) for nid in self.nids())

    def everybody(self, **options):
        """Sends one message to each of the crowd, all at once. Returns the seconds that took."""
        options = {"op": "get", "size": 100, "conc": self.count, "timeout": 120, **options}
        began = time.monotonic()
        runs = [
            self.node.start(f"10.{16 + rail}.0.1@{net(rail)}", count=self.count, peers=self.count, **options)
            for rail in self.rails
        ]
        for run in runs:
            r = run.result()
            assert r["count"] == self.count and not r["errors"] and not r["verify_errors"], r
        return time.monotonic() - began


def timed(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_scale(boot_pair, pytestconfig, record_property):
    rails, count, seconds = (4, EACH, 20) if pytestconfig.getoption("--long") else (1, 64, 6)
    a, b = (Node(g) for g in boot_pair(rails=rails, memory=4096))
    side = Side(a, rails, count)
    for node in (a, b):
        # One neighbour entry for each of the crowd.
        node.guest.check("cd /proc/sys/net/ipv4/neigh/default && echo 16384 >gc_thresh3 && echo 8192 >gc_thresh2 && echo 4096 >gc_thresh1")
    side.route()
    together(Node.load, a, b)
    side.ni_add()
    b.ni_add(credits=1024)
    for rail in side.rails:
        crowd(b, rail, count)
    a.ping(b)
    before = free_kib(a)

    told = {}
    # One message after the other between two connected NIs.
    honest = b.start(a, op="get", size=100, count=10_000_000, conc=1, seconds=seconds * SLOW, timeout=100)
    time.sleep(1)
    told["connect storm"] = side.everybody()
    r = honest.result()
    assert not r["errors"], r
    told[f"slowest message of others in these {seconds} s"] = r["lat_max_us"] / 1e6
    told["p99 of theirs"] = r["lat_p99_us"] / 1e6
    assert r["lat_max_us"] < HONEST_US * slow(), r
    assert side.conns() == rails * count + 1
    memory = (before - free_kib(a)) / (rails * count)
    told["a message to each"] = side.everybody()
    side.everybody(op="mix", size=65536, conc=64)

    # The devices go, which cuts off all peers, and come back.
    told["unplug"] = timed(lambda: [vm.unplug(a.guest, rail) for rail in side.rails])
    for rail in side.rails:
        vm.plug(a.guest, rail)
    until(lambda: all(ni["device"] != "none" for ni in debug_nis(a)), "attached")
    told["connect storm after it"] = side.everybody()

    # The links of all of them go down.
    names = [f"eth{rail}" for rail in side.rails]
    a.guest.check("; ".join(f"ip link set {name} down" for name in names), PATIENCE)
    time.sleep(2)
    a.guest.check("; ".join(f"ip link set {name} up" for name in names))
    side.route()
    began = time.monotonic()
    until(lambda: all(a.ctl(f"ping 10.{16 + rail}.0.1@{net(rail)}", ok=False)["rc"] == 0 for rail in side.rails), "traffic again")
    side.everybody()
    told["all again after the links' return"] = time.monotonic() - began

    told["close storm"] = timed(lambda: [a.ni_del(nid) for nid in side.nids()])
    until(lambda: b.ctl("conn list 10.16.0.1@o2ib", ok=False).get("conns", 0) == 0, "closed at the other end, too")
    side.ni_add()
    side.everybody()
    text = ", ".join(f"{k} {v:.2f} s" for k, v in told.items())
    report(record_property, "crowd", f"{rails * count} peers: {text}; {memory:.0f} KiB a connection")
    assert memory < CONN_KIB
    a.unload()
    for rail in side.rails:
        disperse(b, rail, count)
    b.unload()
