# SPDX-License-Identifier: GPL-2.0
"""Verified I/O on the client, and its longest waits.

All verified data is read back from the server: directly, or after the client's caches were dropped.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import re
import tarfile
import time
from typing import NamedTuple

from .testbed import MOUNT

MIB = 1 << 20
STOP = "/tmp/stop"
FSX_SIZE = 262144
DROP_CACHES = "echo 3 >/proc/sys/vm/drop_caches"
# Common options of fio. A failed comparison ends it.
FIO = (
    "fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --verify_state_save=0 --end_fsync=1 --fallocate=none "
    "--output-format=json"
)
# A longer round of the prober is a stall, in seconds: on a busy emulated machine many rounds take a second.
STALL = 2.0


class Fio(NamedTuple):
    """Run of fio. `verified`: bytes; `worst`: the longest I/O, in seconds."""

    verified: int
    worst: float
    errors: list


def parse_fio(text, status=0):
    """Returns a Fio from fio's exit status and its JSON, of one or more runs."""
    jobs, said, decoder = [], "", json.JSONDecoder()
    try:
        while "{" in text:
            before, brace, text = text.partition("{")
            document, end = decoder.raw_decode(brace + text)
            jobs += document["jobs"]
            said, text = said + before, (brace + text)[end:]
    except (ValueError, KeyError):
        status = status or "cut short"
    errors = [f"{job['jobname']}: error {job['error']}" for job in jobs if job["error"]]
    if status or not jobs:
        errors.append(f"fio: {status}: {(said + text)[:1000]}")
    spent = [0]
    for job in jobs:
        spent.append(job["read"]["lat_ns"]["max"])
        # A run that only verifies reports wrong times of writes that it did not do.
        if "verify_only" not in job["job options"]:
            spent += [job["write"]["lat_ns"]["max"], job["sync"]["lat_ns"].get("max", 0)]
    return Fio(sum(job["read"]["io_bytes"] for job in jobs), max(spent) / 1e9, errors)


def fio_script(name, direct, options):
    """Returns a shell script that writes and verifies once, with JSON as its output. It drops caches in between unless
    direct."""
    base = f"{FIO} --directory={MOUNT} --direct={int(direct)} --name={name} {options}"
    if direct:
        return base
    return f"{base} --do_verify=0 && {DROP_CACHES} && {base} --verify_only=1"


def fio(bed, name, direct, options, timeout=540):
    """Runs fio once. Returns a Fio."""
    status, text = bed.client.guest.run(fio_script(name, direct, options), timeout)
    bed.client.sh(f"rm -f {MOUNT}/{name}.*")
    return parse_fio(text, status)


