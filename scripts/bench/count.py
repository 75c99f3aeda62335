# SPDX-License-Identifier: GPL-2.0
"""Counts of the instructions that two guests execute: QEMU's plugin, its windows, and the evaluation of its output.

A program in the first guest (window.c) opens and closes a window. Each QEMU has one thread, so a guest may have several
vCPUs, which then take turns.
"""

import collections
import glob
import os
import re
import subprocess

from nodes import until
from vm import build_env

from .symbols import CALLS, LND, Symbols, readable, sources

HERE = os.path.dirname(os.path.abspath(__file__))
# The clocks of the guests follow their instructions, 8 ns each, so that a busy host does not affect them.
ICOUNT = "shift=3"
# Modules whose instructions are counted one by one.
DRIVER = "ro2iblnd"


class Unusable(Exception):
    """Error of a machine or kernel on which instructions cannot be counted."""


def qemu_major():
    out = subprocess.run(["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.", out)
    return int(found[1]) if found else 0


def build(directory):
    """Builds the plugin and the program that opens its windows, and returns their paths."""
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
    subprocess.run(
        [
            *gcc,
            "-shared",
            "-fPIC",
            f"-DRO2IB_PLUGIN_API={api}",
            "-o",
            plugin,
            os.path.join(HERE, "icount.c"),
            "-lpthread",
        ],
        check=True,
    )
    subprocess.run([*gcc, "-static", "-o", window, os.path.join(HERE, "window.c")], check=True)
    return plugin, window


def known_sources(kdir):
    """Returns where functions of that kernel were compiled. For a kernel without its objects: where the functions with
    the same names were compiled in the test kernel.
    """
    found = sources(kdir)
    for other in sorted(glob.glob(os.path.join(build_env()["CACHE"], "kernel", "*-plain-*"))) if not found else ():
        found.update(sources(other))
    return found


class Counter:
    """Counter of the instructions of two guests, with files in `directory`; with `lines`, also of cache lines that move
    between vCPUs.
    """

    def __init__(self, directory, lines=False):
        self.dir, self.lines = directory, lines
        self._plugin, self.window = build(directory)
        self._windows = 0
        self._symbols = ()

    def options(self, number):
        """Returns further arguments of QEMU, for vm.pair(more=...)."""
        role = "master" if number == 1 else "slave"
        plugin = f"file={self._plugin},out={self.dir}/n{number},ctl={self.dir}/ctl,role={role}"
        if self.lines:
            plugin += ",lines=1"
        return ["-icount", ICOUNT, "-plugin", plugin]

    # For vm.pair(), beside more=options: addresses do not change between boots, and one thread counts.
    GUESTS = {"append": "nokaslr", "accel": "tcg,thread=single"}

    def learn(self, guests):
        """Reads the symbols of all modules that are loaded now."""
        source = known_sources(guests[0].kdir)
        self._symbols = [self._kallsyms(g, source) for g in guests]

    @staticmethod
    def _kallsyms(guest, source):
        guest.check("grep -i ' [tw] ' /proc/kallsyms >/share/kallsyms", timeout=240)
        path = os.path.join(guest.share, "kallsyms")
        with open(path, encoding="ascii") as f:
            text = f.read()
        os.unlink(path)
        return Symbols(text, source)

    def result(self, messages):
        """Returns the counts of the last closed window, per message."""
        self._windows += 1
        files = [f"{self.dir}/n{n}.{self._windows}" for n in (1, 2)]
        until(lambda: all(map(os.path.exists, files)), "the plugin's output")
        functions, entries, moved = collections.Counter(), collections.Counter(), collections.Counter()
        where = collections.defaultdict(collections.Counter)
        for path, symbols in zip(files, self._symbols):
            with open(path, encoding="ascii") as f:
                for line in f:
                    address, count, lines = line.split()
                    symbol, at = symbols.at(int(address, 16))
                    functions[symbol] += int(count)
                    moved[symbol] += int(lines)
                    if at == 0:
                        entries[symbol] += int(count)
                    if symbol[1] == DRIVER:
                        where[symbol[0]][at] += int(count)
            os.unlink(path)
        return self._summary(functions, entries, moved, where, messages)

    def _summary(self, functions, entries, moved, where, messages):
        classes, calls = collections.Counter(), collections.Counter()
        own, called, everything = collections.Counter(), collections.Counter(), collections.Counter()
        lines, movers = collections.Counter(), collections.Counter()
        names = readable({s[0] for s in functions})
        for symbol, count in functions.items():
            what = self._symbols[0].class_of(*symbol)
            name = names[symbol[0]]
            classes[what] += count
            everything[name] += count
            lines[what] += moved[symbol]
            movers[name] += moved[symbol]
            called[name] += entries[symbol]
            if what == LND:
                own[name] += count
        for (symbol, _module), count in entries.items():
            for what, pattern in CALLS.items():
                if pattern.match(symbol):
                    calls[what] += count

        def per(counter):
            return {k: v / messages for k, v in counter.most_common()}

        return {
            "messages": messages,
            "classes": per(classes),
            "calls": {k: calls[k] / messages for k in CALLS},
            "lines": per(lines),
            "movers": per(+movers),
            "functions": per(own),
            "called": per(called),
            "everything": per(everything),
            "where": {name: {at: n / messages for at, n in counts.items()} for name, counts in where.items()},
        }
