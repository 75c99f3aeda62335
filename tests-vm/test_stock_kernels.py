# SPDX-License-Identifier: GPL-2.0
"""The driver on unmodified kernels of Debian: built with their headers, loaded into their images. 6.12 runs every time,
the others with --long: arm64, kernels with PREEMPT_RT, and 6.12 with a stand-in for MLNX_OFED."""

import contextlib
import os
import re
import shutil
import subprocess
import time

import demo
import pytest
import vm
from conftest import LOGS, MODULES, ROOT, tidy
from faults import SLOW, Load, debug_nis, ping_until
from nodes import PATIENCE, Node, until, up

STOCK = os.path.join(ROOT, "scripts", "stock-kernel")
LONG = pytest.mark.long
OTHERS = ("5.10", "6.1", "6.1-rt", "6.12-rt", "6.12-ofed", "7.3", "6.12-arm64")
KERNELS = ["6.12", *(pytest.param(k, marks=LONG) for k in OTHERS)]
# Sizes of a message that carries its data, and of one whose data goes by RDMA.
SMALL, LARGE = 1000, 16384


def stock(*words, timeout=1800):
    """Returns the last line that scripts/stock-kernel prints. If it fails, the test fails with its output."""
    done = subprocess.run(
        [STOCK, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.splitlines() or ["?"])[-1]
        # Old releases leave the mirrors one day.
        if re.search("available: .*(has no|404|Release file)", reason) or "takes root" in reason:
            pytest.skip(reason)
        lines = done.stderr.splitlines()
        # If builds run in parallel, the error that ends them is not in the last lines.
        errors = [line for line in lines[:-30] if "error:" in line or "error[" in line]
        pytest.fail("\n".join([f"stock {' '.join(words)}", *errors[:10], *lines[-30:]]), pytrace=False)
    return done.stdout.splitlines()[-1]


def kernel_and_modules(series, name, built_for=None, test_modules=()):
    """Builds the modules. Returns the release of the kernel, and what vm.Guest needs to boot it with them."""
    directory = stock("fetch", series)
    built = stock("build", built_for or series, *(["TEST_MODULES=1"] if test_modules else []))
    # Lustre builds LNet for the kernel, whatever its RDMA core is. lnet_lite, which is built as the driver is, would
    # not load without OFED's mlx_compat either.
    lnet = stock("build", series) if built_for else built
    env = vm.stock_env(os.path.join(directory, "stock.env"))
    workdir = os.path.join(LOGS, name)
    shutil.rmtree(workdir, ignore_errors=True)
    os.makedirs(workdir)
    return env["RELEASE"], {
        "workdir": workdir,
        "files": [
            *(os.path.join(of, m) for of, m in zip((lnet, built), MODULES, strict=True)),
            *(os.path.join(built, "tests-vm", "modules", f"{m}.ko") for m in test_modules),
        ],
        "kdir": env["KDIR"], "image": env["KERNEL_IMAGE"], "tree": env["KERNEL_MODULES"],
        "arch": env.get("KERNEL_ARCH"), "userland": env.get("KERNEL_USERLAND"),
    }  # fmt: skip


@contextlib.contextmanager
def boot_stock(series, name, built_for=None, test_modules=(), **options):
    """Boots two nodes on a stock kernel, without modules. Their consoles are kept in logs/`name`.

    built_for: the series that ro2iblnd.ko in /files is built for, if it is another one
    test_modules: modules of tests-vm/modules that are in /files, too
    """
    release, stock_options = kernel_and_modules(series, name, built_for, test_modules)
    workdir = stock_options["workdir"]
    with vm.pair(**stock_options, **options) as guests:
        assert {g.check("uname -r").strip() for g in guests} == {release}
        yield tuple(Node(g) for g in guests)
    tidy(workdir)


@pytest.fixture(scope="module", params=KERNELS)
def pair(request):
    """Provides two nodes on a stock kernel."""
    if request.param.endswith("-arm64") and not shutil.which("qemu-system-aarch64"):
        pytest.skip(f"no QEMU for it: run STOCK={request.param} scripts/prepare packages")
    with boot_stock(request.param, f"stock-{request.param}") as nodes:
        yield nodes


@contextlib.contextmanager
def with_nis(pair):
    """Adds an NI to both nodes. Unloads everything afterwards: nothing may be left, and no splat may be logged."""
    if not all(n.guest.alive() for n in pair):
        pytest.fail("a guest died in an earlier test", pytrace=False)
    begin = [len(n.guest.console()) for n in pair]
    up(*pair)
    yield pair
    for node in pair:
        node.unload()
    bad = [f"{n.guest.name}: {line}" for n, at in zip(pair, begin) for line in vm.splats(n.guest.console()[at:])]
    for node in pair:
        allowed = "OEW" if vm.has_foreign(node.guest.console()) else "OE"
        taints = vm.taints(node.guest.check("cat /proc/sys/kernel/tainted"), allowed)
        bad += [f"{node.guest.name}: taint {t}" for t in taints]
    if bad:
        pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)


