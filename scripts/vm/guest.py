# SPDX-License-Identifier: GPL-2.0
"""QEMU guest: boot, commands in the guest, kernel log, end.

Software emulation (TCG) is the default because every machine has it and behaves the same with it. RO2IBLND_KVM=1 asks
for KVM; it is used only if a trial boot works.
"""

import base64
import contextlib
import ctypes
import functools
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from typing import NamedTuple

from . import initramfs
from .env import build_env

MTU = 4200  # so that a RoCE path MTU of 4096 fits with its headers
COMMAND_MAX = 100_000  # an argument of a program has at most 128 KiB
KUNIT = "kunit.enable=1 kunit.autorun=1"  # a kernel with fewer features has them off


class Machine(NamedTuple):
    """Properties of an architecture."""

    uname: str  # of a host with this architecture
    qemu: str
    board: str
    tcg_cpu: str
    console: str
    append: str = ""


# q35 rather than pc: its ACPI tables have no loops, which a debug kernel interprets for minutes. Older QEMUs emulate
# five page table levels wrongly (false KASAN reports). Before 8.0 they also emulate cmpxchg16b wrongly: an interrupt at
# the wrong moment corrupts the flags, which SLUB survives about a million times before a double fault. An emulated
# kernel that uses the architecture's own algorithm for pointer authentication spends most of its time there.
# norandmaps: programs at random addresses would have to be translated again for each execution.
MACHINES = {
    "amd64": Machine(
        "x86_64", "qemu-system-x86_64", "q35", "max,la57=off,cx16=off", "ttyS0", "tsc=reliable no_timer_check"
    ),
    "arm64": Machine("aarch64", "qemu-system-aarch64", "virt", "max,pauth-impdef=on", "ttyAMA0"),
}


class Bond(NamedTuple):
    """Active-backup bond; it needs bonding.ko and rxe_bond.ko among the files of a guest."""

    mac: str  # fail_over_mac: none, active
    devices: tuple  # the interfaces with an RDMA device: slaves, or the bond


class Timeout(Exception):
    """Error of a command or a boot that took too long."""


# The kernel's module for each type of software device.
PROVIDERS = {"rxe": "rdma_rxe", "siw": "siw"}


class GuestDead(Exception):
    """Error of a guest whose QEMU ended (kernel panic, power off, kill)."""


class CommandFailed(Exception):
    """Error of a command that ended with a status other than 0."""


