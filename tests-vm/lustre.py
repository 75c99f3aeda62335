# SPDX-License-Identifier: GPL-2.0
"""Real LNet in guests, with ro2iblnd or with ko2iblnd under it.

Tree      a Lustre tree that was built for the test kernel: the places of its modules
          and tools, and the files that a guest needs
Peer      another tree, for nodes with ko2iblnd: of another release, for another kernel
Node      a guest with LNet: load, NI up, ping, NI down, unload; each step checked
Selftest  an lnet_selftest session between two nodes: rates and errors

Nothing here builds, patches or configures Lustre.
"""

import contextlib
import functools
import glob
import os
import re
import subprocess
import time

import vm
from nodes import parse

OURS, KO = "ro2iblnd", "ko2iblnd"
NET = "o2ib"
LNET_MODULES = ("libcfs", "lnet", "ko2iblnd", "lnet_selftest")
TOOLS = ("lnetctl", "lst", "lctl")
# Modules in the order of unloading. A module that is not loaded is skipped.
UNLOAD = ("lnet_flood", "lnet_gpu", "gpu_fake", "lnet_selftest", OURS, KO, "lnet", "libcfs")
# Names of modules in the kernel that differ from their file's: ko2iblnd.ko of 2.16 is a copy.
OTHER_NAMES = {"in_kernel_ko2iblnd": KO}
# Modules of tests-vm/modules.
OWN_MODULES = ("lnet_flood", "ib_count", "gpu_fake", "lnet_gpu")
DEBUGFS = "/sys/kernel/debug"


class Unusable(Exception):
    """Tree that lacks a part. The text names the part and how to get it."""


