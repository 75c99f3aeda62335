# SPDX-License-Identifier: GPL-2.0
"""Part of the demo that runs guests; see scripts/demo.

Usage: demo.py LOGS [SECONDS that the rest took]
"""

import os
import re
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "tests-vm")]

import vm  # noqa: E402
from nodes import Node  # noqa: E402

BUILT = os.environ.get("RO2IBLND_MODULES", ROOT)
MODULES = [os.path.join(BUILT, m) for m in ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko")]
# op, size, shape, operations, how many at a time
TABLE = [
    ("put-ack", 0, "aligned", 200, 8),
    ("put-ack", 1, "unaligned", 200, 8),
    ("put-ack", 3976, "aligned", 200, 8),
    ("put-ack", 3977, "aligned", 200, 8),
    ("put-ack", 4096, "aligned", 200, 1),
    ("put-ack", 4096, "scatter", 200, 8),
    ("put-ack", 65536, "gaps", 100, 8),
    ("put-ack", 1048576, "aligned", 24, 8),
    ("put-ack", 1048576, "unaligned", 24, 8),
    ("get", 0, "aligned", 200, 8),
    ("get", 1, "unaligned", 200, 8),
    ("get", 3976, "aligned", 200, 8),
    ("get", 3977, "aligned", 200, 8),
    ("get", 4096, "aligned", 200, 1),
    ("get", 4096, "vmalloc", 200, 8),
    ("get", 65536, "gaps", 100, 8),
    ("get", 1048576, "aligned", 24, 8),
    ("get", 1048576, "unaligned", 24, 8),
]


class Wrong(Exception):
    """Error of a check of the demo."""


def credits(node):
    """Returns the name and the flow control counters of each connection of a node."""
    text = node.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*")
    wanted = ("conn", "role", "depth", "credits", "outstanding", "reserved", "tx_msgs", "rx_msgs", "wrs")
    found = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        if "conn" in fields:
            found.append({k: fields[k] for k in wanted if k in fields})
    if not found:
        raise Wrong(f"{node.nid} shows no connection:\n{text}")
    return found


def show_credits(when, nodes):
    print(f"\nconnections {when}:")
    for node in nodes:
        for conn in credits(node):
            words = " ".join(f"{k}={v}" for k, v in conn.items() if k != "conn")
            print(f"  {node.nid} to {conn['conn']}: {words}")


def whole(conn):
    """Returns whether all credits of a connection are accounted for: available, or to be returned by the other side."""
    return int(conn["credits"]) <= int(conn["depth"]) and int(conn["reserved"]) == int(conn["depth"])


def transfer(a, b, op, size, shape, count, conc):
    r = a.try_traffic(b, op=op, size=size, shape=shape, count=count, conc=conc)
    verified = r["verified"] if op == "get" else r.get("peer_verified", 0)
    right = r["count"] == count and not r["errors"] and not r["verify_errors"] and not r.get("peer_verify_errors")
    right = right and verified == count * size
    mib = r["bytes_per_sec"] / 1048576
    print(
        f"{op:8} {size:8} {shape:10} {count:4} {conc:4} {r['rate']:8} {mib:9.2f} "
        f"{r['lat_avg_us']:8} {r['lat_p99_us']:8} {verified:10} {'ok' if right else 'WRONG'}",
        flush=True,
    )
    if not right:
        raise Wrong(f"{op} of {size} bytes, {shape}: {r}")


def demo(a, b):
    for node in (a, b):
        node.load()
        node.ni_add()
    for one, other in ((a, b), (b, a)):
        print(f"ping {one.nid} -> {other.nid}: {one.ping(other)['usec']} us")
    show_credits("before", (a, b))
    print(
        f"\n{'op':8} {'bytes':>8} {'shape':10} {'ops':>4} {'conc':>4} {'ops/s':>8} {'MiB/s':>9} "
        f"{'avg us':>8} {'p99 us':>8} {'verified':>10}"
    )
    for row in TABLE:
        transfer(a, b, *row)
    show_credits("after", (a, b))
    for node in (a, b):
        if not all(whole(conn) for conn in credits(node)):
            raise Wrong(f"{node.nid}: credits are lost")
    for node in (a, b):
        node.unload()
        bad = vm.taints(node.guest.check("cat /proc/sys/kernel/tainted"))
        if bad:
            raise Wrong(f"{node.nid}: kernel tainted: {' '.join(bad)}")
    print("\nNIs down, modules out, nothing left behind")


def main():
    logs = sys.argv[1]
    began = time.monotonic()
    guests = []
    try:
        with vm.pair(files=MODULES, workdir=logs) as pair:
            guests = pair
            kernel = pair[0].check("uname -r").strip()
            print(f"demo: two guests with Linux {kernel} up in {time.monotonic() - began:.1f} s")
            demo(*(Node(g) for g in pair))
        bad = [f"{g.name}: {line}" for g in guests for line in vm.splats(g.console())]
        if bad:
            raise Wrong("kernel log: " + "\n".join(bad))
    except Exception as e:
        print(f"\n{type(e).__name__}: {e}")
        for guest in guests:
            print(f"\nlast lines of {guest.console_path}:")
            print("\n".join(guest.console().splitlines()[-15:]))
        print(f"demo: FAILED {type(e).__name__}, the guests' logs are in {logs}")
        return 1
    guests_took = time.monotonic() - began
    before = float(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"demo: {guests_took:.0f} s in guests, {before + guests_took:.0f} s in all, logs in {logs}")
    print("demo: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
