# SPDX-License-Identifier: GPL-2.0
"""Two nodes of a file system: from no module to a mounted file system, and back.

The server has a metadata target, which is the management target as well, and an object target, both in its memory:
their data is gone after the unmount. In a pairing the client comes first.
"""

import contextlib
import re
import time

import lustre
import vm
from lustre import KO, OURS
from nodes import together, until

NAME = "scratch"
MOUNT = "/mnt/client"
TARGETS = {
    "mdt": "OSD_WBC_TGT_TYPE=MDT OSD_WBC_PRIMARY_MDT=1",
    "ost": "OSD_WBC_TGT_TYPE=OST OSD_WBC_PRIMARY_MDT=0",
}
# Lustre's first requests have no receiver, and Lustre waits for its timeouts.
MOUNTING = 240
UNMOUNTING = 180
# Log lines about an evicted client, on either side. Both sides log each eviction.
EVICTED_CLIENT = re.compile(r"This client was evicted by|Evicted from|evicted/aborted by")
EVICTED_SERVER = re.compile(r"I am evicting it|evicting client")
# The server's reason, and a callback that LNet refused: LNet had no NI to send it with, because an administrator had
# deleted it. Lustre does not repeat the callback, but waits for its answer.
EXPIRED = re.compile(r"^\[ *(\d+\.\d+)\] .*lock callback timer expired after (\d+)s: evicting client .* ns: (?:\w+-)?(\w+(?:-\w+)?)")
NO_NI = re.compile(r"^\[ *(\d+\.\d+)\] LNetError: (\d+):.*(?:has no available nets|is not a local nid)")
NOT_SENT = re.compile(r"^\[ *(\d+\.\d+)\] Lustre: (\d+):.*has failed due to network error: .* o104->(\w+(?:-\w+)?)@")
BY_MGS = re.compile(r"ns: MGS |(?:by|from) MGS\b")
TIMED_OUT = re.compile(r"Request sent has timed out for slow reply")
LEAKED = re.compile(r"memory leaked|leaked: [1-9]")
LOST = re.compile(r"Connection to \S+ \(at \S+\) was lost")


class FsNode(lustre.Node):
    """Node with Lustre's modules. `order` has the modules in the order of loading."""

    def __init__(self, guest, lnd, order):
        super().__init__(guest, lnd)
        self.order, self.options, self.params = order, "", ""
        self.had_ko = False

    def up(self, params="", options="", selftest=False):
        """Loads everything up to an NI and Lustre's modules."""
        self.params, self.options = params, options
        self.had_ko |= self.lnd == KO
        super().up(params, options, selftest)
        loaded = {line.split()[0] for line in self.sh("cat /proc/modules").splitlines()}
        for name in self.order:
            if name not in loaded:
                self.sh(f"insmod /files/{name}.ko", 120)
        # The test counts all lines, so the limit of the log's rate is off.
        self.sh("echo 0 >/sys/module/libcfs/parameters/libcfs_console_ratelimit")

    def unload(self, timeout=60):
        loaded = {line.split()[0] for line in self.sh("cat /proc/modules").splitlines()}
        for name in reversed(self.order):
            if name in loaded and name not in lustre.UNLOAD:
                self.sh(f"rmmod {name}", timeout)
        return super().unload(timeout)

    def swap(self, lnd):
        """Replaces the driver under a mounted file system, or reloads it. Returns the seconds that the NI's deletion
        took."""
        took = self.net_del(120)
        self.sh(f"rmmod {self.lnd}")
        self.lnd = lnd
        self.had_ko |= lnd == KO
        self.sh(f"insmod /files/{lnd}.ko {self.params}")
        self.net_add(self.options)
        return took

    def clock(self):
        """Returns the seconds since boot, by the clock that the prober writes down."""
        return float(self.sh("cat /proc/uptime").split()[0])


