# SPDX-License-Identifier: GPL-2.0
"""A client with little memory writes more than its memory to a file system, under memory pressure. Run by `make
test-lustre-fs LUSTRE=...`.

Dirty pages become clean when the server has fetched them with GETs, so reclaim waits for the client's driver. Data has
to be right, no connection may end, and no request may time out. The table has the longest time of a GET in the driver.
The row without pressure is for comparison.
"""

import contextlib
import os
import re
import subprocess

import pytest
from conftest import ROOT
from lustre import OURS
from lustrefs import get_times, loads
from lustrefs.lnd_resends import counted
from lustrefs.rxe_mr_errors import TRACEFS
from lustrefs.testbed import MOUNT
from nodes import until
from test_lustre import names
from test_lustre_fs import PAIRINGS, Measure, beds, prober, pytestmark, tree  # noqa: F401

# Memory of the client in MiB. Its initial RAM file system has about 100, although fio is not in it.
MEMORY = 512
SMALL = {"each": ({"memory": MEMORY, "tools": ()}, {"memory": 4096})}
# Files of so many MiB, written at the same time: more than the memory.
FILES, SIZE = 2, 280
# Much dirty data at the client, through the page cache: Lustre would otherwise write large pieces directly. KiB that
# only GFP_ATOMIC gets: soft-RoCE allocates each packet, and a packet without memory ends the connection.
TUNE = """
cd /proc/sys/vm; echo 80 >dirty_ratio; echo 70 >dirty_background_ratio; echo 24576 >min_free_kbytes
lctl set_param -n llite.*.hybrid_io=0 osc.*.max_dirty_mb=110 osc.*.max_rpcs_in_flight=16
"""
# MiB that the hog leaves for the page cache and for a child of its own, which takes half of that again and again.
LEFT = 72
# The kernel's reports about a lack of memory have a trace, like those about defects, which have other lines as well.
MEMORY_REPORT = "Call Trace"
STOP, SAMPLES = "/tmp/stop.hog", "/tmp/meminfo"
SAMPLER = f"while :; do grep -E '^(Dirty|Writeback):' /proc/meminfo | xargs; sleep 0.5; done >{SAMPLES}"


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Returns the paths of memory_hog and pattern_file."""
    paths = []
    for name in ("memory_hog", "pattern_file"):
        paths.append(str(tmp_path_factory.mktemp(name) / name))
        source = os.path.join(ROOT, "tests-vm", "lustrefs", f"{name}.c")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", paths[-1], source], check=True)
    return paths


@pytest.fixture(scope="module", params=PAIRINGS, ids=names)
def pairing(request):
    """Returns the drivers of the client and of the server."""
    return request.param


@pytest.fixture
def bed(beds, pairing, request):  # noqa: F811
    with beds.mounted(request, pairing, **SMALL) as taken:
        yield taken


def queue_pairs(bed):
    """Returns the numbers of the queue pairs of both nodes. A new connection has a new number."""
    return [sorted(re.findall(r"\blqpn (\d+)", node.sh("rdma resource show qp"))) for node in bed.nodes]


PACKET = "rxe_init_packet"
HIST = f"{TRACEFS}/events/kprobes/{PACKET}"
WATCH = f"""
[ -e {HIST} ] || echo 'r:{PACKET} {PACKET} skb=$retval:x64' >>{TRACEFS}/kprobe_events
[ -s {HIST}/hist ] || echo 'hist:keys=skb if skb==0' >{HIST}/trigger
"""


def lost_packets(bed):
    """Returns how many packets soft-RoCE had no memory for, at both nodes since WATCH."""
    return sum(int(n) for node in bed.nodes for n in re.findall(r"hitcount: +(\d+)", node.sh(f"cat {HIST}/hist")))


def retries(bed):
    """Returns how often soft-RoCE sent packets again, at both nodes so far."""
    path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err"
    return sum(int(node.sh(f"cat {path}")) for node in bed.nodes)


def reclaim(node):
    """Returns the allocations that waited for reclaim, and the processes that the OOM killer ended."""
    text = node.sh("cat /proc/vmstat")
    names = r"allocstall_\w+", "oom_kill"
    return [sum(int(n) for n in re.findall(rf"^{name} (\d+)", text, re.MULTILINE)) for name in names]


class Pressure:
    """Memory pressure on a node inside `with`, and its effects afterwards."""

    def __init__(self, node):
        self.node = node

    def __enter__(self):
        node = self.node
        node.sh(f"rm -f {STOP}; : >/tmp/hog")
        self.job = node.guest.spawn(f"/tmp/memory_hog {LEFT} {STOP} >/tmp/hog")
        until(lambda: "ready" in node.sh("cat /tmp/hog"), "the hog has the memory")
        self.before = reclaim(node)
        return self

    def __exit__(self, kind, *_exc):
        node = self.node
        if not node.guest.alive():
            return
        self.stalls, self.kills = (now - was for now, was in zip(reclaim(node), self.before))
        node.sh(f"touch {STOP}")
        status, out = self.job.wait(240)
        assert kind is not None or status == 0, f"memory_hog: {status}: {out}"


def files(node, program, verb):
    """Writes all files at the same time and flushes them to the server, or verifies them. Returns the errors."""
    jobs = [node.guest.spawn(f"{program} {verb} {MOUNT}/dirty.{i} {SIZE} {i}") for i in range(FILES)]
    return [f"{verb}: status {status}: {out}" for status, out in (job.wait(900) for job in jobs) if status]


@pytest.mark.parametrize("pressure", [False, True], ids=["quiet", "pressure"])
def test_dirty_memory(beds, bed, programs, pressure):  # noqa: F811
    """The client writes more than its memory."""
    client = bed.client
    paths = " ".join(client.guest.put(program) for program in programs)
    client.sh(f"cp {paths} /tmp; chmod +x /tmp/memory_hog /tmp/pattern_file; {TUNE}")
    name = f"client of {MEMORY} MiB writes {FILES * SIZE} MiB{', memory pressure' * pressure}"
    with Measure(beds, bed, name, ignore=[MEMORY_REPORT]) as row:
        for node in bed.nodes:
            node.sh(WATCH)
        before, again, waited = queue_pairs(bed), retries(bed), counted(client, "NoMemory")
        hogged = Pressure(client) if pressure else contextlib.nullcontext()
        with get_times.Times(client) as times, hogged:
            began = client.clock()
            sampler = client.guest.spawn(SAMPLER)
            row.errors += files(client, "/tmp/pattern_file", "write")
            took = client.clock() - began
            sampler.kill()
        after, lost, again = queue_pairs(bed), lost_packets(bed), retries(bed) - again
        waited = counted(client, "NoMemory") - waited
        samples = client.sh(f"cat {SAMPLES}").splitlines()
        dirty = max(sum(int(n) for n in re.findall(r": (\d+)", line)) for line in samples)
        bed.drop_caches()
        row.errors += files(client, "/tmp/pattern_file", "verify")
        client.sh(f"rm {MOUNT}/dirty.*")
        row.verified = FILES * SIZE * loads.MIB
        row.note = (
            f"written in {took:.0f} s, at most {dirty >> 10} MiB dirty; {times}; {again} retries of soft-RoCE; "
            f"the driver found no memory {waited} times"
        )
        if pressure:
            row.note += f"; {hogged.stalls} allocations waited for reclaim, {hogged.kills} processes killed"
            assert hogged.stalls, "no allocation waited for memory"
        if before != after:
            row.note += f"; queue pairs were {before}, are {after}; soft-RoCE had no memory for {lost} packets"
        if lost:
            pytest.skip(f"soft-RoCE had no memory for {lost} packets")
        if OURS in bed.pairing:
            assert before == after and not times.failed and not times.unfinished, row.note
            assert row.log.lost() == row.log.timed_out() == 0


def test_unmount(beds, pairing):  # noqa: F811
    """Unmounting and unloading at the end leave nothing behind."""
    if beds.bed is None or beds.bed.pairing != pairing or beds.options != SMALL:
        pytest.skip("the last row failed, and its guests are gone")
    beds.bed.down()
    beds.discard()
