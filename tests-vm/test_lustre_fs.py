# SPDX-License-Identifier: GPL-2.0
"""A real Lustre file system, under which drivers, links and nodes come and go. Run by `make test-lustre-fs LUSTRE=...`.

Each row is a test. Data has to be right, no I/O may fail, no client may be evicted that ko2iblnd would not have lost,
and I/O has to continue when the cause is gone. A table lists how long I/O stalled, beside the load average of the
machine. A stall fails the test only above a limit that no noise explains.

WITH=both first runs ko2iblnd on both nodes as well, WITH=all also the mixed pairings. In a pairing the client comes
first. Rows that take the link, the device or the NI of a node are for nodes with ro2iblnd: ko2iblnd does not survive
the first two on rxe, and the third may panic a client with it (Lustre's import.c).
"""

import contextlib
import os
import shutil
import subprocess

import lustrefs.lustre_tree
import pytest
from conftest import BUILT, LOGS, ROOT, tidy
from lustre import KO, OURS, Unusable
from lustrefs import fault_kinds, loads, rxe_mr_errors
from lustrefs.lnd_resends import Again
from lustrefs.testbed import Bed, Log
from lustrefs.table import Clock, Row, Table
from nodes import until
from test_lustre import LUSTRE, names

PAIRINGS = {
    "ours": [(OURS, OURS)],
    "both": [(KO, KO), (OURS, OURS)],
    "mixed": [(OURS, KO), (KO, OURS)],
    "all": [(KO, KO), (OURS, OURS), (OURS, KO), (KO, OURS)],
}[os.environ.get("WITH", "ours")]
# Seconds: the load before a fault and after it, and the longest wait for I/O, which is beyond Lustre's own timeouts: a
# server waits for 100 s for a bulk transfer that its LNet has refused.
BEFORE, AFTER, BACK = 5, 10, 300
# The client's umount on a machine with other work, in seconds.
UNMOUNT = 60
LONG = pytest.mark.long

pytestmark = pytest.mark.skipif(not LUSTRE, reason="no LUSTRE=/path/to/built/tree: real Lustre is not at hand")

# The node that the fault hits.
CLIENT, SERVER, BOTH = "client", "server", "both"
FAULTS = [
    (fault_kinds.device, CLIENT),
    pytest.param(fault_kinds.device, SERVER, marks=LONG),
    (fault_kinds.interface, CLIENT),
    pytest.param(fault_kinds.interface, SERVER, marks=LONG),
    pytest.param(fault_kinds.carrier, CLIENT, marks=LONG),
    (fault_kinds.carrier, SERVER),
    (fault_kinds.silence, BOTH),
    pytest.param(fault_kinds.loss, BOTH, marks=LONG),
    pytest.param(fault_kinds.more_loss, BOTH, marks=LONG),
    pytest.param(fault_kinds.ni, CLIENT, marks=LONG),
    (fault_kinds.ni, SERVER),
    (fault_kinds.reload, SERVER),
    pytest.param(fault_kinds.swap, SERVER, marks=LONG),
]
# Parameters of ro2iblnd and options of `lnetctl net add`. A depth of 8 is LNet's minimum, and the default.
SETTINGS = {
    "conns_per_peer 4": ("", "--conns-per-peer 4"),
    "checksums": ("cksum=1", ""),
    "depth 8": ("", "--peer-credits 8"),
    "depth 32": ("", "--peer-credits 32 --credits 256"),
}
PLAIN = ("", "")
# Block size, order, direct, size of the file, and number of I/Os in parallel.
CELLS = [
    (bs, order, direct, size, depth)
    for bs, size, depth in (("4k", "2m", 8), ("1m", "32m", 4))
    for order in ("write", "randwrite")
    for direct in (True, False)
]


def cell_name(cell):
    bs, order, direct, _size, _depth = cell
    return f"fio {bs} {'random' if order == 'randwrite' else 'sequential'} {'direct' if direct else 'buffered'}"