class Tree:
    """Built Lustre tree, and a ro2iblnd.ko that was built against it."""

    # Programs of the tree that a guest gets.
    programs = TOOLS
    # Options of a guest for a kernel other than the test kernel.
    kernel = {}

    def __init__(self, path, built):
        self._find(path)
        self.modules[OURS] = os.path.join(built, f"{OURS}.ko")
        if not os.path.exists(self.modules[OURS]):
            raise Unusable(f"{self.modules[OURS]}: not built: run make test-lustre LUSTRE={self.path}")
        for name in OWN_MODULES:
            self.modules[name] = os.path.join(built, "tests-vm", "modules", f"{name}.ko")
            if not os.path.exists(self.modules[name]):
                raise Unusable(f"{self.modules[name]}: not built: run make test-lustre LUSTRE={self.path}")
        depends = vm.initramfs.module_info(self.modules[OURS], "depends").split(",")
        if "lnet" not in depends:
            raise Unusable(f"{self.modules[OURS]} depends on {','.join(depends)}: it was not built with LUSTRE=")

    def _find(self, path):
        self.path = os.path.abspath(path)
        self.modules = {name: self._module(name) for name in LNET_MODULES}
        self.tools = {name: self._tool(name) for name in self.programs}

    def _module(self, name):
        found = glob.glob(os.path.join(self.path, "lnet", "**", f"{name}.ko"), recursive=True)
        found += glob.glob(os.path.join(self.path, "libcfs", "**", f"{name}.ko"), recursive=True)
        # An external OFED adds a second ko2iblnd. The tests use the kernel's own.
        found.sort(key=lambda p: ("in-kernel" not in p, p))
        if not found:
            raise Unusable(f"no {name}.ko under {self.path}: build the tree's modules first")
        return found[0]

    def _tool(self, name):
        # libtool leaves a wrapper script in the directory and the program in .libs.
        for part in ("lnet/utils/.libs", "lnet/utils", "lustre/utils/.libs", "lustre/utils"):
            path = os.path.join(self.path, part, name)
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    if f.read(4) == b"\x7fELF":
                        return path
        raise Unusable(f"no {name} under {self.path}: build the tree's tools first")

    @functools.cached_property
    def files(self):
        """Files for vm.Guest(files=...): the modules, the tools and the tree's libraries."""
        files = list(self.modules.values())
        libraries = {}
        # The tree's own libraries are found where they were built, whether the program has that path or not.
        own = glob.glob(os.path.join(self.path, "**", "utils", "**", ".libs"), recursive=True)
        env = dict(os.environ, LD_LIBRARY_PATH=":".join(own))
        for name, path in self.tools.items():
            files.append((path, f"/bin/{name}"))
            out = subprocess.run(["ldd", path], check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
            libraries.update(re.findall(r"(\S+) => (/\S+) \(0x", out))
            for loader in re.findall(r"^\s*(/\S+) \(0x", out, re.MULTILINE):
                libraries[loader] = loader
            if "not found" in out:
                raise Unusable(f"{path}: a library is missing:\n{out}")
        for name, path in libraries.items():
            # The path of the tree's own libraries is one of this machine: the guest has them in /lib.
            own = path.startswith(self.path)
            files.append((path, f"/lib/{name}" if own else path))
        return files

    @functools.cached_property
    def kernel_modules(self):
        """Modules for vm.Guest(modules=...): rxe, and the modules of the kernel tree that LNet needs."""
        tree = self.kernel.get("tree") or vm.build_env()["KERNEL_MODULES"]
        wanted = ["rdma_rxe"]
        for path in self.modules.values():
            for name in filter(None, vm.initramfs.module_info(path, "depends").split(",")):
                if name not in self.modules and name not in wanted:
                    wanted.append(name)
        vm.initramfs.module_order(tree, wanted)  # fails here if a module is missing
        return tuple(wanted)

    def pair(self, workdir=None, modules=(), files=(), trees=None, each=({}, {}), **options):
        """Boots two guests without LNet. A context manager, like vm.pair(). `modules` are more modules of the kernel,
        `files` more files of any kind, `trees` the trees of the two nodes if they differ from this one, `each` options
        of one node."""
        trees = trees or (self, self)
        each = [
            {"files": [*t.files, *files], "modules": (*t.kernel_modules, *modules), **t.kernel, **own}
            for t, own in zip(trees, each)
        ]  # fmt: skip
        return vm.pair(workdir=workdir, each=each, **options)


class Peer(Tree):
    """Built Lustre tree of any release for a stock kernel that was fetched, without ro2iblnd."""

    def __init__(self, path):
        self._find(path)
        release = vm.initramfs.module_info(self.modules["lnet"], "vermagic").split()[0]
        try:
            self.kernel = vm.stock_kernel(release)
        except FileNotFoundError as e:
            raise Unusable(f"{path}: {e}") from e


class Node:
    """LNet in one guest."""

    def __init__(self, guest, lnd):
        self.guest, self.lnd = guest, lnd
        self.nid = f"10.0.0.{guest.number}@{NET}"
        # The node has ko2iblnd, which has been through a fault that it does not survive.
        self.is_spoilt = False

    def sh(self, cmd, timeout=60):
        return self.guest.check(cmd, timeout)

    def _modules(self):
        """Returns the loaded modules of LNet: by the names of their files, the names in the kernel and the use
        counts."""
        lines = (line.split() for line in self.sh("cat /proc/modules").splitlines())
        named = {OTHER_NAMES.get(f[0], f[0]): (f[0], int(f[2])) for f in lines}
        return {name: what for name, what in named.items() if name in UNLOAD}

    def loaded(self):
        """Returns the names of the loaded modules of LNet, with their use counts."""
        return {name: users for name, (_, users) in self._modules().items()}

    def load(self, params="", selftest=True):
        """Loads the modules and configures LNet, without an NI."""
        before = self.loaded()
        for name in ("libcfs", "lnet", self.lnd):
            if name not in before:
                self.sh(f"insmod /files/{name}.ko {params if name == self.lnd else ''}")
        # Otherwise LNet would look for its default net, which the guest does not have.
        self.sh("lnetctl lnet configure")
        if selftest and "lnet_selftest" not in before:
            self.sh("insmod /files/lnet_selftest.ko")

    def net_add(self, options=""):
        # A net for each rail: the wires are apart, so a rail cannot reach the other rail.
        for rail in range(self.guest.rails):
            interface = "bond0" if self.guest.bond else f"eth{rail}"
            self.sh(f"lnetctl net add --net {NET}{rail or ''} --if {interface} {options}")

    def up(self, params="", options="", selftest=True):
        """Loads everything and adds the NIs."""
        self.load(params, selftest)
        self.net_add(options)

    def net_del(self, timeout=60):
        """Deletes the NI. Returns how long that took (seconds)."""
        began = time.monotonic()
        self.sh(f"lnetctl net del --net {NET}", timeout)
        return time.monotonic() - began

    def unload(self, timeout=60):
        """Unloads everything. Returns the modules of LNet that are left."""
        present = self.loaded()
        for name in UNLOAD[:4]:
            if name in present:
                self.rmmod(name, timeout)
        if "lnet" in present:
            self.sh("lnetctl lnet unconfigure", timeout)
        for name in UNLOAD[4:]:
            if name in present:
                self.rmmod(name, timeout)
        return self.loaded()

    def rmmod(self, name, timeout):
        """Unloads a module. On a timeout the kernel prints blocked tasks on the console, and the error has the other
        waits."""
        try:
            self.sh(f"rmmod {self._modules()[name][0]}", timeout)
        except vm.Timeout as e:
            what = "cat /proc/modules /sys/kernel/debug/lnet/stats; lnetctl stats show; cat /sys/kernel/debug/ro2iblnd/*@*"
            told = self.guest.run(f"echo w >/proc/sysrq-trigger; {what}", 30)[1]
            raise AssertionError(f"{e}\n{told}") from None

    def sent(self):
        """Returns the LNet messages that each NI has sent so far, in the order of the rails."""
        shown = self.sh("lnetctl net show -v 2")
        counts = dict(re.findall(r"nid: (\S+)@o2ib.*?send_count: (\d+)", shown, re.DOTALL))
        return [int(counts[f"10.0.{rail}.{self.guest.number}"]) for rail in range(self.guest.rails)]

    def net_show(self, verbosity="-v"):
        return self.sh(f"lnetctl net show --net {NET} {verbosity}")

    def tunable(self, name):
        """Returns a number that `lnetctl net show -v 4` prints for the NI."""
        found = re.search(rf"^\s*{name}: (-?\d+)", self.net_show("-v 4"), re.MULTILINE)
        return int(found.group(1)) if found else None

    @functools.cached_property
    def _can_time_a_ping(self):
        """Returns whether lnetctl can set the timeout of a ping. LNet 2.16 refuses the timeout of its own lnetctl
        (-22)."""
        return not self.sh("lctl --version").split()[1].startswith("2.16.")

    def ping_command(self, nid, timeout=15):
        """Returns a ping for a shell. The default timeout outlasts a lost datagram of the CM, which the CM resends
        after four seconds."""
        return f"lnetctl ping {f'--timeout {timeout}' if self._can_time_a_ping else ''} {nid}"

    def ping(self, other, timeout=15):
        """Returns whether the ping was answered, and the output of the tool."""
        status, out = self.guest.run(self.ping_command(other.nid, timeout), timeout + 30)
        return status == 0 and "errno" not in out, out

    def conns(self):
        """Returns the output of `lctl --net o2ib conn_list`, a line per connection."""
        out = self.sh(f"lctl --net {NET} conn_list")
        return [line for line in out.splitlines() if "@" in line]

    def messages(self):
        """Returns the number of LNet messages sent and received so far."""
        fields = self.sh("cat /sys/kernel/debug/lnet/stats").split()
        return int(fields[3]) + int(fields[4])

    def count_verbs(self):
        """Returns a dict of the requests of this node's driver to the RDMA device so far, and of their results."""
        if "ib_count" not in self.sh("cat /proc/modules"):
            self.sh("insmod /files/ib_count.ko")
        return parse(self.sh(f"cat {DEBUGFS}/ib_count"))

    def flood(self, other, op="put", count=100, conc=1, size=100, timeout=1200):
        """Runs one-sided traffic between nodes with lnet_flood loaded. Returns a dict of its statistics."""
        self.sh(f"echo {op} {other.nid} {count} {conc} {size} >{DEBUGFS}/lnet_flood/run", timeout)
        return parse(self.sh(f"cat {DEBUGFS}/lnet_flood/stats"))

    def take(self, on):
        """Sets whether LNet takes the PUTs of a flood or lets them wait. The node has lnet_flood loaded."""
        self.sh(f"echo {int(on)} >{DEBUGFS}/lnet_flood/take")

    def cpu_seconds(self):
        """Returns the CPU time that this guest has cost the host."""
        with open(f"/proc/{self.guest.proc.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def link_counters(self):
        """Returns the counters of rxe0 and of its CM that are not zero."""
        return self.sh("cd /sys/class/infiniband/rxe0/ports/1 && grep . cm_*/* hw_counters/* | grep -v :0")

    def free_kib(self):
        self.sh("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1")
        return int(re.search(r"MemFree: +(\d+)", self.sh("cat /proc/meminfo"))[1])

    def rdma_objects(self):
        """Returns the numbers of RDMA objects in the guest, per type.

        CQs are left out: the pool of the device keeps CQs that were shared once.
        """
        out = self.sh("rdma resource show")
        return {kind: int(n) for kind, n in re.findall(r"\b(pd|qp|cm_id|mr) (\d+)", out)}


class Selftest:
    """lnet_selftest session: node `a` is the client and the console, `b` the server.

    A context manager. Both nodes have lnet_selftest loaded.
    """

    def __init__(self, a, b):
        self.a, self.b, self.batches, self.errors = a, b, 0, 0

    def lst(self, cmd, timeout=60):
        return self.a.sh(f"export LST_SESSION=1; lst {cmd}", timeout)

    def __enter__(self):
        self.lst("new_session --force --timeout 120 ro2iblnd")
        self.lst(f"add_group clients {self.a.nid}")
        self.lst(f"add_group servers {self.b.nid}")
        return self

    def __exit__(self, *_exc):
        with contextlib.suppress(vm.GuestDead, vm.Timeout):
            self.a.guest.run("export LST_SESSION=1; lst end_session", 60)

    def _start(self, test, concurrency):
        batch = f"batch{self.batches}"
        self.batches += 1
        self.lst(f"add_batch {batch}")
        self.lst(f"add_test --batch {batch} --concurrency {concurrency} --from clients --to servers {test}")
        self.lst(f"run {batch}")
        return batch

    def _stop(self, batch, stat=""):
        stop = self.lst(f"stop {batch}", 120)
        # Errors of the whole session: those of earlier batches are known.
        shown = self.lst("show_error --session clients servers")
        result = Result(stat, shown, stop, self.errors)
        self.errors += result.errors
        return result

    def run(self, test, concurrency=1, seconds=1):
        """Runs one batch for some seconds. Returns a Result. `test` is "ping" or "brw write check=full size=4K"."""
        batch = self._start(test, concurrency)
        stat = self.lst(f"stat --delay {seconds} --count 1 clients", 60 + seconds)
        return self._stop(batch, stat)

    def measure(self, test, concurrency=1, seconds=2):
        """Returns messages per second by the host's clock, and microseconds of host CPU (both guests) per message. The
        CPU time hardly depends on other load of the host."""
        batch = self._start(test, concurrency)
        time.sleep(0.3)
        first = self._sample()
        time.sleep(seconds)
        messages, clock, cpu = (b - a for a, b in zip(first, self._sample()))
        result = self._stop(batch)
        if result.errors or messages <= 0:
            raise RuntimeError(f"{test} x{concurrency}: {messages} messages, {result.errors} errors\n{result.text}")
        return messages / clock, cpu / messages * 1e6

    def count(self, test, concurrency, counter, messages):
        """Returns the result of `counter` while one batch makes a number of messages."""
        batch = self._start(test, concurrency)
        passed = int(self.a.sh(f"/files/window -n {messages} {DEBUGFS}/lnet/stats", 900))
        counted = counter.result(passed)
        result = self._stop(batch)
        if result.errors:
            raise RuntimeError(f"{test} x{concurrency}: {result.errors} errors\n{result.text}")
        return counted

    def _sample(self):
        return self.a.messages(), time.monotonic(), self.a.cpu_seconds() + self.b.cpu_seconds()


class Result:
    """Output of lst for a batch.

    rate    LNet messages per second at the client, received and sent
    mib     MiB/s of the direction that carries the bulk
    errors  number of nodes with errors that they did not have before
    """

    def __init__(self, stat, shown, stop, errors_before=0):
        self.text = f"{stat}\n{shown}\n{stop}"
        self.rate = sum(float(n) for n in re.findall(r"\[[RW]\] Avg: (\S+) +RPC/s", stat))
        self.mib = max((float(n) for n in re.findall(r"\[[RW]\] Avg: (\S+) +Mi?B/s", stat)), default=0.0)
        totals = [int(n) for n in re.findall(r"Total (\d+) error nodes", shown)]
        # Without a total lst could not ask, which is an error too.
        self.errors = sum(totals) - errors_before if totals else 1
