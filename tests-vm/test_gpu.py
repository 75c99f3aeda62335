# SPDX-License-Identifier: GPL-2.0
"""GPU memory: mapped only by its provider, and touched only by the device.

gpu_fake (tests-vm/modules) stands in for nvidia-fs and a GPU. Its memory has its data only at the addresses that the
map call returns. A driver that uses the addresses of the pages moves wrong data.
"""

import time

import pytest
import vm
from faults import Load
from nodes import Node, parse, together, until, up

FAKE = "/sys/kernel/debug/gpu_fake"
# Largest payload of an IMMEDIATE message.
INLINE = 3976
WAYS = (("gpu", "gpu"), ("gpu", "host"), ("host", "gpu"), ("host", "host"))
# Counters of faults, which must stay 0.
WRONG = ("mapped_pages", "taken", "crossing", "bad_unmaps", "freed_mapped", "touched", "foreign", "wrong_gpu")
# Distance of a device that LNet does not know.
UNKNOWN = 2**32 - 1
EIO, EFAULT, EXDEV, ENXIO, ERANGE, EOPNOTSUPP = -5, -14, -18, -6, -34, -95


class Gpu:
    """Stand-in for a GPU in a node."""

    def __init__(self, node):
        self.node = node

    def ctl(self, command):
        self.node.guest.check(f"echo '{command}' >{FAKE}/ctl", 240)

    def load(self):
        self.node.guest.check("insmod /files/gpu_fake.ko")
        self.ctl("register")

    def stats(self):
        return parse(self.node.guest.check(f"cat {FAKE}/stats"))

    def counts(self):
        """Returns how often the driver had GPU memory mapped, and how often the mapping was refused or found
        nothing."""
        text = self.node.guest.check(f"grep -h of=other /sys/kernel/debug/ro2iblnd/{self.node.nid}")
        return {k: int(v) for k, v in (word.split("=") for word in text.split() if word.startswith("Gpu"))}

    def quiet(self):
        """Waits until all memory is unmapped and returned, and checks that no fault was counted."""
        until(lambda: not self.stats()["taken"], "memory comes back")
        stats = self.stats()
        assert stats["maps"] == stats["unmaps"] and not any(stats[k] for k in WRONG), stats
        return stats

    def leave(self):
        stats = self.quiet()
        self.node.guest.check("rmmod gpu_fake", 240)
        return stats


@pytest.fixture
def gpus(nodes):
    up(*nodes)
    both = [Gpu(n) for n in nodes]
    together(Gpu.load, *both)
    nodes[0].ping(nodes[1])
    yield both
    if all(n.guest.alive() for n in nodes):
        together(Gpu.leave, *both)


def sizes(op, tmem, all_of_them):
    """Returns sizes for an operation. The data of an IMMEDIATE PUT cannot go to a GPU."""
    small = () if op == "put-ack" and tmem == "gpu" else (1, INLINE)
    return (*small, INLINE + 1, *((100, 4096, 65536) if all_of_them and small else ()), 30001, 1048576)


def refused(node, other, why, rc, **what):
    """Checks that each message fails at once with `rc`, that the log has `why`, and that the connection stays."""
    before = node.conns(), other.conns()
    r = node.try_traffic(other, count=4, conc=2, **what)
    assert r["errors"] == 4 and r["first_error"] == rc and not r["timeouts"] and not r["stuck"], (what, r)
    assert (node.conns(), other.conns()) == before
    log = node.log() + other.log()
    assert why in log and "connection closed" not in log, log


def test_every_size_and_shape(nodes, gpus, pytestconfig):
    a, b = nodes
    full = pytestconfig.getoption("--long")
    shapes = [("aligned", "contig"), ("contig", "unaligned"), ("unaligned", "scatter")]
    turn = 0
    for mem, tmem in WAYS:
        before = [gpu.stats()["maps"] for gpu in gpus]
        for op in ("put-ack", "get"):
            for size in sizes(op, tmem, full):
                turn += 1
                for shape, tshape in shapes if full else [shapes[turn % 3]]:
                    sink = (tmem, tshape) if op == "put-ack" else (mem, shape)
                    # 257 pages are one more than a region covers, and GPU memory cannot be copied.
                    nob = size - 4096 if size == 1048576 and sink == ("gpu", "unaligned") else size
                    a.traffic(b, op=op, size=nob, shape=shape, tshape=tshape, mem=mem, tmem=tmem, count=3, conc=3)
        for gpu, kind, was in zip(gpus, (mem, tmem), before):
            stats = gpu.quiet()
            assert (stats["maps"] > was) == (kind == "gpu"), stats
            assert gpu.counts() == {"GpuMapped": stats["maps"], "GpuRefused": 0}, stats


