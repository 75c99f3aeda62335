# SPDX-License-Identifier: GPL-2.0
"""Two guests that count their instructions, with the driver under lnet_lite in them."""

import collections
import contextlib
import os
import shutil
import tempfile
import time

import vm
from nodes import CTL, Node, parse, up

from .cases import CASES
from .count import Counter, Unusable

DRIVER = ("wrs", "doorbells", "cqes", "recv_wrs", "recv_cqes", "tx_noops", "no_credit")
# Masks of the debug log.
NETERROR, NET = 0x100, 0x200
TRACEFS = "/sys/kernel/tracing"


class Bench:
    """Pair of guests; use it as a context manager."""

    def __init__(self, built, log=None):
        self.built, self.log = built, log
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with self._stack as stack:
            self.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="ro2ib-bench"))
            self._boot(stack)
            # Both guests have booted: they run until __exit__.
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc):
        self._stack.close()

    def _boot(self, stack):
        self._counter = Counter(self.dir)
        modules = [os.path.join(self.built, m) for m in ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko")]
        workdir = self.log or os.path.join(self.dir, "guests")
        guests = stack.enter_context(
            vm.pair(
                files=[*modules, self._counter.window],
                vcpus=1,
                more=self._counter.options,
                workdir=workdir,
                **Counter.GUESTS,
            )
        )
        self.guests = guests
        self.a, self.b = self.nodes = tuple(Node(g) for g in guests)
        up(*self.nodes)
        self.a.ping(self.b)
        self._counter.learn(guests)
        self.release = guests[0].check("uname -r").strip()

    def look(self, on):
        """Enables or disables all trace events of the driver in both guests."""
        for guest in self.guests:
            guest.check(f"[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}")
            if guest.run(f"echo {int(on)} >{TRACEFS}/events/ro2iblnd/enable")[0]:
                raise Unusable("this kernel has no trace points: take a stock one, see Documentation/testing.md")

    def tell(self, on):
        """Makes both nodes write all lines to LNet's debug log, or only the default lines."""
        for node in self.nodes:
            node.set(debug=NET | NETERROR if on else NETERROR)

    def _state(self):
        """Returns the number of messages sent so far, and the driver's counters, of both nodes."""
        sums = collections.Counter()
        for node in self.nodes:
            stats = node.stats()
            sums["messages"] += sum(
                stats[k] for k in ("sent_put", "sent_get", "sent_reply", "sent_ack", "opt_get_replies")
            )
            for line in node.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*").splitlines():
                for key, value in parse(line).items():
                    if key in DRIVER:
                        sums[key] += value
        return sums

    def measure(self, name, times=1):
        """Measures `times` windows of one case, and returns a list of results."""
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
        counters = self._state() - before
        messages = counters.pop("messages")
        result = self._counter.result(messages)
        result["driver"] = {k: counters[k] / messages for k in DRIVER}
        result["seconds"] = seconds
        return result

    def copy_logs(self, directory):
        for guest in self.guests:
            shutil.copy(guest.console_path, directory)
