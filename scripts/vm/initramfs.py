# SPDX-License-Identifier: GPL-2.0
"""Archive with the guest's whole user space: busybox, the RDMA and network tools of this machine with the libraries
they need, kernel modules, and an init that is the command agent. For a guest of another architecture, the programs
come from a directory with its unpacked packages, and none of them runs on this machine.
"""

import functools
import glob
import gzip
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = ("ip", "tc", "rdma")
# Drivers that the test kernel has built in, and that a distribution's kernel has as modules: the devices of a guest,
# its share, modules that rxe requests by an alias (6.12: crc32), links within a guest, and what drops packets
# (nf_tables requests crc32c).
BASE = (
    "virtio_pci", "virtio_console", "virtio_rng", "virtio_net", "9p", "9pnet_virtio", "configfs",
    "crc32_generic", "crc32_pclmul", "rdma_ucm", "veth", "crc32c_generic", "nf_tables", "nft_numgen",
)  # fmt: skip
# Includes sbin, which is not on the PATH of an ordinary user.
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Cpio:
    """Archive in the newc format. The kernel reads it uncompressed, which is the fastest."""

    def __init__(self):
        self._parts = []
        self._seen = set()

    def _entry(self, name, mode, data=b"", rdev=(0, 0)):
        self._parents(name)
        if name in self._seen:
            return
        self._seen.add(name)
        raw = name.encode() + b"\0"
        fields = (
            len(self._seen), mode, 0, 0, 1, 0, len(data),
            0, 0, rdev[0], rdev[1], len(raw), 0,
        )  # fmt: skip
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + raw
        self._parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def _parents(self, name):
        parent = os.path.dirname(name)
        if parent and parent not in self._seen:
            self.dir(parent)

    def dir(self, name):
        self._entry(name, stat.S_IFDIR | 0o755)

    def link(self, name, target):
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def data(self, name, data, mode=0o755):
        self._entry(name, stat.S_IFREG | mode, data)

    def file(self, name, path):
        with open(path, "rb") as f:
            self.data(name, f.read())

    def char(self, name, major, minor):
        self._entry(name, stat.S_IFCHR | 0o600, rdev=(major, minor))

    def bytes(self):
        self._entry("TRAILER!!!", 0)
        return b"".join(self._parts)


class Here:
    """Programs of this machine."""

    @staticmethod
    def which(name):
        return shutil.which(name, path=SEARCH)

    @staticmethod
    @functools.cache
    def libraries(path):
        """Returns the libraries that the dynamic linker loads for a program: (name in the guest, path)."""
        out = subprocess.run(
            ["ldd", path], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
        return [(lib.lstrip("/"), lib) for lib in re.findall(r"(/\S+) \(0x", out)]


class Unpacked:
    """Programs of packages that were unpacked into a directory."""

    def __init__(self, root):
        self._root = root

    def which(self, name):
        return shutil.which(name, path=":".join(self._root + d for d in ("/usr/bin", "/usr/sbin", "/bin", "/sbin")))

    def _library(self, name):
        for d in ("usr/lib", "lib"):
            for path in glob.glob(f"{self._root}/{d}/*/{name}") + glob.glob(f"{self._root}/{d}/{name}"):
                return os.path.realpath(path)
        raise FileNotFoundError(f"{name}: not in {self._root}")

    def libraries(self, path):
        """Returns libraries as Here does. The dynamic linker of any machine searches /lib; it is itself one of the
        files.
        """
        found, todo = {}, [path]
        while todo:
            out = subprocess.run(["readelf", "-dW", todo.pop()], check=True, stdout=subprocess.PIPE, text=True).stdout
            for name in re.findall(r"\(NEEDED\).*\[(.+)\]", out):
                if name not in found:
                    found[name] = self._library(name)
                    todo.append(found[name])
        return [(f"lib/{name}", lib) for name, lib in found.items()]


def _program(cpio, path, dest, where=Here):
    cpio.file(dest, path)
    for name, lib in where.libraries(path):
        cpio.file(name, lib)


def _verbs_providers(cpio):
    """Adds the providers that libibverbs opens at run time, which ldd does not list."""
    for provider in ("rxe", "siw"):
        for conf in glob.glob(f"/etc/libibverbs.d/{provider}.driver"):
            cpio.file(conf.lstrip("/"), conf)
        for lib in glob.glob(f"/usr/lib/*/libibverbs/lib{provider}-rdmav*.so"):
            _program(cpio, os.path.realpath(lib), lib.lstrip("/"))
    # ldd does not list the library that pthread_exit opens either.
    for lib in glob.glob("/lib/*/libgcc_s.so.1"):
        cpio.file(lib.lstrip("/"), lib)


@functools.cache
def agent():
    """Returns the compiled command agent, or None without a compiler. The loop of init.sh then takes its place, and is
    slower.
    """
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "agent")
        cmd = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", out, os.path.join(HERE, "agent.c")]
        try:
            subprocess.run(cmd, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            return None
        with open(out, "rb") as f:
            return f.read()


@functools.cache
def module_data(path):
    """Returns a module's content; a distribution's modules are compressed."""
    with open(path, "rb") as f:
        data = f.read()
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith(".gz"):
        return gzip.decompress(data)
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq"], input=data, check=True, stdout=subprocess.PIPE).stdout
    return data


def module_info(path, field):
    """Returns one field of a module's .modinfo, without kmod."""
    found = re.search(rb"\0%s=([^\0]*)\0" % field.encode(), b"\0" + module_data(path))
    return found[1].decode() if found else ""


def module_depends(path):
    """Returns the names of the modules that a module needs."""
    return [_name(n) for n in module_info(path, "depends").split(",") if n]


def _name(module):
    """Returns the name of a module, from its path or from one of its spellings."""
    return re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(module)).replace("-", "_")