def test_gaps(nodes, gpus):
    """An RDMA WRITE gathers from memory with gaps, but a key covers no gaps, and the driver cannot copy GPU memory to
    close them."""
    a, b = nodes
    a.traffic(b, op="put-ack", size=100000, shape="gaps", tshape="gaps", mem="gpu", count=4)
    a.traffic(b, op="get", size=100000, shape="gaps", tshape="gaps", tmem="gpu", count=4)
    # The node with the sink refuses: the local node, then the peer.
    refused(a, b, "it has gaps", ERANGE, op="get", size=100000, shape="gaps", mem="gpu")
    refused(a, b, "it has gaps", ERANGE, op="put", size=100000, shape="aligned", tshape="gaps", tmem="gpu")
    assert gpus[0].counts()["GpuRefused"] == gpus[1].counts()["GpuRefused"] == 4
    # 1 MiB that starts inside a page.
    refused(a, b, "is too large for one memory region", ERANGE, op="get", size=1048576, shape="unaligned", mem="gpu")


def test_gpu_data_inside_a_message(nodes, gpus):
    """A PUT whose message carries its data fails if the sink is on a GPU: the sender does not know the sink, and the
    receiver cannot copy."""
    a, b = nodes
    r = a.try_traffic(b, op="put-ack", size=INLINE, tmem="gpu", count=4, conc=4, timeout=4)
    assert r["errors"] == 4 and not r["stuck"] and not r["peer_puts"], r
    assert f"inside a message and cannot be copied to the GPU; transfer 4 KiB or more ({EOPNOTSUPP})" in b.log()
    assert gpus[1].counts() == {"GpuMapped": 0, "GpuRefused": 4}
    a.traffic(b, op="put-ack", size=INLINE + 1, tmem="gpu", count=4)
    # The sender of a GET knows its sink.
    b.traffic(a, op="get", size=INLINE, mem="gpu", count=4)


def test_mixed_pages(nodes, gpus):
    """A message with some pages of a GPU and some of the host is refused by the node whose pages they are."""
    a, b = nodes
    for shape in ("aligned", "unaligned"):
        for here, there in (("mixed", "host"), ("host", "mixed"), ("mixed", "gpu")):
            where = {"size": 65536, "shape": shape, "tshape": shape, "mem": here, "tmem": there}
            for op in ("put", "get"):
                refused(a, b, "only some of its pages are GPU memory", EXDEV, op=op, **where)
    # This message does not use the page of the host.
    a.traffic(b, op="put-ack", size=8192, sink=4096, tshape="aligned", count=4)
    assert sum(g.stats()["mixed"] for g in gpus) > 0
    assert sum(g.counts()["GpuRefused"] for g in gpus) == 2 * 3 * 2 * 4


def test_mapping_that_fails(nodes, gpus):
    """If the n-th mapping fails, only the message of that mapping fails."""
    a, b = nodes
    for op, failing in (("put-ack", 0), ("put-ack", 1), ("get", 0), ("get", 1)):
        for n in (1, 4):
            gpus[failing].ctl(f"fail {n}")
            r = a.try_traffic(b, op=op, size=65536, mem="gpu", tmem="gpu", count=10, conc=2)
            assert r["count"] == 9 and r["errors"] == 1 and r["first_error"] == EFAULT, (op, failing, n, r)
    for gpu in gpus:
        gpu.ctl("fail -7")
    runs = [n.start(m, op="mix", size=100000, mem="gpu", tmem="gpu", count=100, conc=16) for n, m in ((a, b), (b, a))]
    for run in runs:
        r = run.result()
        assert r["errors"] > 5 and r["count"] + r["errors"] == 100 and not r["timeouts"] and not r["stuck"], r
        assert not r["verify_errors"] and not r["peer_verify_errors"], r
    for gpu in gpus:
        gpu.ctl("fail 0")
    log = a.log() + b.log()
    assert f"nvidia-fs did not map it; see its lines in the log ({EFAULT})" in log and "connection closed" not in log
    a.traffic(b, op="mix", size=65536, mem="gpu", tmem="gpu", count=50)


def loads(nodes):
    """Returns endless traffic with GPU memory on both sides, in both directions."""
    a, b = nodes
    memory = {"size": 100000, "shape": "unaligned", "mem": "gpu", "tmem": "gpu"}
    return [Load(n, m, op="mix", timeout=10, verify="full", **memory) for n, m in ((a, b), (b, a))]


def harmless(runs):
    """Checks that messages may have failed, but no data is wrong and no message is stuck."""
    for run in runs:
        r = run.result()
        assert not r["verify_errors"] and not r["peer_verify_errors"] and not r["stuck"] and not r["timeouts"], r


