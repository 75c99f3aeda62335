# SPDX-License-Identifier: GPL-2.0
"""Faults: messages lost on the wire, calls that fail, completions with errors. And checks that nothing is left of the
objects that they hit."""

import contextlib
import itertools
import os
import re
import time

from nodes import PATIENCE, tell_kind, until

# The debug kernel finds bugs, and its times do not count.
SLOW = 6 if os.environ.get("KERNEL_FLAVOR") in ("debug", "kcsan") else 1


def slow():
    """Returns how many times longer a step may take than on an idle machine. For limits that detect a disaster, not one
    second more."""
    return SLOW * max(1, os.getloadavg()[0] / os.cpu_count())


# MAD attribute of each message of the connection manager.
CM = {"REQ": 0x10, "MRA": 0x11, "REJ": 0x12, "REP": 0x13, "RTU": 0x14, "DREQ": 0x15, "DREP": 0x16}
ROCE = "udp dport 4791"
# UD send-only with CM class: BTH opcode, MAD class behind UDP, BTH and DETH.
CM_MAD = f"{ROCE} @th,64,8 0x64 @th,232,8 0x07"
DEBUGFS = "/sys/kernel/debug"
PINGS = itertools.count()
INJECT = f"{DEBUGFS}/fail_function"


def nft(guest, script):
    """Installs rules of nft, with a hook on their devices that stays, see hook()."""
    stays = "".join(hook(device) for device in sorted(set(re.findall(r"hook ingress device (\w+)", script))))
    guest.check(f"nft -f - <<'X'\n{stays}{script}\nX")


def hook(device="eth0"):
    """Returns an empty hook. The kernel patches its text when the first of all hooks comes and when the last one goes.
    Guests under traffic crash from that, see patching_accel(). With this hook the kernel patches once, and before there
    is traffic if the hook is part of the first nft()."""
    return f"table netdev stays {{ chain {device} {{ type filter hook ingress device {device} priority 1; }}\n}}\n"


class Filter:
    """Filter of packets that a guest does not receive on a link. In force inside `with`."""

    count = 0

    def __init__(self, guest, match, first=False, device="eth0"):
        limit = "limit rate 1/day burst 1 packets" if first else ""
        self.guest, self.device = guest, device
        Filter.count += 1
        self.table = f"fault{Filter.count}"
        self.rule = f"{match} {limit} counter drop"

    def __enter__(self):
        nft(
            self.guest,
            f"table netdev {self.table} {{ chain in {{ type filter hook ingress device {self.device} priority 0;\n"
            f"{self.rule}\n}}\n}}",
        )
        return self

    def lost(self):
        """Returns how many packets the filter dropped."""
        return int(re.search(r"packets (\d+) bytes \d+ drop", self.guest.check(f"nft list table netdev {self.table}"))[1])

    def __exit__(self, *_exc):
        if self.guest.alive():
            self.guest.run(f"nft delete table netdev {self.table}")


class Heard:
    """Counter of packets that a guest receives on a link, by rules of nft. Inside `with`."""

    def __init__(self, guest, *matches, device="eth0"):
        self.guest, self.matches, self.device = guest, matches, device
        Filter.count += 1
        self.table = f"heard{Filter.count}"

    def __enter__(self):
        rules = "\n".join(f"{match} counter" for match in self.matches)
        nft(self.guest, f"table netdev {self.table} {{ chain in {{ type filter hook ingress device {self.device} priority 0;\n{rules}\n}}\n}}")
        return self

    def count(self):
        """Returns the packets so far, for each rule."""
        found = re.findall(r"counter packets (\d+)", self.guest.check(f"nft list table netdev {self.table}"))
        assert len(found) == len(self.matches), found
        return [int(n) for n in found]

    def __exit__(self, *_exc):
        if self.guest.alive():
            self.guest.run(f"nft delete table netdev {self.table}")