class Beds:
    """Mounted file systems, each used by one test after the other. After a failure the next test gets a new one."""

    def __init__(self, tree, prober, table):
        self.tree, self.prober, self.table = tree, prober, table
        self.bed = self.path = None
        # Options of FsTree.pair() that the guests were booted with.
        self.options = {}
        self.stack, self.count = contextlib.ExitStack(), 0

    def take(self, pairing, setting=PLAIN, **options):
        same = self.bed is not None and (self.bed.pairing, self.options) == (pairing, options)
        if self.bed is not None and not (same and all(g.alive() for g in self.bed.guests)):
            self.discard()
        try:
            if self.bed is None:
                self._boot(pairing, options)
                self.bed.up(setting)
            elif self.bed.setting != setting:
                self.bed.remount_as(setting)
        except BaseException:
            self.discard()
            raise
        return self.bed

    def _boot(self, pairing, options):
        self.path = os.path.join(LOGS, f"lustre-fs-{names(pairing)}-{self.count}")
        self.count += 1
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)
        self.stack.callback(tidy, self.path)
        guests = self.stack.enter_context(self.tree.pair(workdir=self.path, **options))
        self.options = options
        self.bed = Bed(self.tree, guests, pairing, self.prober)

    @contextlib.contextmanager
    def mounted(self, request, pairing, **how):
        """Provides the mounted file system for one test. A test that fails discards it."""
        taken = self.take(pairing, **how)
        yield taken
        if getattr(request.node, "failed_call", True):
            for guest in taken.guests:
                lines = guest.console().splitlines()[-80:]
                request.node.add_report_section("teardown", f"{guest.name}, all of it in {self.path}", "\n".join(lines))
            self.discard()

    def discard(self):
        self.bed = None
        self.stack.close()


@pytest.fixture(scope="session")
def tree():
    try:
        found = lustrefs.lustre_tree.FsTree(LUSTRE, BUILT)
    except lustrefs.lustre_tree.NoServer as e:
        pytest.skip(str(e))
    except Unusable as e:
        pytest.fail(str(e), pytrace=False)
    absent = lustrefs.lustre_tree.absent_programs()
    if absent:
        pytest.fail(f"not on this machine: {', '.join(absent)}: run scripts/prepare fs", pytrace=False)
    return found


@pytest.fixture(scope="session")
def prober(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("prober") / "prober")
    source = os.path.join(ROOT, "tests-vm", "lustrefs", "prober.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", out, source], check=True)
    return out


@pytest.fixture(scope="session")
def beds(tree, prober, request):
    table = Table(os.path.join(LOGS, "lustre-fs.md"))
    beds = Beds(tree, prober, table)
    yield beds
    beds.discard()
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        terminal.write(f"\n\n{table.text()}\n")


@pytest.fixture(scope="module", params=PAIRINGS, ids=names)
def pairing(request):
    """Returns the drivers of the client and of the server. All tests of one pairing run before those of the next."""
    return request.param


@pytest.fixture
def bed(beds, pairing, request):
    setting = request.node.callspec.params.get("setting")  # of test_setting
    with beds.mounted(request, pairing, setting=SETTINGS[setting] if setting else PLAIN) as taken:
        yield taken


