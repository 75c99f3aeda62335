# SPDX-License-Identifier: GPL-2.0
"""A Lustre file system in long use, with faults that are drawn from a seed. Run by `make soak-lustre-fs LUSTRE=...`:
--seconds sets the length, --seed the faults.

Data has to be right, no I/O may fail, no client may be evicted, and I/O has to continue after each fault. After unmount
and unload nothing may be left: no connection, message, module, RDMA object, and no memory.
"""

import contextlib
import os
import random
import re
import shutil
import statistics
import time

import pytest
from conftest import LOGS, tidy
from link_flap import gsi
from lustre import DEBUGFS, OURS
from lustrefs import fault_schedule, loads
from lustrefs.lnd_resends import Again
from lustrefs.testbed import Bed, Log
from lustrefs.loads import MIB
from lustrefs.table import Clock
from nodes import until
from test_lustre import names
from test_lustre_fs import PAIRINGS, UNMOUNT, prober, pytestmark, tree  # noqa: F401

# Seconds of load before the faults, and at the end.
QUIET = 10
TREE = 24
# KiB that the guest's kernel keeps for itself after a soak, beyond those after a short run.
KEPT_KIB = 24 << 10
PROBES = 400
# Lustre repeats a request for a lost answer after a timeout, and has learnt from earlier faults that answers take long:
# at_max limits that time. Much I/O delays its check, too. See "Long stalls of Lustre" in
# Documentation/ko2iblnd-differences.md.
AT_MAX = 600
HUNG = "/proc/sys/kernel/hung_task_timeout_secs"
# After a stall of this many seconds the test collects the driver's state, LNet's state of its peers, and the stacks of
# Lustre's and LNet's threads.
ODD = 60
STATE = f"""
grep . {DEBUGFS}/ro2iblnd/*
for nid in $(lnetctl peer show | sed -n 's/.*primary nid: //p'); do lnetctl peer show -v 4 --nid $nid; done
lnetctl net show -v 4; lnetctl stats show
cd /proc; for p in [0-9]*; do
    case $(cat $p/comm 2>/dev/null) in ll_*|mdt*|ldlm*|lnet_*|monitor*|ptlrpcd*|prober|fio|kworker*) ;; *) continue ;; esac
    grep -qE 'ptlrpc|lnet|ro2iblnd|lustre|ldlm' $p/stack 2>/dev/null && echo "== $p $(cat $p/comm)" && cat $p/stack
done
"""


def sizes(node):
    """Returns sizes of a guest's memory, in KiB, with empty caches."""
    node.sh("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; echo 3 >/proc/sys/vm/drop_caches", 120)
    found = dict(re.findall(r"^(\w+): +(\d+)", node.sh("cat /proc/meminfo"), re.MULTILINE))
    return {key: int(found[key]) for key in ("MemFree", "SUnreclaim", "VmallocUsed", "Percpu")}


def is_idle(node):
    """Returns whether the driver has no connection, no waiting message, and no DREQ without its answer."""
    status, text = node.guest.run(f"cat {DEBUGFS}/ro2iblnd/*@*")
    assert status == 0, text
    nis = [line for line in text.splitlines() if line.startswith("ni=")]
    assert nis, text
    return all(f" {key}=0" in line for line in nis for key in ("conns", "waiting", "lingering"))


class Blow:
    """Fault and its effect, with its begin and the end of its cause by the client's clock."""

    def __init__(self, fault, began, gone):
        self.fault, self.began, self.gone = fault, began, gone

    def stall(self, rounds, until_next):
        """Returns (longest round of the prober, seconds from the end of the cause to the end of the next round)."""
        hit = [(b, e) for b, e, _ in rounds if e > self.began and b < until_next]
        longest = max((e - b for b, e in hit), default=0.0)
        return longest, min((e for _, e in hit if e > self.gone), default=self.gone) - self.gone