def lose(node, message, first=False, device="eth0"):
    """Returns a filter that drops a CM message at `node`: the first one, or all."""
    return Filter(node.guest, f"{CM_MAD} @th,352,16 {CM[message]:#06x}", first, device)


def silence(node, device="eth0"):
    """Returns a filter that drops all packets of other nodes at `node`: of RoCE, or with siw of TCP."""
    return Filter(node.guest, "meta l4proto tcp" if node.guest.provider == "siw" else ROCE, device=device)


def kinds(node):
    """Returns the number of RDMA objects of a guest, per kind, over all its devices."""
    out = node.guest.check("rdma resource show")
    total = {}
    for kind, n in re.findall(r"(pd|cq|qp|cm_id|mr) (\d+)", out):
        total[kind] = total.get(kind, 0) + int(n)
    return total


def debug_lines(node, key):
    """Returns the lines of debugfs that begin with a key, or with one of several, as dicts."""
    lines = node.guest.run(f"cat {DEBUGFS}/ro2iblnd/*")[1].splitlines()
    return [dict(w.split("=", 1) for w in line.split() if "=" in w) for line in lines if line.startswith(key)]


def debug_nis(node):
    """Returns the NI lines of debugfs."""
    return debug_lines(node, "ni=")


def objects(node):
    """Returns the number of connection objects of a guest's driver, in any state."""
    lines = debug_lines(node, ("ni=", "conn="))
    counts = [int(line["conns"]) for line in lines if "ni" in line]
    return max([len(lines) - len(counts), *counts])


def close_all(*nodes):
    """Closes every connection of the nodes and waits until none is left."""

    def closed():
        for node in nodes:
            for nid in node.nis():
                node.ctl(f"conn close any from={nid}", ok=False)
        return not any(objects(n) for n in nodes)

    until(closed, "no connection left", timeout=60)


class Ledger:
    """Counts of RDMA objects of nodes without a connection."""

    def __init__(self, *nodes):
        self.nodes = nodes
        close_all(*nodes)
        self.before = [kinds(n) for n in nodes]

    def check(self, timeout=60 * SLOW):
        """Closes everything. Nothing may be left."""
        close_all(*self.nodes)

        def now():
            return [kinds(n) for n in self.nodes]

        try:
            until(lambda: now() == self.before, "RDMA objects as before", timeout)
        except TimeoutError:
            raise AssertionError(f"before {self.before}, now {now()}") from None
        for node in self.nodes:
            node.idle()
            node.judge()


def timed(work):
    """Returns (seconds, result) of work()."""
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


def ping_until(a, b, timeout):
    """Pings until a ping is answered. Returns the seconds that took, and the number of pings that failed."""
    began = time.monotonic()
    failed = 0
    # A short timeout: the answer may be on a connection of which only the peer knows that it is dead.
    while a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] != 0:
        failed += 1
        spent = time.monotonic() - began
        assert spent < timeout, f"{a.guest.name}: no answer for {spent:.1f} s, {failed} pings"
        time.sleep(0.1)
    return time.monotonic() - began, failed


def answered(a, b, timeout):
    """Returns the seconds until both nodes reach each other. A ping over a dead connection waits until the transport
    finds that out, or for a timeout, and does not predict later pings: the pings run in parallel."""
    began = time.monotonic()
    for one, other in ((b, a), (a, b)):
        pong = f"/tmp/pong{next(PINGS)}"
        ping = f"({one.ctl_script(f'ping {other.nid} timeout=5')} | grep -q '^rc=0$' && touch {pong}) >/dev/null 2>&1 &"
        pings = f"n=0; until [ -e {pong} ] || [ $n = {round(5 * timeout)} ]; do {ping} sleep 0.2; n=$((n + 1)); done; [ -e {pong} ]"
        status, _out = one.guest.run(pings, PATIENCE)
        assert status == 0, f"{one.guest.name}: no answer for {timeout} s\n{one.log()}\n{other.log()}"
    return time.monotonic() - began