class Measure:
    """Row while it is measured: context manager that adds a line to the table and fails the test if the row is bad."""

    def __init__(self, beds, bed, name, evictions=0, ignore=()):
        self.beds, self.bed, self.name = beds, bed, name
        # Patterns of lines of the kernel log that the row provokes.
        self.ignore = ignore
        # Number of evictions that the row itself causes.
        self.allowed = evictions
        self.pairing = bed.pairing
        self.verified, self.errors = 0, []
        self.stall = self.after = self.worst = None
        self.note = ""

    def __enter__(self):
        for node in self.bed.nodes:
            rxe_mr_errors.watch(node)
        self.before = [rxe_mr_errors.count(node) for node in self.bed.nodes]
        self.again = Again(self.bed.nodes)
        self.log, self.clock = Log(self.bed), Clock()
        return self

    def load(self, load):
        """Adds the results of the row's load."""
        self.verified += load.verified
        self.errors += load.errors()
        self.worst = load.worst

    def fio(self, result):
        self.verified += result.verified
        self.errors += result.errors
        self.worst = max(self.worst or 0.0, result.worst)

    def __exit__(self, kind, *_exc):
        took, load = self.clock.stop()
        evicted = max(0, self.log.evictions() - self.log.unasked())
        failed = len(self.errors) + (kind is not None and not self.errors)
        # The counter of a client that was rebooted starts at zero, and is read from then on.
        counts = [rxe_mr_errors.count(node) for node in self.bed.nodes] if kind is None else self.before
        refusals = [max(0, now - before) for now, before in zip(counts, self.before)]
        again = self.again.look() if kind is None else self.again.counts
        if self.log.by_mgs():
            self.note = f"{self.log.by_mgs()} evicted by the MGS {self.note}"
        if kind is not None:
            self.note = f"failed: {self.note}"
        self.beds.table.add(
            Row(
                self.name, self.pairing, self.verified, failed, evicted, self.log.lost(), self.log.timed_out(),
                refusals, again, self.stall, self.after, self.worst, took, load, self.note,
            )  # fmt: skip
        )
        if kind is not None:
            return
        assert not self.errors, "\n".join(self.errors)
        # None: the load itself counts its operations.
        assert self.verified is None or self.verified > 0, "nothing was verified"
        as_ko = self.beds.table.evictions(self.name, (KO, KO))
        if OURS in self.pairing:
            assert evicted <= max(self.allowed, as_ko), f"{evicted} evictions, {as_ko} with ko2iblnd"
        for node, count in zip(self.bed.nodes, refusals):
            assert count == 0 or node.had_ko, f"{node.guest.name}: {count} of its registrations were refused"
        splats = self.log.splats(self.ignore)
        assert not splats, "\n".join(splats)


@pytest.fixture
def measure(beds, bed):
    def measure(name, **options):
        return Measure(beds, bed, name, **options)

    return measure


@pytest.mark.parametrize("cell", CELLS, ids=cell_name)
def test_fio(bed, measure, cell):
    """Data that fio writes and reads back from the server is right: every block has a checksum."""
    bs, order, direct, size, depth = cell
    with measure(cell_name(cell)) as row:
        row.fio(loads.fio(bed, "cell", direct, f"--bs={bs} --rw={order} --size={size} --iodepth={depth}"))


def test_fsx(bed, measure, tree, pytestconfig):
    """Reads and writes of all sizes at all offsets, by calls and by mappings, match a copy in memory."""
    if tree.fsx is None:
        pytest.skip(f"no lustre/tests/fsx under {tree.path}: build its tests; Debian packages none")
    count = 3000 if pytestconfig.getoption("--long") else 600
    with measure("fsx") as row:
        row.errors += loads.fsx(bed, count, seed=1)
        row.verified = None
        row.note = f"2 x {count} operations"


def test_dbench(bed, measure, pytestconfig):
    """dbench, which checks each answer to an office's clients, finds no fault."""
    seconds = 60 if pytestconfig.getoption("--long") else 15
    with measure("dbench") as row:
        rate, bad = loads.dbench(bed, 4, seconds)
        row.errors += bad
        row.verified = None
        row.note = f"4 clients for {seconds} s, {rate:.2f} MB/s"


def test_tree(bed, measure, pytestconfig):
    """A tree of many files is unpacked, and the checksum of each file is right."""
    files = 400 if pytestconfig.getoption("--long") else 100
    with measure("tree, sha256") as row:
        row.verified, bad = loads.tree(bed, files)
        row.errors += bad
        row.note = f"{files} files"


def test_quiet(bed, measure):
    """The load of the rows below runs without a fault. Its stalls are those of the machine."""
    with measure("no fault") as row:
        with loads.Load(bed) as load:
            until_time(bed, load, BEFORE + 15)
        row.load(load)
        row.stall = load.longest()