def _die_with_parent():
    """Makes the kernel kill QEMU when the test run itself is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Job:
    """Command that runs in the guest."""

    def __init__(self, guest, ident, cmd):
        self.guest, self.ident, self.cmd = guest, ident, cmd
        self.result = None

    def poll(self):
        """Returns (status, output), or None while the command runs."""
        self.guest._pump(0)
        return self.result

    def wait(self, timeout=60):
        """Returns (status, output). After the timeout it kills the command and raises Timeout."""
        end = time.monotonic() + timeout
        while self.result is None:
            left = end - time.monotonic()
            if left <= 0:
                self.guest.note_where()
                self.kill()
                raise Timeout(f"{self.guest.name}: {timeout} s: {self.cmd}")
            self.guest._pump(min(left, 1))
        return self.result

    def kill(self):
        """Sends SIGKILL to the command and its children."""
        self.guest._send(f"{self.ident} kill\n")


class Guest:
    """QEMU guest. Use it as a context manager, or call start() and kill().

    name      for messages and files
    number    gives address 10.0.0.<number> and the MAC address
    link      socket paths (own, peer's) of the wire, see pair(); None: no NIC
    rails     number of parallel wires: eth0, eth1...
    bond      a Bond: bond0, whose slaves eth0 and eth1 are both on the wire; None: no bond
    provider  type of the RDMA devices: rxe (RoCE) or siw (iWARP)
    hardware  the driver treats the device as hardware (see nodes.py)
    softirq   the driver polls completions in a softirq, as for hardware
    profile   parameters of tests-vm/modules/ib_imitate.ko, which is among `files`:
              it makes the devices look like other devices
    dma       parameters of tests-vm/modules/ib_imitate_dma.ko, which is among `files`: the devices have the DMA of an
              adapter; None: soft-RoCE's virtual DMA
    timing    parameters of tests-vm/modules/ib_imitate_timing.ko, which is among `files`: the devices complete, flush
              and carry out commands as an adapter does; None: as soft-RoCE does
    files     put into the guest's /files (or (path, name) pairs)
    modules   modules of the kernel tree to load at boot; None: the provider's
    tools     more programs of this machine to have in the guest
    append    more kernel parameters
    workdir   where console log, share and sockets go; None: a temporary one
    kdir, image, tree   another kernel than that of scripts/env: its build tree, its
              image, and where its modules are (None: in the build tree)
    arch      of that kernel, by Debian's name
    userland  a root directory to take its programs from; None: this machine's own
    compiled  with the compiled agent, if there is one; False: that of init.sh
    accel     QEMU's accelerator; None: see default_accel()
    more      more arguments for QEMU: a function of the guest's number
    """

    def __init__(
        self, name="guest", number=1, link=None, rails=1, bond=None, provider="rxe", profile="", dma=None, timing=None,
        hardware=False, softirq=False, files=(), modules=None, tools=(),
        append="", vcpus=2, memory=None, workdir=None, kdir=None, image=None, tree=None,
        arch=None, userland=None, compiled=True, accel=None, more=None,
    ):  # fmt: skip
        env = build_env() if kdir is None or image is None else {}
        self.arch = arch or env.get("KERNEL_ARCH") or "amd64"
        self.machine = MACHINES[self.arch]
        self.userland = userland or env.get("KERNEL_USERLAND") or None
        self.name, self.number, self.link, self.rails, self.bond = name, number, link, rails, bond
        self.kdir = kdir or env["KDIR"]
        self.image = image or env["KERNEL_IMAGE"]
        self.tree = tree or env.get("KERNEL_MODULES") or self.kdir
        self.provider, self.profile, self.dma, self.timing = provider, profile, dma, timing
        self.hardware, self.softirq = hardware, softirq
        self.files, self.tools, self.compiled = list(files), tools, compiled
        self.modules = (PROVIDERS[provider],) if modules is None else modules
        self.append, self.vcpus = append, vcpus
        self.accel, self.more = accel, more
        # KASAN's shadow and quarantine need memory.
        debug = "-debug-" in os.path.basename(self.kdir)
        # kmemleak makes software emulation several times slower, so it is on only on request.
        if debug and "kmemleak" not in append:
            self.append += " kmemleak=off"
        # KCSAN is built in, and off by default.
        if "-kcsan-" in os.path.basename(self.kdir):
            # KCSAN watches for a shorter time, and less often, than on a CPU that is not emulated.
            self.append += " kcsan.early_enable=1 kcsan.skip_watch=4000 kcsan.udelay_task=80 kcsan.udelay_interrupt=20"
        self.memory = memory or (2048 if debug else 768)
        self._own_dir = workdir is None
        self.workdir = workdir or tempfile.mkdtemp(prefix="ro2ib-")
        os.makedirs(self.workdir, exist_ok=True)
        self.console_path = os.path.join(self.workdir, f"{name}.console")
        self.share = os.path.join(self.workdir, f"{name}.share")
        self._qemu_log = os.path.join(self.workdir, f"{name}.qemu")
        self.boot_seconds = None
        self._reboots = self._measured = 0
        self._monitored = False
        self.proc = self._sock = self._monitor = None
        self._jobs = {}

    # Life

    def start(self, timeout=300):
        """Boots the guest and waits until its agent answers."""
        self.launch()
        self.wait_ready(timeout)
        return self

    def launch(self, accel=None):
        """Boots the guest without waiting."""
        os.makedirs(self.share, exist_ok=True)
        initrd = os.path.join(self.workdir, f"{self.name}.cpio")
        with open(initrd, "wb") as f:
            f.write(initramfs.build(self.tree, self.modules, self.files, self.tools, self.userland, self.compiled))
        # Socket paths have at most 108 bytes, hence a directory of their own.
        with tempfile.TemporaryDirectory(prefix="ro2ib-s") as tmp, contextlib.ExitStack() as stack:
            listeners = []
            for name in ("agent", "monitor"):
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(os.path.join(tmp, name))
                listener.listen(1)
                listener.settimeout(0.5)
                listeners.append(listener)
            with open(self._qemu_log, "wb") as log:
                self.proc = subprocess.Popen(
                    self._command(initrd, tmp, accel or self.accel or default_accel(self.arch)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_die_with_parent,
                )
            # QEMU connects to both sockets before it starts the guest.
            while self._sock is None or self._monitor is None:
                with contextlib.suppress(TimeoutError):
                    if self._sock is None:
                        self._sock = listeners[0].accept()[0]
                    self._monitor = listeners[1].accept()[0]
                if self.proc.poll() is not None:
                    with open(self._qemu_log) as f:
                        raise GuestDead(f"{self.name}: QEMU: {f.read()}")
        # The agent's first line looks like the end of command 0.
        self._buffer, self._next = b"", 1
        self._boot = Job(self, 0, "boot")
        self._jobs = {0: self._boot}
        self._began = time.monotonic()

    def wait_ready(self, timeout=300):
        """Waits until the agent answers."""
        while self._boot.result is None:
            if time.monotonic() - self._began > timeout:
                self.kill()
                raise Timeout(f"{self.name}: no agent after {timeout} s:\n{self.console()[-2000:]}")
            try:
                self._pump(1)
            except GuestDead as dead:
                # No module of the test is loaded yet, so the guest boots again, except after a panic. The emulator
                # itself ends sometimes. Besides, a stock kernel patches its own code with an int3 while it boots, and
                # QEMU 7.2 with two CPUs sometimes seems to execute the int3 after the kernel has removed it.
                self._reboots += 1
                console = self.console()
                if self._reboots > 2 or ("Kernel panic" in console and "Oops: int3" not in console):
                    raise
                warnings.warn(f"boots again: {dead}", stacklevel=2)
                self.kill()
                self.launch()
        if "Using PIT calibration value" in self.console() and self._measured < 3:
            # The host was busy while the kernel measured its TSC, so the kernel measured a frequency that is wrong by a
            # factor of several. All timeouts and rates would be wrong, too, so the guest boots again.
            self._measured += 1
            self.kill()
            self.launch()
            return self.wait_ready(timeout)
        self.boot_seconds = time.monotonic() - self._began
        return None

    def _command(self, initrd, sockets, accel):
        machine = self.machine
        cmd = [
            machine.qemu, "-nodefaults", "-no-user-config", "-no-reboot",
            "-display", "none", "-M", machine.board, "-accel", accel,
            "-cpu", "host" if accel == "kvm" else machine.tcg_cpu,
            "-smp", str(self.vcpus), "-m", str(self.memory),
            "-kernel", self.image, "-initrd", initrd,
            "-append", f"console={machine.console} panic=-1 {machine.append} norandmaps ignore_loglevel {KUNIT} {self.append}",
            "-serial", f"file:{self.console_path}",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=agent,path={sockets}/agent",
            "-device", "virtserialport,chardev=agent,name=agent",
            "-chardev", f"socket,id=monitor,path={sockets}/monitor",
            "-mon", "chardev=monitor,mode=control",
            "-device", "virtio-rng-pci",
            "-virtfs", f"local,path={self.share},mount_tag=share,security_model=none",
        ]  # fmt: skip
        for rail in range(self.rails if self.link else 0):
            own, peer = self.link
            ends = f"local.type=unix,local.path={own}{rail},remote.type=unix,remote.path={peer}{rail}"
            if self.bond:
                # The hub copies each frame from the wire to both slaves.
                cmd += ["-netdev", f"dgram,id=cable,{ends}", "-netdev", "hubport,hubid=0,id=hub,netdev=cable"]
                for nic in range(2):
                    cmd += ["-netdev", f"hubport,hubid=0,id=wire{nic}", *self._nic(nic)]
            else:
                cmd += ["-netdev", f"dgram,id=wire{rail},{ends}", *self._nic(rail)]
        return cmd + (self.more(self.number) if self.more else [])

    def _nic(self, nic):
        mac = f"52:54:00:00:{nic:02x}:{self.number:02x}"
        return ["-device", f"virtio-net-pci,netdev=wire{nic},mac={mac},host_mtu={MTU},romfile="]

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def kill(self):
        """Turns the power off at once."""
        if self.proc is not None:
            self.proc.kill()
            self.proc.wait()
        for sock in (self._sock, self._monitor):
            if sock is not None:
                sock.close()
        self._sock = self._monitor = None
        self._monitored = False

    def qmp(self, command, **arguments):
        """Executes a command of QEMU's monitor and returns its result."""
        commands = [{"execute": "qmp_capabilities"}] if not self._monitored else []
        self._monitored = True
        commands.append({"execute": command, "arguments": arguments, "id": command})
        for one in commands:
            self._monitor.sendall(json.dumps(one).encode() + b"\n")
        # The greeting, other answers and events come before the answer.
        self._monitor.settimeout(60)
        with self._monitor.makefile("rb") as lines:
            answer = next(a for a in map(json.loads, lines) if a.get("id") == command)
        if "error" in answer:
            raise CommandFailed(f"{self.name}: {command}: {answer['error']['desc']}")
        return answer["return"]

    def carrier(self, on, rail=0):
        """Plugs the cable of eth<rail> in, or pulls it."""
        self.qmp("set_link", name=f"wire{rail}", up=on)

    def note_where(self):
        """Writes the registers of each CPU to a file beside the console log, because the guest may hang."""
        if not self.alive():
            return
        with open(os.path.join(self.workdir, f"{self.name}.registers"), "a", encoding="utf-8") as out:
            for _ in range(3):
                out.write(self.qmp("human-monitor-command", **{"command-line": "info registers -a"}))
                time.sleep(0.2)

    def wait_dead(self, timeout=60):
        """Waits for the guest to stop by itself (panic, poweroff)."""
        try:
            self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Timeout(f"{self.name}: still up after {timeout} s") from None

    def close(self):
        """Kills the guest, and deletes its files if they are temporary."""
        self.kill()
        if self._own_dir:
            shutil.rmtree(self.workdir, ignore_errors=True)

    def __enter__(self):
        return self.start() if self.proc is None else self

    def __exit__(self, *_exc):
        self.close()

    # Commands

    def _send(self, text):
        if self._sock is None:
            raise GuestDead(self.name)
        try:
            self._sock.sendall(text.encode())
        except OSError:
            raise GuestDead(self.name) from None

    def _pump(self, timeout):
        """Reads answers for at most `timeout` seconds."""
        if self._sock is None:
            raise GuestDead(self.name)
        if not select.select([self._sock], [], [], timeout)[0]:
            return
        try:
            data = self._sock.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.proc.wait(10)
            with open(self._qemu_log) as f:
                ended = f"QEMU ended with status {self.proc.returncode} {f.read().strip()}".strip()
            raise GuestDead(f"{self.name}: {ended}, console ends:\n{self.console()[-3000:]}")
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            ident, status, *rest = line.split()
            job = self._jobs.pop(int(ident), None)
            if job is not None:
                out = base64.b64decode(rest[0]) if rest else b""
                job.result = (int(status), out.decode(errors="replace"))

    def spawn(self, cmd, *direct):
        """Starts a shell command and returns its Job at once. `direct` are a path and, if there is one, a text: the
        command writes the text to the file and reads the file. The agent then does without a shell, and needs a
        fifth of the time. It does the same for `cat PATH`."""
        if len(cmd) > COMMAND_MAX:
            raise ValueError(f"{len(cmd)} characters: put() it as a file, and run that")
        job = Job(self, self._next, cmd)
        self._next += 1
        self._jobs[job.ident] = job
        if cat := re.fullmatch(r"cat ([\w/.:@-]+)", cmd):
            direct = cat.groups()
        words = (base64.b64encode(word.encode()).decode() for word in (cmd + "\n", *direct))
        self._send(f"{job.ident} run {' '.join(words)}\n")
        return job

    def run(self, cmd, timeout=60):
        """Runs a shell command and returns (status, output with stderr)."""
        return self.spawn(cmd).wait(timeout)

    def check(self, cmd, timeout=60):
        """Runs a shell command that must succeed, and returns its output."""
        status, out = self.run(cmd, timeout)
        if status != 0:
            raise CommandFailed(f"{self.name}: {cmd}: status {status}\n{out}")
        return out

    def put(self, path, name=None):
        """Copies a file of this machine to the guest and returns its path there."""
        name = name or os.path.basename(path)
        shutil.copyfile(path, os.path.join(self.share, name))
        return f"/share/{name}"

    def insmod(self, path, args="", timeout=60):
        """Loads a module file of this machine."""
        return self.check(f"insmod {self.put(path)} {args}", timeout)

    # Logs

    def dmesg(self):
        """Returns the kernel log."""
        return self.check("dmesg")

    def console(self):
        """Returns the output of the serial console, which survives a crash."""
        try:
            with open(self.console_path, encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""


def patching_accel(arch="amd64"):
    """Returns the accelerator for guests that patch the text of a running kernel (trace points). In QEMU 7.2 each CPU
    is a thread of its own, which sometimes translates the int3 of a patch after the kernel has removed it, and the
    kernel dies of `Oops: int3`. With wake-ups from two CPUs, the first ten switches of a trace point caused this;
    with one thread for both CPUs 840 switches did not. With one thread, the guest still has both CPUs, and they
    interrupt each other anywhere.
    """
    accel = default_accel(arch)
    return "tcg,thread=single" if accel == "tcg" else accel


@functools.cache
def default_accel(arch):
    """Returns "tcg", unless KVM was asked for and a guest really boots with it."""
    if os.environ.get("RO2IBLND_KVM") != "1" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    if platform.machine() != MACHINES[arch].uname:
        return "tcg"
    trial = Guest("kvm-trial", modules=())
    try:
        trial.launch(accel="kvm")
        trial.wait_ready(20)
        return "kvm"
    except (Timeout, GuestDead) as e:
        print(f"KVM does not work here, using TCG: {e}", file=sys.stderr)
        return "tcg"
    finally:
        trial.close()


@contextlib.contextmanager
def pair(workdir=None, each=({}, {}), **options):
    """Yields two guests on one wire (rails=2: on two), booted in parallel, with eth0 and the RDMA device on it up.

    `options` go to both Guests, those in `each` to one. A guest that was killed may be start()ed again.
    """
    from .rdma_links import setup_bond, setup_link

    with contextlib.ExitStack() as stack:
        wires = stack.enter_context(tempfile.TemporaryDirectory(prefix="ro2ib-w"))
        ends = [os.path.join(wires, n) for n in "ab"]
        guests = []
        for i, name in enumerate("ab"):
            guest = Guest(name, i + 1, (ends[i], ends[1 - i]), workdir=workdir, **{**options, **each[i]})
            stack.callback(guest.close)
            guests.append(guest)
        for guest in guests:
            guest.launch()
        for guest in guests:
            guest.wait_ready()
            if guest.bond:
                setup_bond(guest)
                continue
            for rail in range(guest.rails):
                setup_link(guest, rail)
        yield tuple(guests)