class Load:
    """Endless verified I/O and the prober, inside `with`, and their results afterwards.

    Direct I/O in small pieces at random places and in large pieces in sequence, and buffered I/O in medium pieces. Each
    is written, then read back and compared, repeatedly.
    """

    LOOPS = {
        "direct": (
            True,
            "--iodepth=8 --bs=4k --rw=randwrite --size=1m --name=large --iodepth=4 --bs=1m --rw=write --size=12m",
        ),
        "buffered": (False, "--iodepth=1 --bs=64k --rw=randwrite --size=6m"),
    }

    def __init__(self, bed, loops=tuple(LOOPS)):
        self.bed, self.loops = bed, loops

    def __enter__(self):
        self.start()
        return self

    def start(self):
        """Starts the load without `with`, for a client that will not stop it."""
        client = self.bed.client
        client.sh(f"rm -rf {STOP} /tmp/fio.* /tmp/probes; mkdir -p {MOUNT}/probe")
        # Status and output of every run, one after the other.
        self.jobs = [
            client.guest.spawn(
                f"while [ ! -e {STOP} ]; do ( {fio_script(name, *self.LOOPS[name])} ) >/tmp/run.{name} 2>&1; "
                f"echo \"=== $?\" >>/tmp/fio.{name}; cat /tmp/run.{name} >>/tmp/fio.{name}; done"
            )
            for name in self.loops
        ]
        prober = client.guest.put(self.bed.prober)
        self.jobs.append(client.guest.spawn(f"chmod +x {prober}; {prober} {MOUNT}/probe 50 {STOP} >/tmp/probes"))

    def probes(self, last="+1"):
        """Returns (began, ended, error) of every round of the prober so far, or of the last ones."""
        lines = (line.split() for line in self.bed.client.sh(f"tail -n {last} /tmp/probes 2>/dev/null || :").splitlines())
        return [(float(f[0]), float(f[1]), None if f[2] == "ok" else " ".join(f[2:])) for f in lines if len(f) == 4]

    def stop(self):
        """Stops the load after the current runs, without a wait for them."""
        self.bed.client.sh(f"touch {STOP}")

    def __exit__(self, kind, *_exc):
        client = self.bed.client
        if not client.guest.alive():
            return
        self.stop()
        for job in self.jobs:
            if kind is None:
                job.wait(400)
            elif job.poll() is None:
                job.kill()
        self.rounds = self.probes()
        self.runs = []
        for name in self.loops:
            for run in client.sh(f"cat /tmp/fio.{name} 2>/dev/null || :").split("=== ")[1:]:
                status, _, text = run.partition("\n")
                self.runs.append(parse_fio(text, int(status)))
        client.guest.run(f"rm -f {MOUNT}/direct.* {MOUNT}/large.* {MOUNT}/buffered.*; rm -rf {MOUNT}/probe", 120)

    def has_failed(self):
        """Returns whether any I/O has failed so far."""
        status, _ = self.bed.client.guest.run("grep -hv ' ok 0$' /tmp/probes || grep -hE '^=== [^0]' /tmp/fio.*")
        return status == 0

    # Results

    @property
    def verified(self):
        return sum(run.verified for run in self.runs)

    @property
    def worst(self):
        """Returns the longest I/O of fio, in seconds."""
        return max((run.worst for run in self.runs), default=0.0)

    def errors(self):
        failed = [what for _, _, what in self.rounds if what]
        return [error for run in self.runs for error in run.errors] + failed

    def longest(self, since=0.0):
        """Returns the longest round of the prober that ended after `since`, in seconds."""
        return max((end - began for began, end, _ in self.rounds if end > since), default=0.0)

    def stalled_after(self, when):
        """Returns for how many seconds after `when` rounds took too long."""
        return max((end - when for began, end, _ in self.rounds if end > when and end - began > STALL), default=0.0)


@contextlib.contextmanager
def calm(bed):
    """Stops all creations, lookups and removals of files on the client, so that the server has no lock to call back.
    fio's data continues. While LNet deletes an NI it gives a callback to no driver, and Lustre does not resend it, but
    waits for minutes and then evicts the client."""
    client = bed.client
    # At most one of these processes exists at a time. The prober always exists.
    trees = "tar sha256sum rm"
    try:
        # Twice: the next process of a loop may just start. A process that waits for the server stops after the answer.
        for _ in range(2):
            client.sh("killall -STOP prober")
            client.guest.run(f"killall -STOP {trees}")
            time.sleep(1)
        yield
    finally:
        client.guest.run(f"killall -CONT {trees}")
        client.sh("killall -CONT prober")


def fsx(bed, count, seed):
    """Runs fsx on a file of fixed size (osd-wbcfs shows old data behind a truncate). Returns the errors."""
    path = f"{MOUNT}/fsx"
    bed.client.sh(f"dd if=/dev/zero of={path} bs=256k count=1 2>/dev/null")
    errors = []
    # Through the cache and mappings, and directly.
    for how in ("-f", "-Z -R -W -r 4096 -w 4096"):
        status, out = bed.client.guest.run(
            f"cd /tmp && fsx -L -F -H -z -q {how} -S {seed} -N {count} -P /tmp -l {FSX_SIZE} {path}", 540
        )
        if status:
            errors.append(f"fsx {how}: status {status}: {out[-1500:]}")
    bed.client.sh(f"rm -f {path}")
    return errors