class Bed:
    """Server and client. `pairing` has the drivers of the client and of the server, `prober` the program on this
    machine."""

    def __init__(self, tree, guests, pairing, prober):
        self.tree, self.guests, self.pairing, self.prober = tree, guests, pairing, prober
        self.client, self.server = (
            FsNode(guest, lnd, order) for guest, lnd, order in zip(guests, pairing, (tree.client, tree.server))
        )
        for node in self.nodes:
            release = node.sh("uname -r").strip()
            if release != tree.release:
                text = f"the tree was built for {tree.release}, the guests boot {release}: see KERNEL_FLAVOR and STOCK"
                raise lustre.Unusable(text)
            node.before = node.rdma_objects()
        self.mounted, self.setting = False, None

    @property
    def nodes(self):
        return self.client, self.server

    def role(self, name):
        return {"client": self.client, "server": self.server}[name]

    def up(self, setting=("", "")):
        """Loads modules, adds NIs, starts targets and mounts. `setting` has parameters of ro2iblnd and options of
        `lnetctl net add`. Returns the seconds that the client took to mount."""
        params, options = setting
        together(lambda n: n.up(params if n.lnd == OURS else "", options), *self.nodes)
        for name, env in TARGETS.items():
            self._mount_target(name, env)
        self.server.sh("lctl set_param -n mdt.*.identity_upcall=NONE")
        self.setting = setting
        return self.mount()

    def _mount_target(self, name, env):
        env = f"LUSTRE=/lustre OSD_WBC_FSNAME={NAME} OSD_WBC_INDEX=0 OSD_WBC_MGS_NID={self.server.nid} {env}"
        self.server.sh(f"mkdir -p /mnt/{name}; {env} mount.lustre_tgt -n lustre-wbcfs /mnt/{name}", MOUNTING)

    def mount(self):
        began = time.monotonic()
        # No entry in an mtab, because nothing would remove the entry.
        self.client.sh(f"mkdir -p {MOUNT}; mount.lustre -n {self.server.nid}:/{NAME} {MOUNT}", MOUNTING)
        self.mounted = True
        return time.monotonic() - began

    def remount_as(self, setting):
        """Takes everything down, and up again with other options. The server's data is gone."""
        self.down()
        return self.up(setting)

    def down(self):
        """Unmounts and unloads everything. Returns the seconds that the client took to unmount."""
        took = self.unmount()
        self.unload()
        return took

    def unmount(self):
        """Unmounts the client and the targets. Returns the seconds that the client took."""
        began = time.monotonic()
        if self.mounted:
            self.client.sh(f"umount {MOUNT}", UNMOUNTING)
        took = time.monotonic() - began
        self.mounted = False
        for name in reversed(TARGETS):
            self.server.sh(f"umount /mnt/{name}", UNMOUNTING)
        return took

    def unload(self):
        """Unloads all modules after the unmount. No module may be left."""
        for node in self.nodes:
            left = node.unload()
            assert left == {}, f"{node.guest.name}: modules are still in use: {left}"
            if not node.had_ko:
                with contextlib.suppress(TimeoutError):
                    until(lambda node=node: node.rdma_objects() == node.before, "as before", timeout=30)
                assert node.rdma_objects() == node.before, node.guest.name

    def reboot_client(self):
        """Cuts the client's power, boots and mounts. Returns the seconds from its NI to the mount."""
        guest = self.client.guest
        guest.kill()
        guest.start()
        vm.setup_link(guest)
        self.client.up(self.client.params, self.client.options)
        return self.mount()

    def drop_caches(self):
        """Drops the client's caches, so that its next reads go to the server."""
        clear = "lctl set_param -n ldlm.namespaces.*.lru_size=clear >/dev/null"
        self.client.sh(f"{clear}; sync; echo 3 >/proc/sys/vm/drop_caches", 120)


def for_want_of_an_ni(text, before=""):
    """Returns the number of evictions in a server's log of clients that were never asked for the lock, because LNet had
    no NI in the two minutes before. These may be in `before`, the log before that text."""
    refused, unsent, count = [], [], 0
    earlier = before.splitlines()
    for number, line in enumerate(earlier + text.splitlines()):
        if found := NO_NI.search(line):
            refused.append((float(found[1]), found[2]))
        elif found := NOT_SENT.search(line):
            at = float(found[1])
            if any(pid == found[2] and 0 <= at - when < 1 for when, pid in refused):
                unsent.append((at, found[3]))
        elif number >= len(earlier) and (found := EXPIRED.search(line)):
            at, waited = float(found[1]), int(found[2])
            target = found[3].removesuffix("_UUID")
            # Lustre's timers are late by some seconds.
            count += any(target == to and 0 <= at - when - waited < 15 for when, to in unsent)
    return count


class Log:
    """Log of the kernels of a bed from now on."""

    def __init__(self, bed):
        self.bed = bed
        self.start = [(n.guest.proc.pid, len(n.guest.console())) for n in bed.nodes]

    def text(self):
        texts = []
        for node, (pid, start) in zip(self.bed.nodes, self.start):
            # A guest that was rebooted has started another file.
            texts.append(node.guest.console()[start if node.guest.proc.pid == pid else 0 :])
        return texts

    def _evictions(self, wanted):
        client, server = (text.splitlines() for text in self.text())
        return max(
            sum(bool(pattern.search(line)) and wanted(line) for line in lines)
            for pattern, lines in ((EVICTED_CLIENT, client), (EVICTED_SERVER, server))
        )

    def evictions(self):
        return self._evictions(lambda line: not BY_MGS.search(line))

    def by_mgs(self):
        """Returns the number of evictions by the MGS. Each costs the client one lock, on the configuration of the file
        system, which it takes again. Its files are not affected. The cause is a lost lock callback, which Lustre does
        not resend."""
        return self._evictions(lambda line: bool(BY_MGS.search(line)))

    def unasked(self):
        """Returns the number of evictions that no driver had a part in."""
        server = self.text()[1]
        console = self.bed.nodes[1].guest.console()
        others = "\n".join(line for line in server.splitlines() if not (EXPIRED.search(line) and BY_MGS.search(line)))
        return for_want_of_an_ni(others, console.removesuffix(server))

    def lost(self):
        return sum(len(LOST.findall(text)) for text in self.text())

    def timed_out(self):
        """Returns the number of the client's requests whose answer did not come within Lustre's own time."""
        return len(TIMED_OUT.findall(self.text()[0]))

    def leaks(self):
        """Returns the lines of Lustre's modules about their own memory leaks at unload."""
        return [line for text in self.text() for line in text.splitlines() if LEAKED.search(line)]

    def splats(self, ignore=()):
        """Returns splats of nodes that have had no driver except ro2iblnd. `ignore`: see vm.splats()."""
        found = []
        for node, text in zip(self.bed.nodes, self.text()):
            if not node.had_ko:
                found += [f"{node.guest.name}: {line}" for line in vm.splats(text, ignore)]
        return found
