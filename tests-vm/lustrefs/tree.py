# SPDX-License-Identifier: GPL-2.0
"""A Lustre tree with a server: modules of server and client, the programs that mount, and fsx.

The targets are osd-wbcfs, which keeps everything in memory: it needs neither a patched ext4 nor ZFS, and so
builds for a kernel as it is."""

import functools
import glob
import os
import subprocess
import tempfile

import lustre
import vm

# What mounts a target, and what mounts the file system; each brings what it depends on.
SERVER = ("osd_wbcfs", "mgs", "mdt", "mdd", "lod", "osp", "ofd", "mgc")
# A part of another in later releases.
SERVER_MAYBE = ("ost",)
CLIENT = ("lustre", "mgc", "lmv", "mdc", "lov", "osc")
PLUGIN = "mount_osd_wbcfs.so"
# Of this machine. `scripts/prepare fs` installs them.
PROGRAMS = ("fio", "dbench", "nft")
DBENCH_LOAD = "/usr/share/dbench/client.txt"


class NoServer(lustre.Unusable):
    """The tree was built without a server, or with another kind of target."""


def absent_programs():
    """What of PROGRAMS is not on this machine."""
    return [name for name in PROGRAMS if vm.initramfs.Here.which(name) is None]


class FsTree(lustre.Tree):
    """A built Lustre tree with server and client."""

    programs = (*lustre.TOOLS, "mount.lustre")

    def __init__(self, path, built):
        top = os.path.abspath(path)
        self._known = {
            os.path.basename(p).removesuffix(".ko"): p
            for part in ("lnet", "libcfs", "lustre", "lustre_compat")
            for p in glob.glob(os.path.join(top, part, "**", "*.ko"), recursive=True)
        }
        absent = sorted({name for name in (*SERVER, *CLIENT) if name not in self._known})
        plugins = glob.glob(os.path.join(top, "lustre", "utils", "**", PLUGIN), recursive=True)
        if absent or not plugins:
            raise NoServer(
                f"{top} has no {', '.join(absent) or PLUGIN}: configure it with --enable-server --disable-ldiskfs "
                "--without-zfs (Lustre 2.17 or later, for osd-wbcfs)"
            )
        self._plugin = plugins[0]
        super().__init__(path, built)
        # In the order of loading; LNet's modules are in it, the driver is not.
        self.server, self.client = self._order((*SERVER, *SERVER_MAYBE)), self._order(CLIENT)
        for name in (*self.server, *self.client):
            self.modules[name] = self._known[name]
        self.release = vm.initramfs.module_info(self.modules["lnet"], "vermagic").split()[0]

    def _order(self, wanted):
        order = []

        def visit(name):
            if name in self._known and name not in order:
                for dep in vm.initramfs.module_depends(self._known[name]):
                    visit(dep)
                order.append(name)

        for name in wanted:
            visit(name)
        return order

    @functools.cached_property
    def fsx(self):
        """The tree's own fsx, or None: Debian packages none."""
        for part in ("lustre/tests/.libs/fsx", "lustre/tests/fsx"):
            path = os.path.join(self.path, part)
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    if f.read(4) == b"\x7fELF":
                        return path
        return None

    @functools.cached_property
    def _stripped(self):
        """A directory with the modules without debugging information: hundreds of megabytes less to boot."""
        directory = tempfile.TemporaryDirectory(prefix="ro2ib-m")
        for path in self.modules.values():
            out = os.path.join(directory.name, os.path.basename(path))
            subprocess.run(["strip", "--strip-debug", "-o", out, path], check=True)
        return directory

    @functools.cached_property
    def files(self):
        """As of Tree, with the plugin that mounts a target, fsx, and dbench's load."""
        if self.fsx:
            self.tools["fsx"] = self.fsx
        modules = set(self.modules.values())
        files = []
        for item in super().files:
            files.append(os.path.join(self._stripped.name, os.path.basename(item)) if item in modules else item)
        # mount.lustre looks there if LUSTRE says so.
        files.append((self._plugin, f"/lustre/utils/{PLUGIN}"))
        # By that name it mounts targets.
        files.append((self.tools["mount.lustre"], "/bin/mount.lustre_tgt"))
        files.append((DBENCH_LOAD, DBENCH_LOAD))
        return files

    def pair(self, workdir=None, **options):
        return super().pair(workdir=workdir, modules=lustre.filters(), tools=PROGRAMS, memory=3072, **options)