class Soak:
    def __init__(self, bed, seed, path):
        self.bed, self.faults, self.blows, self.path = bed, fault_schedule.faults(seed), [], path
        self.again = Again(bed.nodes)

    def collect(self):
        """Writes the waits of both nodes into files beside their consoles."""
        for node in self.bed.nodes:
            path = os.path.join(self.path, f"waits-{len(self.blows)}.{node.guest.name}")
            with open(path, "w", encoding="utf-8") as f:
                f.write(node.guest.run(STATE, 120)[1])

    def answered(self, load):
        """Waits until the file system answers a new request. Returns the seconds that took."""
        asked = self.bed.client.clock()
        collected = False

        def answers():
            nonlocal collected
            if not collected and self.bed.client.clock() - asked > ODD:
                collected = True
                self.collect()
            return any(began > asked for began, _, _ in load.probes(PROBES))

        until(answers, f"the file system answers, fault {len(self.blows)}", timeout=AT_MAX, pause=1)
        return self.bed.client.clock() - asked

    def run(self, load, trees, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault = next(self.faults)
            hit = None if fault.where == fault_schedule.BOTH else self.bed.role(fault.where)
            if hit is not None and hit.lnd != OURS:
                continue
            with loads.calm(self.bed) if fault.takes_ni_of(fault_schedule.SERVER) else contextlib.nullcontext():
                began = self.bed.client.clock()
                note = fault.event(self.bed, hit, *fault.args) or ""
            gone = self.bed.client.clock()
            self.blows.append(Blow(fault, began, gone))
            took = self.answered(load)
            self.again.look()
            print(f"{len(self.blows)}. at {began:.0f} s {fault} {note}: {took:.1f} s", flush=True)
            for node in self.bed.nodes:
                assert gsi(node) == "RTS", f"{node.guest.name}: {fault}: the CM's queue pair is {gsi(node)}"
            assert not load.has_failed() and not trees.has_failed(), f"I/O failed, the last fault was {fault}"
            time.sleep(fault.pause)

    def table(self, rounds):
        """Returns a line for each kind of fault."""
        spent = {}
        ends = [blow.began for blow in self.blows[1:]] + [float("inf")]
        for blow, end in zip(self.blows, ends):
            spent.setdefault(blow.fault.event.__name__, []).append(blow.stall(rounds, end))
        lines = ["| fault | times | longest stall, s: median | worst | through after the cause, s: median | worst |", f"|{'---|' * 6}"]
        for kind, both in sorted(spent.items()):
            figures = [f"{f(values):.1f}" for values in zip(*both) for f in (statistics.median, max)]
            lines.append(f"| {kind} | {len(both)} | {' | '.join(figures)} |")
        return "\n".join(lines)


def short_use(bed):
    """Runs up, a little I/O and down, so that the kernel makes its permanent allocations. Returns the memory of both
    nodes afterwards."""
    bed.up()
    with loads.Load(bed, loops=()) as load, loads.Trees(bed, TREE, 0) as trees:
        time.sleep(QUIET)
    assert not load.errors() and not trees.bad
    bed.down()
    return [sizes(node) for node in bed.nodes]


@pytest.mark.parametrize("pairing", PAIRINGS, ids=names)
def test_soak(tree, prober, pairing, pytestconfig, record_property):  # noqa: F811
    long = pytestconfig.getoption("--long")
    seconds = pytestconfig.getoption("--seconds") or (3600 if long else 180)
    seed = pytestconfig.getoption("--seed")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    # Printed first, in case the soak does not end.
    print(f"soak of {seconds} s, --seed {seed}", flush=True)
    path = os.path.join(LOGS, f"lustre-soak-{names(pairing)}")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with contextlib.ExitStack() as stack:
        stack.callback(tidy, path)
        guests = stack.enter_context(tree.pair(workdir=path))
        bed = Bed(tree, guests, pairing, prober)
        for node in bed.nodes:
            # A wait of up to that time is no splat.
            node.sh(f"[ ! -e {HUNG} ] || echo {AT_MAX} >{HUNG}")
        before = short_use(bed)
        log, clock = Log(bed), Clock()
        bed.up()
        soak = Soak(bed, seed, path)
        with loads.Load(bed) as load, loads.Trees(bed, TREE, seed) as trees:
            time.sleep(QUIET)
            soak.run(load, trees, seconds)
            time.sleep(QUIET)
            soak.answered(load)
            # Both loads stop together: while one runs, Lustre may not notice for minutes that an answer to the other
            # was lost.
            for one in (load, trees):
                one.stop()
        unmounted = bed.unmount()
        for node in (n for n in bed.nodes if n.lnd == OURS):
            node.sh("lctl --net o2ib disconnect || :")
        for node in (n for n in bed.nodes if n.lnd == OURS):
            until(lambda node=node: is_idle(node), f"{node.guest.name}: the driver has nothing to do", timeout=60)
        bed.unload()
        bed.client.sh("rm -rf /tmp/fio.* /tmp/run.* /tmp/probes /tmp/tree*")
        took, load_average = clock.stop()
        kept = [{key: now[key] - was[key] for key in now} for was, now in zip(before, map(sizes, bed.nodes))]
        told = (
            f"{names(pairing)}: soak of {seconds} s, --seed {seed}: {len(soak.blows)} faults, "
            f"{(load.verified + trees.verified) / MIB:.0f} MiB verified ({trees.rounds} trees), "
            f"{log.evictions()} evictions ({log.unasked()} because no NI was left), {log.by_mgs()} by the MGS, {log.lost()} imports lost, {log.timed_out()} RPCs timed out, "
            f"{soak.again.counts} messages sent again by client and server over the next connection, "
            f"longest stall {load.longest():.1f} s, longest I/O of fio {load.worst:.1f} s, unmounted in {unmounted:.1f} s, "
            f"took {took:.0f} s, load {load_average:.1f}\nmemory, KiB: {kept}\n{soak.table(load.rounds)}"
        )
        print(told)
        with open(os.path.join(LOGS, "lustre-soak.md"), "a", encoding="utf-8") as f:
            f.write(f"{told}\n\n")
        record_property("soak", told)
    errors = [*load.errors(), *trees.bad]
    assert not errors, "\n".join(errors)
    assert load.verified > 0 and trees.verified > 0
    assert log.evictions() <= log.unasked()
    assert not log.splats() and not log.leaks(), [*log.splats(), *log.leaks()]
    assert all(-change["MemFree"] < KEPT_KIB for change in kept), kept
    assert unmounted < UNMOUNT
