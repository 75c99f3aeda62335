# SPDX-License-Identifier: GPL-2.0
"""LNet nodes: guests with lnet_lite and ro2iblnd, and checks that they leave nothing behind."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import vm

CTL = "/sys/kernel/debug/lnet_lite"
# Functions of the driver that fault injection overrides: one tells the driver that a software device is hardware, the
# other that its completions are polled in a softirq. The kernel keeps the injection point of an unloaded module and
# then refuses a new one: the script removes it first.
HARDWARE, SOFTIRQ = "ro2ib_as_hardware", "ro2ib_in_softirq"
TELL = """set -e; cd /sys/kernel/debug/fail_function; echo >inject; echo {0} >inject
echo 1 >{0}/retval; echo 0 >interval; echo 0 >verbose; echo -1 >times; echo 100 >probability"""


def tell_kind(guest):
    """Tells the loaded driver that the guest's device is hardware, or to poll completions in a softirq, if the guest is
    so. Returns the status of the command."""
    if guest.hardware or guest.softirq:
        return guest.run(TELL.format(HARDWARE if guest.hardware else SOFTIRQ))[0]
    return 0


# Longest wait of a test in seconds. It is far beyond the time of any step: a test fails because an event does not
# happen, not because the machine is slow.
PATIENCE = 240


class Left(AssertionError):
    """Leftover after the modules were unloaded, or a violation of LNet's rules by the driver."""


def parse(text):
    """Returns `key=value` lines as a dict, with numbers as int."""
    found = {}
    for line in text.splitlines():
        for word in [line] if " " not in line else line.split():
            key, eq, value = word.partition("=")
            if eq:
                found[key] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return found


def until(condition, what, timeout=PATIENCE, pause=0.2):
    """Waits until condition() is true, and returns its value. Calls it often at first, later every `pause` seconds."""
    end, step = time.monotonic() + timeout, 0.02
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(min(step, pause))
        step *= 1.5


def stamp(line):
    """Returns the seconds since boot of a line of the kernel log."""
    found = re.match(r"\[ *(\d+\.\d+)\]", line)
    return float(found[1]) if found else 0.0


class Running:
    """Traffic run in progress."""

    count = 0

    def __init__(self, node, command):
        self.node, self.command = node, command
        Running.count += 1
        self.pid = f"/tmp/run{Running.count}"
        # A child of the shell writes the command, so that a signal to the child ends the run, and the shell can still
        # read the answer.
        write = f"(echo '{command}' >&3) 2>/dev/null & echo $! >{self.pid}; wait"
        self.job = node.guest.spawn(f"exec 3<>{CTL}/ctl; {write}; cat <&3")

    def stop(self):
        """Ends the run after the operations under way."""
        self.node.guest.run(f"kill -9 $(cat {self.pid})")

    def result(self, timeout=PATIENCE):
        return parse(self.job.wait(timeout)[1])

    def running(self):
        return self.job.poll() is None


