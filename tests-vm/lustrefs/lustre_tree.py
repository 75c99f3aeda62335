# SPDX-License-Identifier: GPL-2.0
"""Lustre tree with a server: modules of server and client, the programs that mount, and fsx.

The targets are osd-wbcfs, which keeps all data in memory. It needs neither a patched ext4 nor ZFS, and so builds for an
unmodified kernel.
"""

import functools
import glob
import os
import subprocess
import tempfile

import lustre
import vm

# Modules that mount a target, and modules that mount the file system. Their dependencies are added.
SERVER = ("osd_wbcfs", "mgs", "mdt", "mdd", "lod", "osp", "ofd", "mgc")
# Later releases have this module in another one.
SERVER_MAYBE = ("ost",)
CLIENT = ("lustre", "mgc", "lmv", "mdc", "lov", "osc")
PLUGIN = "mount_osd_wbcfs.so"
# Programs of this machine. `scripts/prepare fs` installs them.
PROGRAMS = ("fio", "dbench", "nft")
DBENCH_LOAD = "/usr/share/dbench/client.txt"


class NoServer(lustre.Unusable):
    """Tree that was built without a server, or with another kind of target."""


def absent_programs():
    """Returns the PROGRAMS that this machine lacks."""
    return [name for name in PROGRAMS if vm.initramfs.Here.which(name) is None]


class FsTree(lustre.Tree):
    """Built Lustre tree with server and client."""

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
        # In the order of loading, with LNet's modules and without the driver.
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
        """Path of the tree's own fsx, or None: Debian does not package fsx."""
        for part in ("lustre/tests/.libs/fsx", "lustre/tests/fsx"):
            path = os.path.join(self.path, part)
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    if f.read(4) == b"\x7fELF":
                        return path
        return None

    @functools.cached_property
    def _stripped(self):
        """Directory with the modules without debugging information: hundreds of megabytes less to boot."""
        directory = tempfile.TemporaryDirectory(prefix="ro2ib-m")
        for path in self.modules.values():
            out = os.path.join(directory.name, os.path.basename(path))
            subprocess.run(["strip", "--strip-debug", "-o", out, path], check=True)
        return directory

    @functools.cached_property
    def files(self):
        """Files of Tree, the plugin that mounts a target, fsx, and dbench's load."""
        if self.fsx:
            self.tools["fsx"] = self.fsx
        modules = set(self.modules.values())
        files = []
        for item in super().files:
            files.append(os.path.join(self._stripped.name, os.path.basename(item)) if item in modules else item)
        # mount.lustre searches there if LUSTRE is set to it.
        files.append((self._plugin, f"/lustre/utils/{PLUGIN}"))
        # mount.lustre mounts targets if it has this name.
        files.append((self.tools["mount.lustre"], "/bin/mount.lustre_tgt"))
        files.append((DBENCH_LOAD, DBENCH_LOAD))
        return files

    def pair(self, workdir=None, **options):
        return super().pair(workdir=workdir, tools=PROGRAMS, memory=3072, **options)