def wire(node):
    """Returns unintended losses: packets dropped between the links, and messages that the CM repeated."""
    lines = node.guest.check("cat /proc/net/softnet_stat").splitlines()
    total = {"dropped": sum(int(line.split()[1], 16) for line in lines)}
    out = node.guest.run("cd /sys/class/infiniband; grep . */ports/*/cm_tx_retries/*")[1]
    for kind, n in re.findall(r"cm_tx_retries/(\w+):(\d+)", out):
        if int(n):
            total[kind] = total.get(kind, 0) + int(n)
    return total


class Load:
    """Endless traffic that may fail. Inside `with`."""

    count = 0

    def __init__(self, a, b, op="get", **what):
        what = {"op": op, "size": 65536, "conc": 8, "verify": "data", "timeout": 20, **what}
        words = " ".join(f"{k.rstrip('_')}={v}" for k, v in what.items())
        nid = b if isinstance(b, str) else b.nid
        self.node = a
        Load.count += 1
        self.stop_file = f"/tmp/stop{Load.count}"
        self.log = f"/tmp/load{Load.count}"
        # Short runs, one after the other: a run ends when a fault hits it, and the next one connects again.
        self.script = (
            f"while [ ! -e {self.stop_file} ]; do {a.ctl_script(f'traffic to={nid} count=1000000 seconds=2 {words}')}"
            f" | grep -E '^(count|errors|timeouts|stuck|(peer_)?verify_errors)=' >> {self.log}; done"
        )

    def __enter__(self):
        self.job = self.node.guest.spawn(self.script)
        return self

    def __exit__(self, *_exc):
        if self.node.guest.alive():
            self.node.guest.check(f"touch {self.stop_file}")
            self.job.wait(PATIENCE)

    def result(self):
        """Returns the sums over all runs."""
        total = {}
        for line in self.node.guest.check(f"cat {self.log}").splitlines():
            key, value = line.split("=")
            total[key] = total.get(key, 0) + int(value)
        return total


class Inject:
    """Fault injection into a function of the driver. Inside `with`."""

    def __init__(self, node, function, retval, times=-1, probability=100, interval=1, space=0):
        self.guest, self.function, self.retval = node.guest, function, retval
        self.knobs = {"times": times, "probability": probability, "interval": interval, "space": space, "verbose": 0}

    def __enter__(self):
        knobs = " && ".join(f"echo {v} > {INJECT}/{k}" for k, v in self.knobs.items())
        self.guest.check(
            f"{knobs} && echo {self.function} > {INJECT}/inject && "
            f"printf %#x {self.retval} > {INJECT}/{self.function}/retval"
        )
        return self

    def becomes(self, retval):
        """Changes the error that the function returns, without a call in between that succeeds."""
        self.guest.check(f"printf %#x {retval} > {INJECT}/{self.function}/retval")

    def left(self):
        """Returns how many failures are still to come."""
        return int(self.guest.check(f"cat {INJECT}/times"))

    def __exit__(self, *_exc):
        if self.guest.alive():
            self.guest.check(f"echo '!{self.function}' > {INJECT}/inject; echo 0 > {INJECT}/probability")
            tell_kind(self.guest)


@contextlib.contextmanager
def module_range(node, module="ro2iblnd"):
    """Makes failslab fail only allocations of the driver."""
    line = next(x for x in node.guest.check("cat /proc/modules").splitlines() if x.startswith(module + " "))
    words = line.split()
    start = int(words[5], 16)
    slab = f"{DEBUGFS}/failslab"
    node.guest.check(
        f"cd {slab}; echo {start:#x} > require-start; echo {start + int(words[1]):#x} > require-end; "
        f"echo 32 > stacktrace-depth; echo 0 > verbose; echo N > ignore-gfp-wait; echo 0 > probability"
    )
    try:
        yield slab
    finally:
        if node.guest.alive():
            node.guest.check(f"cd {slab}; echo 0 > probability; echo 0 > require-start; echo 0 > require-end")