def test_provider_goes(nodes, gpus, pytestconfig):
    """A GPU provider that unregisters under load waits for mapped memory only, and can register again."""
    a, b = nodes
    for i in range(100 if pytestconfig.getoption("--long") else 2):
        gpu, node = gpus[i % 2], nodes[i % 2]
        one, two = loads(nodes)
        with one, two:
            begun = gpu.stats()["maps"]
            until(lambda g=gpu, n=begun: g.stats()["maps"] > n + 5, "traffic")
            gpu.ctl("unregister")
            stats = gpu.stats()
            assert stats["maps"] == stats["unmaps"], stats
            refused(node, nodes[1 - i % 2], f"its pages are no longer registered; is nvidia-fs loaded? ({ENXIO})", ENXIO, op="put", size=65536, mem="gpu")
            # Messages without GPU memory still work.
            node.traffic(nodes[1 - i % 2], op="mix", size=65536, count=20)
            gpu.ctl("register")
        harmless((one, two))
        a.traffic(b, op="mix", size=65536, mem="gpu", tmem="gpu", count=20)
        assert "connection closed" not in a.log() + b.log()


def test_device_goes(nodes, gpus, pytestconfig):
    """If the device is unplugged or all connections close under load, all GPU memory is unmapped, once."""
    a, b = nodes
    for i in range(100 if pytestconfig.getoption("--long") else 2):
        gpu, node, other = gpus[i % 2], nodes[i % 2], nodes[1 - i % 2]
        one, two = loads(nodes)
        with one, two:
            begun = gpu.stats()["maps"]
            until(lambda g=gpu, n=begun: g.stats()["maps"] > n + 5, "traffic")
            if (i + i // 2) % 2 == 0:
                node.unplug()
                node.plug()
            else:
                for _ in range(5):
                    node.ctl(f"peer del {other.nid}", ok=False)
                    time.sleep(0.1)
        for run in (one, two):
            r = run.result()
            assert not r["verify_errors"] and not r["stuck"], r
        until(lambda n=node, o=other: n.ping(o, ok=False)["rc"] == 0, "connected again")
        for g in gpus:
            g.quiet()
        a.traffic(b, op="mix", size=65536, mem="gpu", tmem="gpu", count=20)


def test_the_nearest_ni(boot_pair, pytestconfig):
    """LNet asks each NI for the distance of its device to the GPU, and sends through the nearest. An NI without its
    device, and an NI whose device does no DMA, reports an unknown distance."""
    if pytestconfig.getoption("--device") != "rxe":
        pytest.skip("the device is given what rxe has not")
    a, b = (Node(guest) for guest in boot_pair(rails=2, profile="deaf=0"))
    together(Node.load, a, b)
    gpu = Gpu(a)
    gpu.load()
    dma = "/sys/module/ib_imitate/parameters/dma"
    for rail in range(2):
        # The device has DMA like an adapter while the NI starts. rxe itself cannot use it.
        a.guest.check(f"echo eth{rail} >{dma}")
        for node in (a, b):
            node.ni_add(interface=f"eth{rail}")
        a.guest.check(f"echo -eth{rail} >{dma}")
    nids = [f"10.0.{rail}.1@o2ib" for rail in range(2)]

    def distances(*values):
        for rail, value in enumerate(values):
            gpu.ctl(f"distance rxe{rail}-dma {value}")

    def shown():
        return [a.ctl(f"ni show {nid}")["dev_prio"] for nid in nids]

    def sends_by(rail, **what):
        """Checks that PUTs and GETs go out by the NI of this rail."""
        for op in ("put-ack", "get"):
            assert a.traffic(f"10.0.{rail}.2@o2ib", op=op, size=65536, count=8, **what)["from"] == nids[rail]

    assert shown() == [UNKNOWN, UNKNOWN]
    for near, far in ((1, 0), (0, 1), (1, 0)):
        distances(*((10, 20) if near == 0 else (20, 10)))
        assert shown()[near] == 10 and shown()[far] == 20
        sends_by(near, mem="gpu")
    # For messages without GPU memory LNet does not ask for a distance.
    before = gpu.stats()["asked"]
    sends_by(0)
    assert gpu.stats()["asked"] == before
    # The device goes: the NI forgets its distance.
    vm.unplug(a.guest, 1)
    assert shown() == [20, UNKNOWN]
    before = gpu.stats()["asked"]
    assert a.ctl(f"ni show {nids[1]}")["dev_prio"] == UNKNOWN and gpu.stats()["asked"] == before
    sends_by(0, mem="gpu")
    # Another device comes, without DMA.
    vm.plug(a.guest, 1)
    until(lambda: a.ctl(f"ping 10.0.1.2@o2ib from={nids[1]} timeout=5", ok=False)["rc"] == 0, "it is back")
    assert shown() == [20, UNKNOWN]
    a.ni_del(nids[0])
    assert a.ctl(f"ni show {nids[0]}", ok=False)["rc"] < 0
    before = gpu.stats()["asked"]
    sends_by(1, mem="gpu")
    assert gpu.stats()["asked"] == before
    gpu.leave()
    for node in (a, b):
        node.unload()
