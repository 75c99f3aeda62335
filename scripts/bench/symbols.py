# SPDX-License-Identifier: GPL-2.0
"""Classification of addresses by function, and of functions by class."""

import bisect
import os
import re
import subprocess

LND, LNET, OTHER = "LND", "LNet", "rest"
# Classes in the order of the tables. LND includes the kernel crate, in any module.
CLASSES = (
    LND, LNET, "RDMA core", "provider", "network", "locks", "memory", "scheduler", "time, interrupts", OTHER,
)  # fmt: skip
MODULES = {
    "ro2iblnd": LND,
    "ko2iblnd": LND,
    "lnet_lite": LNET,
    "lnet": LNET,
    "libcfs": LNET,
    "lnet_selftest": LNET,
    "rdma_rxe": "provider",
    # soft-RoCE's checksums, on kernels that have them as modules.
    "crc32_generic": "provider",
    "crc32_pclmul": "provider",
    "ib_core": "RDMA core",
    "ib_cm": "RDMA core",
    "iw_cm": "RDMA core",
    "rdma_cm": "RDMA core",
    "virtio_net": "network",
    "udp_tunnel": "network",
    "ip6_udp_tunnel": "network",
}
# Classes by where a function of the kernel itself was compiled.
SOURCES = (
    ("rust/", LND),
    ("drivers/infiniband/", "RDMA core"),
    ("net/", "network"),
    ("drivers/net/", "network"),
    ("drivers/virtio/", "network"),
    ("kernel/locking/", "locks"),
    ("mm/", "memory"),
    ("arch/x86/lib/mem", "memory"),
    ("arch/x86/lib/copy", "memory"),
    ("arch/x86/lib/clear", "memory"),
    ("kernel/sched/", "scheduler"),
    ("kernel/workqueue", "scheduler"),
    ("kernel/kthread", "scheduler"),
    ("kernel/time/", "time, interrupts"),
    ("kernel/irq/", "time, interrupts"),
    ("kernel/softirq", "time, interrupts"),
)
# Classes by name, for functions whose source is unknown.
NAMES = (
    (re.compile(r"_R|rust_helper_"), LND),
    (re.compile(r"crc32|crypto_shash_|shash_"), "provider"),
    (re.compile(r"_raw_|mutex_|__mutex|rwsem|(native_)?queued_|rcu_read|__local_bh|up_|down_"), "locks"),
    (re.compile(r"k(mem_cache|malloc|free|zalloc)|__kmalloc|__slab|mem(cpy|set|move)|__?(alloc|free)_(pages|frozen)"), "memory"),
    (re.compile(r"__switch_to|schedule|__schedule|try_to_wake|process_one_work|__queue_work|queue_work|worker_thread"), "scheduler"),
)  # fmt: skip
# Functions whose calls are counted.
CALLS = {
    "lock rounds": re.compile(r"_raw_(spin|read|write)_(try)?lock"),
    "atomics out of line": re.compile(r"rust_helper_(atomic|refcount)"),
    "copies, fills": re.compile(r"(__)?mem(cpy|set|move)$"),
    "allocations": re.compile(r"(kmem_cache_alloc|__kmalloc)\w*"),
    "wake-ups": re.compile(r"try_to_wake_up$"),
    "context switches": re.compile(r"__switch_to_asm$"),
}


def sources(kdir):
    """Returns the object file of each function that is linked into the kernel; empty if the tree has no objects."""
    archive = os.path.join(kdir, "vmlinux.a")
    if not os.path.exists(archive):
        return {}
    out = subprocess.run(
        ["nm", "-A", "--defined-only", "vmlinux.a"], cwd=kdir, check=False, capture_output=True, text=True
    ).stdout
    found = {}
    for path, name in re.findall(r"^[^:]+:([^:]+):\S* [tTwW] (\S+)$", out, re.MULTILINE):
        found.setdefault(name, path)
    return found


class Symbols:
    """Functions of one guest."""

    def __init__(self, kallsyms, source):
        found = {}
        for line in kallsyms.splitlines():
            address, kind, name, *module = line.split()
            address = int(address, 16)
            if kind in "tTwW" and address >= 0xFFFFFFFF80000000:
                # If several symbols have an address, the symbol of the padding is the last choice.
                if address not in found or found[address][0].startswith("__pfx_"):
                    found[address] = name, module[0][1:-1] if module else ""
        self._addresses = sorted(found)
        self._names = [found[a] for a in self._addresses]
        self._source = source

    def at(self, address):
        """Returns (name, module) of the function at an address, and the offset in it."""
        i = bisect.bisect_right(self._addresses, address) - 1
        if i < 0:
            return ("?", ""), -1
        return self._names[i], address - self._addresses[i]

    def class_of(self, name, module):
        if module:
            return MODULES.get(module, OTHER)
        plain = re.sub(r"\.(isra|part|constprop|cold|llvm)\b.*", "", name)
        path = self._source.get(name) or self._source.get(plain, "")
        for prefix, what in SOURCES:
            if path.startswith(prefix):
                return what
        for pattern, what in NAMES:
            if pattern.match(name):
                return what
        return OTHER


def _objdump(path):
    return subprocess.run(
        ["objdump", "-dr", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout


def mentions(text, name):
    """Returns the instructions of a disassembly that read an object of that name: {function: [offsets]}."""
    found, function, begin, last = {}, None, 0, 0
    for line in text.splitlines():
        head = re.match(r"([0-9a-f]+) <(.*)>:$", line)
        at = re.match(r"\s*([0-9a-f]+):\t[^R]", line)
        if head:
            begin, function = int(head[1], 16), head[2]
        elif at:
            last = int(at[1], 16)
        elif re.search(rf"\bR_\w+\s+{name}\b", line):
            found.setdefault(function, []).append(last - begin)
    return found


def reads(path, name, where):
    """Returns how often the code of a module read that object, by the counts of its instructions."""
    return sum(
        where.get(function, {}).get(at, 0) for function, ats in mentions(_objdump(path), name).items() for at in ats
    )


def disassembly(path, name, counts):
    """Yields lines of a module's function with how often each instruction was executed."""
    out = _objdump(path)
    begin = None
    for line in out.splitlines():
        head = re.match(r"([0-9a-f]+) <(.*)>:$", line)
        if head:
            begin = int(head[1], 16) if head[2] == name else None
        at = re.match(r"\s*([0-9a-f]+):\t(.*)", line)
        if begin is not None and at:
            yield f"{counts.get(int(at[1], 16) - begin, 0):9.3f}  {at[2]}"
        elif begin is not None and "R_X86" in line:
            yield f"{'':12}{line.strip()}"


def readable(names):
    """Returns readable names, without the hashes of crates: {name: readable}."""
    names = list(names)
    try:
        out = subprocess.run(
            ["c++filt", "-s", "rust"], input="\n".join(names), check=True, capture_output=True, text=True
        ).stdout
        short = out.splitlines()
    except (OSError, subprocess.CalledProcessError):
        short = names
    return {name: re.sub(r"\[[0-9a-f]+\]", "", s).replace("ro2iblnd::", "") for name, s in zip(names, short)}