def until_time(bed, load, seconds):
    """Runs the load for `seconds`, and waits until the prober completes a round after that."""
    start = bed.client.clock()
    until(
        lambda: any(began > start + seconds for began, _, _ in load.probes()),
        f"the file system answers {seconds} s later",
        timeout=seconds + BACK,
        pause=1,
    )


@pytest.mark.parametrize(("event", "where"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_fault(bed, measure, event, where):
    """A part goes away and comes back under verified I/O."""
    node = None if where == BOTH else bed.role(where)
    if node is not None and node.lnd != OURS:
        pytest.skip(f"the {where} has {node.lnd}")
    disturb(bed, measure, event.__doc__ if where == BOTH else f"{where}: {event.__doc__}", event, node)


@LONG
@pytest.mark.parametrize("run", range(2, 6))
def test_more_loss_again(bed, measure, pairing, run):
    """The row with more loss passes in five runs, because one run may pass by luck."""
    if pairing != (OURS, OURS):
        pytest.skip("of ro2iblnd on both nodes only")
    disturb(bed, measure, f"{fault_kinds.more_loss.__doc__}, run {run}", fault_kinds.more_loss, None)


def disturb(bed, measure, name, event, node):
    """Measures a row with `event` under verified I/O."""
    with measure(name) as row:
        with loads.Load(bed) as load:
            until_time(bed, load, BEFORE)
            began = bed.client.clock()
            row.note = event(bed, node) or ""
            gone = bed.client.clock()
            until_time(bed, load, AFTER)
        row.load(load)
        row.stall, row.after = load.longest(began), load.stalled_after(gone)


@LONG
def test_client_killed(bed, measure):
    """The client loses its power under load, boots, mounts, and reads and writes again. The server evicts the old
    client as soon as that blocks the new one."""
    with measure("client killed and booted", evictions=2) as row:
        load = loads.Load(bed)
        load.start()
        until_time(bed, load, BEFORE)
        bed.mounted = False
        row.note = f"mounted {bed.reboot_client():.1f} s after its modules were loaded"
        with loads.Load(bed) as load:
            until_time(bed, load, AFTER)
        row.load(load)
        row.stall = load.longest()


@LONG
@pytest.mark.parametrize("setting", SETTINGS)
def test_setting(bed, measure, pairing, setting):
    """The file system works when it is mounted again with other options on both nodes."""
    if SETTINGS[setting][0] and OURS not in pairing:
        pytest.skip("ko2iblnd cannot do this with itself")
    with measure(setting) as row:
        with loads.Load(bed) as load:
            until_time(bed, load, BEFORE + 15)
            row.note = in_force(bed, setting)
        row.load(load)
        row.stall = load.longest()


def in_force(bed, setting):
    """Checks that the nodes apply the setting. Returns its visible effect."""
    client, server = bed.nodes
    conns = len([line for line in client.conns() if line.startswith(f"{server.nid} ")])
    credits = [node.tunable("peer_credits") for node in bed.nodes]
    if setting.startswith("conns_per_peer"):
        assert conns == int(setting.split()[1]), conns
    if setting.startswith("depth"):
        assert credits == [int(setting.split()[1])] * 2, credits
    if setting == "checksums":
        for node in (n for n in bed.nodes if n.lnd == OURS):
            assert node.sh(f"cat /sys/module/{OURS}/parameters/cksum").strip() == "1", node.guest.name
    return f"{conns} connections, peer_credits {credits[0]}"


def test_unmount(beds, pairing):
    """Unmounting and unloading at the end leave nothing behind."""
    if beds.bed is None or beds.bed.pairing != pairing:
        pytest.skip("the last row failed, and its guests are gone")
    clock = Clock()
    took = beds.bed.down()
    print(f"{names(pairing)}: the client unmounted in {took:.1f} s, all down after {clock.stop()[0]:.1f} s")
    beds.discard()
    assert took < UNMOUNT