class Node:
    """Guest as an LNet node on o2ib."""

    def __init__(self, guest, address=None):
        self.guest = guest
        self.address = address or f"10.0.0.{guest.number}"
        self.nid = f"{self.address}@o2ib"
        self.loaded = False
        self.baseline = None
        self.log_from = 0.0

    # Commands

    @staticmethod
    def ctl_script(command):
        return f"exec 3<>{CTL}/ctl; echo '{command}' >&3 2>/dev/null; cat <&3"

    def ctl_text(self, command, timeout=PATIENCE):
        """Runs a command of lnet_lite and returns its answer as text."""
        return self.guest.spawn(self.ctl_script(command), f"{CTL}/ctl", command).wait(timeout)[1]

    def ctl(self, command, timeout=PATIENCE, ok=True):
        """Runs a command of lnet_lite and returns its answer as a dict. With `ok` the command must succeed."""
        out = self.ctl_text(command, timeout)
        answer = parse(out)
        if "rc" not in answer:
            raise AssertionError(f"{self.guest.name}: {command}: no answer: {out}")
        if ok:
            assert answer["rc"] == 0, f"{self.guest.name}: {command}: {out}"
        return answer

    def load(self, lnd="", lite=""):
        """Loads both modules with parameters as for insmod."""
        if self.baseline is None:
            self.baseline = self.resources()
        self.guest.check(f"insmod /files/lnet_lite.ko {lite} && insmod /files/ro2iblnd.ko {lnd}", PATIENCE)
        assert tell_kind(self.guest) == 0
        self.loaded = True

    def ni_add(self, net="o2ib", interface="eth0", **tunables):
        words = " ".join(f"{k}={v}" for k, v in tunables.items())
        return self.ctl(f"ni add {net} {interface} {words}")

    def ni_del(self, nid=None, **options):
        return self.ctl(f"ni del {nid or self.nid}", **options)

    def set(self, **knobs):
        return self.ctl("set " + " ".join(f"{k}={v}" for k, v in knobs.items()))

    def ping(self, other, ok=True):
        nid = other.nid if isinstance(other, Node) else other
        return self.ctl(f"ping {nid} timeout=60", ok=ok)

    @staticmethod
    def _traffic(to, **what):
        nid = to.nid if isinstance(to, Node) else to
        what.setdefault("timeout", 120)
        return f"traffic to={nid} " + " ".join(f"{k.rstrip('_')}={v}" for k, v in what.items())

    def start(self, to, **what):
        """Starts a traffic run. Returns a Running."""
        return Running(self, self._traffic(to, **what))

    def try_traffic(self, to, **what):
        """Runs traffic that may fail."""
        return self.ctl(self._traffic(to, **what))

    def traffic(self, to, **what):
        """Runs traffic of which no message may fail."""
        command = self._traffic(to, **what)
        r = self.ctl(command)
        told = f"{self.guest.name}: {command}: {r}"
        count = what.get("count", 100)
        assert r["count"] == count and r["errors"] == 0 and r["timeouts"] == 0, told
        assert r["verify_errors"] == 0 and r.get("peer_verify_errors", 0) == 0, told
        assert r.get("stuck", 0) == 0, told
        if what.get("op") == "put" and what.get("ask", 1) and what.get("peers", 1) == 1:
            # A PUT without an ACK is finished when it was sent.
            assert r["peer_puts"] >= count, told
        return r

    def stats(self):
        return parse(self.guest.check(f"cat {CTL}/stats"))

    def log(self):
        """Returns the kernel log since `mark_log`."""
        return "\n".join(line for line in self.guest.dmesg().splitlines() if stamp(line) > self.log_from)

    def mark_log(self):
        """Excludes the present content of the kernel log from log()."""
        last = self.guest.check("dmesg | tail -n 5")
        self.log_from = max(map(stamp, last.splitlines()), default=0.0)

    def conns(self):
        """Returns the number of established connections that the driver reports."""
        return self.ctl(f"conn list {self.nid}").get("conns", 0)

    def nis(self):
        return re.findall(r"\d+\.\d+\.\d+\.\d+@o2ib\d*", self.ctl_text("ni list"))

    # The RDMA device

    @property
    def device(self):
        return vm.link_name(self.guest)

    def plug(self):
        """Adds the device (again)."""
        vm.plug(self.guest)

    def unplug(self):
        """Removes the device. Returns when no driver uses it any more."""
        vm.unplug(self.guest, timeout=PATIENCE)

    # Unloading

    def resources(self):
        """Returns the resources of a guest that a driver could leave behind."""
        rdma = self.guest.check("rdma resource show; rdma resource show cm_id")
        # A device that was removed comes back under another number and in another place.
        rdma = sorted(re.sub(r"^\d+: ", "", rdma, flags=re.MULTILINE).splitlines())
        modules = sorted(line.split()[0] + " " + line.split()[2] for line in self.guest.check("cat /proc/modules").splitlines())
        return {"rdma": rdma, "modules": modules}

    def judge(self):
        """Raises Left if lnet_lite reports a fault of the driver."""
        stats = self.stats()
        assert "violations" in stats, stats
        bad = {k: stats[k] for k in ("violations", "stuck_mds", "target_verify_errors", "verify_errors") if stats.get(k)}
        if bad:
            raise Left(f"{self.guest.name}: lnet_lite: {bad}")

    def idle(self):
        """Waits until no message, buffer or held receive is left in lnet_lite."""

        def quiet():
            stats = self.stats()
            return not any(stats.get(k) for k in ("outstanding", "rx_held", "delayed", "mds"))

        try:
            until(quiet, "idle")
        except TimeoutError:
            raise Left(f"{self.guest.name}: not idle: {self.stats()}") from None

    def unload(self):
        """Deletes the NIs and unloads the modules. Nothing may be left."""
        if not self.loaded:
            return
        for nid in self.nis():
            self.ni_del(nid)
        self.idle()
        self.judge()
        self.guest.check("rmmod ro2iblnd && rmmod lnet_lite", PATIENCE)
        self.loaded = False
        try:
            until(lambda: self.resources() == self.baseline, "as before", timeout=30)
        except TimeoutError:
            now = self.resources()
            raise Left(f"{self.guest.name}: before\n{self.baseline}\nnow\n{now}") from None


def together(work, *nodes):
    """Calls work(node) for all nodes at the same time: a guest waits more than it computes."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(work, nodes))


def up(*nodes, lnd="", **tunables):
    """Loads the modules and adds an NI on each node."""

    def one(node):
        node.load(lnd)
        node.ni_add(**tunables)

    together(one, *nodes)