@pytest.fixture
def nodes(pair):
    with with_nis(pair):
        yield pair


def test_loads(nodes):
    """The module loads with two CPUs. The kernel reports only that it is out of tree and unsigned."""
    for node in nodes:
        assert node.guest.check("nproc").strip() == "2"
        assert node.guest.check("cat /proc/sys/kernel/tainted").strip() in ("4096", "12288")


def test_table(nodes):
    """The rows of `make demo` work."""
    a, b = nodes
    for one, other in ((a, b), (b, a)):
        one.ping(other)
    for row in demo.TABLE:
        demo.transfer(a, b, *row)
    until(lambda: all(demo.whole(c) for n in nodes for c in demo.credits(n)), "all credits back")


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("op", ["put-ack", "get"])
def test_thousand(nodes, op, size):
    a, b = nodes
    r = a.traffic(b, op=op, size=size, count=1000, conc=8, timeout=300)
    verified = r["verified"] if op == "get" else r["peer_verified"]
    assert verified == 1000 * size, r


def test_unplug_and_return(nodes):
    """The device of either side goes away under traffic, and comes back."""
    a, b = nodes
    a.ping(b)
    for victim, op in ((a, "get"), (b, "put")):
        with Load(a, b, op=op) as load:
            victim.guest.check("sleep 1")
            victim.unplug()
            assert [ni["device"] for ni in debug_nis(victim)] == ["none"]
            victim.plug()
            ping_until(a, b, 40 * SLOW)
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    a.traffic(b, op="mix", size=LARGE, count=100)
    b.traffic(a, op="mix", size=SMALL, count=100)


def test_again(nodes):
    """NIs are deleted and added, and the module is unloaded and loaded, several times."""
    a, b = nodes
    for _ in range(3):
        a.traffic(b, op="mix", size=LARGE, count=50)
        b.ni_del()
        b.ni_add()
        b.traffic(a, op="mix", size=SMALL, count=50)
        a.unload()
        up(a)


def test_ni_deleted_while_it_resolves(nodes):
    """An NI is deleted while the address of a missing peer is resolved. Older kernels, such as 6.1, warn if the driver
    waits for the resolution in the wrong place (check_flush_dependency)."""
    a, _b = nodes
    for _ in range(3):
        job = a.guest.spawn(a.ctl_script("ping 10.0.0.99@o2ib timeout=20"))
        time.sleep(1)
        a.ni_del()
        # LNet gets the message back when the NI goes.
        assert "rc=-" in job.wait(PATIENCE)[1]
        a.ni_add()


@LONG
@pytest.mark.parametrize("kernel", ["6.1-cloud", "6.12-cloud"])
def test_cloud_kernel_loads_the_module(kernel):
    """Debian's kernels for virtual machines have an RDMA core without rxe and siw: the driver loads and unloads."""
    release, options = kernel_and_modules(kernel, f"stock-{kernel}")
    with vm.Guest(**options, modules=("rdma_cm",)) as guest:
        guest.check("insmod /files/lnet_lite.ko && insmod /files/ro2iblnd.ko")
        assert f"ro2iblnd: 0.1.0, for Linux {release}" in guest.console()
        guest.check("rmmod ro2iblnd lnet_lite")
        assert not vm.splats(guest.console())


@LONG
@pytest.mark.parametrize(("kernel", "built_for"), [("6.12-ofed", "6.12"), ("6.12", "6.12-ofed")])
def test_module_for_the_other_rdma_core_is_refused(kernel, built_for):
    """A module that was built with the headers of another RDMA core does not load, and preflight says so before."""
    directory = stock("fetch", kernel)
    env = vm.stock_env(os.path.join(directory, "stock.env"))
    ko = os.path.join(stock("build", built_for), "ro2iblnd.ko")
    preflight = [os.path.join(ROOT, "scripts/preflight"), "-n", "-b", "-d", directory, "-m", ko, env["KDIR"]]
    done = subprocess.run(preflight, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "was built for another kernel or LNet: CRC of" in line]
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    with boot_stock(kernel, f"stock-{kernel}-other", built_for) as (node, _):
        status, _ = node.guest.run("insmod /files/lnet_lite.ko && insmod /files/ro2iblnd.ko")
        assert status != 0
        assert re.search(r"ro2iblnd: disagrees about version of symbol \w*(ib|rdma)_", node.guest.console())
