# SPDX-License-Identifier: GPL-2.0
"""A crowd: one node with as many peers as there are NIs on the other one, each with an address of its own. They all
connect at once, are all cut off at once, and go at once. An honest pair talks all the while."""

import re
import time

from faults import SLOW
from nodes import Node, until, up
from test_faults_cm import report

CTL = "/sys/kernel/debug/lnet_lite/ctl"
FIRST = "10.0.16.1@o2ib"
# What a connection of depth 8 may keep on one node.
CONN_KIB = 700
# No message between two other NIs may wait longer for it.
HONEST_US = 5_000_000 * SLOW


def crowd(node, count):
    """That many NIs more on `node`."""
    script = ["ip -batch - <<'END'"]
    for i in range(count):
        script.append(f"addr add 10.0.{16 + (i + 1) // 256}.{(i + 1) % 256}/32 dev eth0 label eth0:{i + 1}")
    add = f"{{ echo \"ni add o2ib eth0:$i\" >&3; cat <&3; }} 3<>{CTL}"
    script += ["END", f"i=1; while [ $i -le {count} ]; do {add}; i=$((i + 1)); done"]
    out = node.guest.check("\n".join(script), 600)
    assert out.count("rc=0") == count, out[-400:]


def free_kib(node):
    node.guest.check("sync; echo 3 >/proc/sys/vm/drop_caches")
    return int(re.search(r"MemFree: +(\d+)", node.guest.check("cat /proc/meminfo"))[1])


def everybody(a, count, **options):
    """One message to each of the crowd, all at a time."""
    options = {"op": "get", "size": 100, "conc": count, "timeout": 120, **options}
    return a.traffic(FIRST, count=count, peers=count, **options)


def test_crowd(boot_pair, pytestconfig, record_property):
    count = 1000 if pytestconfig.getoption("--long") else 128
    a, b = (Node(g) for g in boot_pair(memory=4096))
    # Addresses of their own network: no neighbour entry is asked for by a crowd at a time, but one for each.
    a.guest.check("ip route add 10.0.16.0/20 dev eth0; sysctl -qw net.ipv4.neigh.default.gc_thresh1=4096 "
                  "net.ipv4.neigh.default.gc_thresh2=8192 net.ipv4.neigh.default.gc_thresh3=16384")
    up(a, b, credits=1024)
    crowd(b, count)
    a.ping(b)
    before = free_kib(a)

    told = {}
    # One message after the other between two who are connected already.
    honest = b.start(a, op="get", size=100, count=10_000_000, conc=1, seconds=20 * SLOW, timeout=100)
    time.sleep(1)
    told["connect storm"] = everybody(a, count)["usec"] / 1e6
    r = honest.result()
    assert not r["errors"], r
    told["slowest message of others meanwhile"] = r["lat_max_us"] / 1e6
    told["p99 of theirs"] = r["lat_p99_us"] / 1e6
    assert r["lat_max_us"] < HONEST_US, r
    assert a.ctl(f"conn list {a.nid}")["conns"] == count + 1
    memory = (before - free_kib(a)) / count
    again = everybody(a, count)
    told["again, connected"] = again["usec"] / 1e6
    everybody(a, count, op="mix", size=65536, conc=64)

    # All are cut off: the device goes, and comes back.
    began = time.monotonic()
    a.unplug()
    told["unplug"] = time.monotonic() - began
    a.plug()
    until(lambda: a.ping(b, ok=False)["rc"] == 0, "traffic again")
    told["connect storm after it"] = everybody(a, count)["usec"] / 1e6

    # The link goes under all of them.
    a.guest.check("ip link set eth0 down; sleep 2; ip link set eth0 up; ip route add 10.0.16.0/20 dev eth0")
    began = time.monotonic()
    until(lambda: a.ping(b, ok=False)["rc"] == 0, "traffic again")
    everybody(a, count)
    told["all again after the link's return"] = time.monotonic() - began

    began = time.monotonic()
    a.ni_del()
    told["close storm"] = time.monotonic() - began
    until(lambda: b.ctl("conn list 10.0.16.1@o2ib", ok=False).get("conns", 0) == 0, "closed at the other end, too")
    a.ni_add(credits=1024)
    everybody(a, count)
    text = ", ".join(f"{k} {v:.2f} s" for k, v in told.items())
    report(record_property, "crowd", f"{count} peers: {text}; {memory:.0f} KiB a connection")
    assert memory < CONN_KIB
    a.unload()
    b.unload()