def dbench(bed, clients, seconds):
    """Returns (MB/s by dbench's own account, errors)."""
    path = f"{MOUNT}/dbench"
    status, out = bed.client.guest.run(
        f"mkdir -p {path} && dbench -D {path} -t {seconds} {clients}; rc=$?; rm -rf {path}; exit $rc", 540
    )
    rate = re.search(r"^Throughput (\S+) MB/sec", out, re.MULTILINE)
    bad = re.findall(r"^.*(?:expected|failed|ERROR|handle \d+ was not found).*$", out, re.MULTILINE)
    # dbench takes the first semaphore of a system, number 0, for a missing one.
    bad = [line for line in bad if "barrier semaphore" not in line]
    if status or not rate:
        bad.append(f"dbench: status {status}: {out[-1000:]}")
    return float(rate[1]) if rate else 0.0, bad


def pack(bed, files, seed):
    """Makes an archive like one of sources, with many small files and some large ones, and its checksums, for the
    client. Returns its bytes."""
    chance = random.Random(seed)
    sums, total = [], 0
    with tarfile.open(os.path.join(bed.client.guest.share, "tree.tar"), "w") as tar:
        for i in range(files):
            data = chance.randbytes(int(min(chance.lognormvariate(8.5, 1.4), MIB)))
            name = f"tree/{chance.randrange(8)}/{chance.randrange(8)}/file{i}.c"
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            total += len(data)
    with open(os.path.join(bed.client.guest.share, "tree.sums"), "w", encoding="ascii") as f:
        f.writelines(sums)
    return total


def tree(bed, files=500, seed=1):
    """Unpacks a tree and reads it back. Returns (bytes verified, errors)."""
    total = pack(bed, files, seed)
    bed.client.sh(f"tar -C {MOUNT} -xf /share/tree.tar", 540)
    bed.drop_caches()
    status, out = bed.client.guest.run(f"cd {MOUNT} && sha256sum -c /share/tree.sums", 540)
    bad = [line for line in out.splitlines() if not line.endswith(": OK")]
    good = len(out.splitlines()) - len(bad)
    found = int(bed.client.sh(f"find {MOUNT}/tree -type f | wc -l"))
    bed.client.sh(f"rm -rf {MOUNT}/tree", 300)
    if status or good != files or found != files:
        bad.append(f"status {status}, {good} of {files} right, {found} there")
    os.unlink(os.path.join(bed.client.guest.share, "tree.tar"))
    return total, bad


class Trees:
    """Loop that unpacks a tree, reads it back from the server and removes it, inside `with`."""

    STOP, LOG = "/tmp/stop.trees", "/tmp/trees"

    def __init__(self, bed, files, seed):
        self.bed, self.files = bed, files
        self.each = pack(bed, files, seed)
        self.rounds, self.bad = 0, []

    def __enter__(self):
        client = self.bed.client
        client.sh(f"rm -f {self.STOP} {self.LOG}")
        # A line for each round: the number of good files, and other output.
        self.job = client.guest.spawn(
            f"while [ ! -e {self.STOP} ]; do ( tar -C {MOUNT} -xf /share/tree.tar && sync && {DROP_CACHES} && cd {MOUNT} && "
            f"sha256sum -c /share/tree.sums && cd / && rm -r {MOUNT}/tree ) >/tmp/tree.log 2>&1; "
            f"echo \"$? $(grep -c ': OK$' /tmp/tree.log) $(grep -v ': OK$' /tmp/tree.log | tr '\\n' ';')\" >>{self.LOG}; done"
        )
        return self

    def lines(self):
        return self.bed.client.sh(f"cat {self.LOG} 2>/dev/null || :").splitlines()

    def has_failed(self):
        return any(not line.startswith(f"0 {self.files}") for line in self.lines())

    def stop(self):
        """Stops the loop after this round, without a wait."""
        self.bed.client.sh(f"touch {self.STOP}")

    def __exit__(self, kind, *_exc):
        client = self.bed.client
        if not client.guest.alive():
            return
        self.stop()
        if kind is None:
            self.job.wait(400)
        elif self.job.poll() is None:
            self.job.kill()
        lines = self.lines()
        self.rounds = len(lines)
        self.bad = [f"tree: {line}" for line in lines if line.strip() != f"0 {self.files}"]

    @property
    def verified(self):
        return (self.rounds - len(self.bad)) * self.each
