# SPDX-License-Identifier: GPL-2.0
"""Two guests that count what they execute, with the driver under lnet_lite in them."""

import collections
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "tests-vm")]

import vm  # noqa: E402
from nodes import CTL, Node, parse, until, up  # noqa: E402

from .cases import CASES  # noqa: E402
from .symbols import CALLS, Symbols, readable, sources  # noqa: E402

DRIVER = ("wrs", "doorbells", "cqes", "recv_wrs", "recv_cqes", "tx_noops", "no_credit")
# Masks of the debug log.
NETERROR, NET = 0x100, 0x200
TRACEFS = "/sys/kernel/tracing"
# The guests' clocks follow their instructions, 8 ns each: what a busy host does to them, they do not see.
ICOUNT = "shift=3"


class Unusable(Exception):
    """Nothing can be counted here."""


def qemu_major():
    out = subprocess.run(["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.", out)
    return int(found[1]) if found else 0


def build(directory):
    """The plugin and the program that opens its windows: their paths."""
    major = qemu_major()
    if 6 <= major <= 8:
        api = 1
    elif major >= 10:
        api = 4
    else:
        raise Unusable(f"the plugin interface of QEMU {major} is not known; wanted is QEMU 6 to 8, or 10")
    usage = subprocess.run(["qemu-system-x86_64", "-help"], check=True, capture_output=True, text=True).stdout
    if "\n-plugin" not in usage:
        raise Unusable("this QEMU has been built without plugins")
    plugin, window = (os.path.join(directory, name) for name in ("icount.so", "window"))
    gcc = ["gcc", "-O2", "-Wall", "-Wextra", "-I", HERE]
    subprocess.run([*gcc, "-shared", "-fPIC", f"-DRO2IB_PLUGIN_API={api}", "-o", plugin, os.path.join(HERE, "icount.c"), "-lpthread"], check=True)
    subprocess.run([*gcc, "-static", "-o", window, os.path.join(HERE, "window.c")], check=True)
    return plugin, window


class Bench:
    """A pair of guests; use as a context manager."""

    def __init__(self, built, log=None):
        self.built, self.log = built, log
        self._stack = contextlib.ExitStack()
        self._windows = 0

    def __enter__(self):
        with self._stack as stack:
            self.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="ro2ib-bench"))
            self._boot(stack)
            # Booted: keep all that until __exit__.
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc):
        self._stack.close()

    def _boot(self, stack):
        plugin, window = build(self.dir)
        modules = [os.path.join(self.built, m) for m in ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko")]

        def count(number):
            role = "master" if number == 1 else "slave"
            options = f"file={plugin},out={self.dir}/n{number},ctl={self.dir}/ctl,role={role}"
            return ["-icount", ICOUNT, "-plugin", options]

        workdir = self.log or os.path.join(self.dir, "guests")
        guests = stack.enter_context(
            vm.pair(
                files=[*modules, window], vcpus=1, append="nokaslr", accel="tcg,thread=single", more=count, workdir=workdir
            )
        )
        self.guests = guests
        self.a, self.b = self.nodes = tuple(Node(g) for g in guests)
        up(*self.nodes)
        self.a.ping(self.b)
        source = sources(guests[0].kdir)
        self._symbols = [self._kallsyms(g, source) for g in guests]
        self.release = guests[0].check("uname -r").strip()

    def look(self, on):
        """Has somebody look at all events of the driver in both guests, or nobody."""
        for guest in self.guests:
            guest.check(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")
            if guest.run(f"echo {int(on)} >{TRACEFS}/events/ro2iblnd/enable")[0]:
                raise Unusable("this kernel has no trace points: take a stock one, see Documentation/testing.md")

    def tell(self, on):
        """Has both nodes say all they can to LNet's debug log, or what they say by default."""
        for node in self.nodes:
            node.set(debug=NET | NETERROR if on else NETERROR)

    @staticmethod
    def _kallsyms(guest, source):
        guest.check("grep -i ' [tw] ' /proc/kallsyms >/share/kallsyms", timeout=240)
        path = os.path.join(guest.share, "kallsyms")
        with open(path, encoding="ascii") as f:
            text = f.read()
        os.unlink(path)
        return Symbols(text, source)

    def _state(self):
        """Messages sent so far, and the driver's counters, of both nodes."""
        sums = collections.Counter()
        for node in self.nodes:
            stats = node.stats()
            sums["messages"] += sum(stats[k] for k in ("sent_put", "sent_get", "sent_reply", "sent_ack", "opt_get_replies"))
            for line in node.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*").splitlines():
                for key, value in parse(line).items():
                    if key in DRIVER:
                        sums[key] += value
        return sums

    def measure(self, name, times=1):
        """One case, `times` windows of it: a list of results."""
        case = CASES[name]
        self.a.ctl(case.command(self.b.nid, case.warm))
        return [self._window(case) for _ in range(times)]

    def _window(self, case):
        before = self._state()
        command = case.command(self.b.nid, case.count)
        began = time.monotonic()
        answer = parse(self.guests[0].check(f"/files/window {CTL}/ctl '{command}'", timeout=300))
        seconds = time.monotonic() - began
        if answer.get("rc") != 0 or answer["count"] != case.count or answer["errors"]:
            raise Unusable(f"{command}: {answer}")
        self._windows += 1
        files = [f"{self.dir}/n{n}.{self._windows}" for n in (1, 2)]
        until(lambda: all(map(os.path.exists, files)), "the plugin's output")
        after = self._state()
        return self._result(files, after - before, seconds)

    def _result(self, files, counters, seconds):
        messages = counters.pop("messages")
        functions, classes, calls = collections.Counter(), collections.Counter(), collections.Counter()
        entries = collections.Counter()
        where = collections.defaultdict(collections.Counter)
        for path, symbols in zip(files, self._symbols):
            with open(path, encoding="ascii") as f:
                for line in f:
                    address, count = line.split()
                    symbol, at = symbols.at(int(address, 16))
                    functions[symbol] += int(count)
                    if at == 0:
                        entries[symbol] += int(count)
                    if symbol[1] == "ro2iblnd":
                        where[symbol[0]][at] += int(count)
            os.unlink(path)
        lnd = collections.Counter()
        for symbol, count in functions.items():
            what = self._symbols[0].class_of(*symbol)
            classes[what] += count
            if what == "LND":
                lnd[symbol] = count
        for (symbol, _module), count in entries.items():
            for what, pattern in CALLS.items():
                if pattern.match(symbol):
                    calls[what] += count
        names = readable({s[0] for s in functions})
        own, called, everything = collections.Counter(), collections.Counter(), collections.Counter()
        for symbol, count in lnd.items():
            own[names[symbol[0]]] += count
        for symbol, count in functions.items():
            everything[names[symbol[0]]] += count
            called[names[symbol[0]]] += entries[symbol]

        def per(counter):
            return {k: v / messages for k, v in counter.most_common()}

        return {
            "messages": messages,
            "classes": per(classes),
            "calls": {k: calls[k] / messages for k in CALLS},
            "driver": {k: counters[k] / messages for k in DRIVER},
            "functions": per(own),
            "called": per(called),
            "everything": per(everything),
            "where": {name: {at: n / messages for at, n in counts.items()} for name, counts in where.items()},
            "seconds": seconds,
        }

    def copy_logs(self, directory):
        for guest in self.guests:
            shutil.copy(guest.console_path, directory)