@functools.cache
def _known(tree):
    """Returns the paths of the modules in a kernel's tree, by name."""
    paths = glob.glob(os.path.join(tree, "**", "*.ko*"), recursive=True)
    return {_name(p): p for p in paths if re.search(r"\.ko(\.xz|\.zst|\.gz)?$", p)}


def module_order(tree, wanted, optional=()):
    """Returns the paths of the tree's modules named in `wanted`, dependencies first.

    `optional`: modules that come first, if the tree has them.
    """
    known = _known(tree)
    order = []

    def visit(name):
        path = known.get(name)
        if path is None:
            raise FileNotFoundError(f"no module {name} in {tree}")
        if path not in order:
            for dep in module_depends(path):
                visit(dep)
            order.append(path)

    for name in [n for n in map(_name, optional) if n in known] + [_name(n) for n in wanted]:
        visit(name)
    return order


def build(tree, modules=("rdma_rxe",), files=(), tools=(), userland=None, compiled=True):
    """Returns the bytes of the archive.

    tree:    where the kernel's modules are
    modules: names of modules of the kernel, put (with their dependencies) into
             /modules, where /modules/order lists how to load them
    files:   paths put into /files, or (path, name in the guest) pairs; kernel modules
             that modules among them need are loaded, too
    tools:   more programs of this machine, such as nft, ethtool or rping, or paths of programs
    userland: where to take all programs from instead
    compiled: with the compiled agent, where there is one
    """
    where = Unpacked(userland) if userland else Here
    cpio = Cpio()
    for d in ("proc", "sys", "dev", "tmp", "run", "etc", "share", "modules", "files", "root"):
        cpio.dir(d)
    cpio.char("dev/console", 5, 1)
    cpio.link("sbin", "bin")
    cpio.link("var", "tmp")
    # Commands run in dash because busybox's shell prefers its own ip and tc to the full programs.
    programs = {"busybox": "busybox", "dash": "sh", **{tool: os.path.basename(tool) for tool in (*TOOLS, *tools)}}
    for program, name in programs.items():
        path = where.which(program)
        if path is None:
            missing = f"not in {userland}" if userland else "run scripts/prepare, or install it"
            raise FileNotFoundError(f"{program}: {missing}")
        _program(cpio, os.path.realpath(path), f"bin/{name}", where)
        if not userland and "libibverbs" in str(where.libraries(path)):
            _verbs_providers(cpio)
    files = [(item, os.path.basename(item)) if isinstance(item, str) else item for item in files]
    needed = [dep for path, _ in files if path.endswith(".ko") for dep in module_depends(path)]
    order = module_order(tree, modules, (*BASE, *needed))
    for path in order:
        cpio.data(f"modules/{_name(path)}.ko", module_data(path))
    cpio.data("modules/order", "".join(f"{_name(p)}.ko\n" for p in order).encode())
    for path, name in files:
        cpio.file(name.lstrip("/") if "/" in name else f"files/{name}", path)
    if compiled and not userland and agent() is not None:
        cpio.data("bin/agent", agent())
    cpio.file("init", os.path.join(HERE, "init.sh"))
    return cpio.bytes()
