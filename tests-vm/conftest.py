# SPDX-License-Identifier: GPL-2.0
"""Guests for the tests, as fixtures:

guest           one guest, rxe0 (10.0.1.1) and rxe1 (10.0.1.2) in it
guests          two guests on a wire, rxe0 (or as --device says) in each, 10.0.0.1 and 10.0.0.2
boot(...)       a function: any other guest, options as for vm.Guest
boot_pair(...)  a function: any other pair
nodes           two guests as nodes.Node, 10.0.0.1 and 10.0.0.2, shared by the
                tests: all modules are unloaded after each test, and nothing
                may be left behind. A test that fails or kills a guest discards
                the pair, and the next test gets a new one
hostile            a hostile peer at 10.0.0.3, in the second guest of `nodes`

All have the project's modules in /files (not loaded, see MODULES). After a
test a splat in the kernel log fails the test, unless the test names the lines
that it provokes: @pytest.mark.splats("pattern", ...). Consoles are kept
in tests-vm/logs/<test>/, of `nodes` in tests-vm/logs/pair<worker><n>/ (or RO2IBLND_LOGS).
Tests marked `long` run with --long only, or with --few, which is for slow kernels
and for a first look.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zlib

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
sys.path.insert(0, os.path.join(ROOT, "tests-vm"))

import vm  # noqa: E402
from device_kinds import DEVICES, POLLED  # noqa: E402
from hostile_peer.peer import HostilePeer  # noqa: E402
from nodes import Node  # noqa: E402

# Directory of the files that `make` built. RO2IBLND_MODULES sets another one.
BUILT = os.environ.get("RO2IBLND_MODULES", ROOT)
MODULES = ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko")


# Worker of pytest-xdist: each has a pair of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
LOGS = os.environ.get("RO2IBLND_LOGS", os.path.join(ROOT, "tests-vm", "logs"))


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long tests too")
    parser.addoption("--device", default="rxe", choices=DEVICES, help="what the guests have; see device_kinds.py")
    parser.addoption("--polled", default="half", choices=("half", "others", "none"), help="which tests have completions polled in a softirq")
    parser.addoption("--vcpus", type=int, default=2, help="of each guest, where the test does not say it")
    parser.addoption("--rounds", type=int, default=0, help="how often links go and come back in each of the tests of that")
    parser.addoption("--seconds", type=int, default=0, help="how long a soak lasts")
    parser.addoption("--seed", type=int, default=None, help="which faults come in a soak; one is drawn, and printed")
    parser.addoption("--reports", help="where test_diagnosis.py puts what the tests of ro2ibtop read")
    parser.addoption("--few", action="store_true", help="the long tests too, with few rounds")


def pytest_configure(config):
    config.addinivalue_line("markers", "splats(*patterns): kernel log lines that the test provokes")
    config.addinivalue_line("markers", "long: takes long; only with --long")


# Files whose tests take longest: they start first when files run in parallel.
FIRST = (
    "test_stock_kernels", "test_build_oldest_kernels", "test_traffic", "test_lifecycle", "test_faults_cm",
    "test_device_kinds", "test_hostile_pending", "test_link_flap", "test_hostile_messages", "test_hostile_connect", "test_scale",
    "test_runtime_settings", "test_tunable_effects",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    for module in {i.module for i in items}:
        slid = [n for n, f in vars(module).items() if callable(f) and hasattr(f, "pytestmark") and not n.lower().startswith("test")]
        if slid:
            raise pytest.UsageError(f"{module.__name__}: a mark on what is no test: {slid}")
    items.sort(key=lambda i: FIRST.index(i.path.stem) if i.path.stem in FIRST else len(FIRST))
    if config.getoption("--long") or config.getoption("--few"):
        return
    unwanted = [i for i in items if i.get_closest_marker("long")]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [i for i in items if i not in unwanted]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, f"failed_{call.when}", outcome.get_result().failed)


@pytest.fixture(scope="session")
def modules():
    """Returns the paths of the project's modules, in the order of loading."""
    paths = [os.path.join(BUILT, m) for m in MODULES]
    absent = [p for p in paths if not os.path.exists(p)]
    if absent:
        pytest.fail(f"not built: {' '.join(absent)}: run make", pytrace=False)
    return paths


@pytest.fixture(scope="session")
def profiler():
    """Returns the modules that make a device look like another, send its events, and stand in for a GPU, if they are
    built."""
    names = ("ib_imitate", "ib_imitate_dma", "ib_imitate_timing", "ib_event", "gpu_fake")
    paths = [os.path.join(BUILT, "tests-vm", "modules", f"{name}.ko") for name in names]
    return [path for path in paths if os.path.exists(path)]


@pytest.fixture(scope="session")
def top():
    """Builds ro2ibtop and returns its path. Its tests' programs are beside it in examples/."""
    env = vm.build_env()
    target = os.path.join(env["CARGO_CACHE"], "ro2ibtop")
    done = subprocess.run(
        [env["CARGO"], "build", "--locked", "--release", "--bins", "--examples"], cwd=os.path.join(ROOT, "scripts", "ro2ibtop"),
        env={**os.environ, "RUSTC": env["RUSTC"], "CARGO_TARGET_DIR": target}, check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return os.path.join(target, "release", "ro2ibtop")


@pytest.fixture
def workdir(request):
    """Provides the directory in which the guests of this test keep their files."""
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    path = os.path.join(LOGS, f"{request.node.path.stem}-{name}")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    yield path
    tidy(path)


def tidy(path):
    """Removes all files of guests except the consoles, which are the record."""
    for entry in os.scandir(path):
        if entry.name.endswith(".share"):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name.endswith(".cpio"):
            os.unlink(entry.path)


@pytest.fixture
def watched(request):
    """Provides a list of guests whose kernel logs are checked after the test."""
    guests = []
    yield guests
    marker = request.node.get_closest_marker("splats")
    ignore = marker.args if marker else ()
    bad = []
    for guest in guests:
        # The console is complete even for a dead guest.
        bad += [f"{guest.name}: {line}" for line in vm.splats(guest.console(), ignore)]
    if bad:
        pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)


@pytest.fixture
def _stack(watched):
    # Depends on `watched`, so that guests are closed before it reads their consoles.
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def machine(pytestconfig):
    """Returns the options of each guest, by the options of this run."""
    return {**DEVICES[pytestconfig.getoption("--device")], "vcpus": pytestconfig.getoption("--vcpus")}


@pytest.fixture
def polled(request, machine):
    """Returns whether completions are polled in a softirq in this test. The value is the same in each run, so that a
    failure is reproducible."""
    which = request.config.getoption("--polled")
    if request.config.getoption("--device") != "rxe" or which == "none" or request.node.path.stem not in POLLED:
        return machine.get("hardware", False)
    if os.environ.get("KERNEL_FLAVOR") == "stock":
        # A test cannot tell the driver to do that on a stock kernel.
        return False
    return zlib.crc32(request.node.name.encode()) % 2 == (which == "others")


@pytest.fixture
def boot(modules, profiler, workdir, watched, _stack, machine, polled):
    def boot(name=None, files=(), **options):
        name = name or f"guest{len(watched)}"
        options = {**machine, "softirq": polled, **options}
        guest = vm.Guest(name, files=[*modules, *profiler, *files], workdir=workdir, **options)
        watched.append(guest)
        return _stack.enter_context(guest)

    return boot


@pytest.fixture
def boot_pair(modules, profiler, workdir, watched, _stack, machine, polled):
    def boot_pair(files=(), **options):
        options = {**machine, "softirq": polled, **options}
        guests = _stack.enter_context(vm.pair(workdir=workdir, files=[*modules, *profiler, *files], **options))
        watched.extend(guests)
        return guests

    return boot_pair


@pytest.fixture
def guest(boot):
    one = boot()
    vm.setup_two_links(one)
    return one


@pytest.fixture
def guests(boot_pair):
    return boot_pair()


# The hostile peer is a program: the modules that imitate an adapter do not know queue pairs of programs.
NOT_IMITATED = {"hardware": False, "profile": "", "dma": None, "timing": None, "append": ""}


class Pool:
    """Pair of guests that one test after the other uses."""

    def __init__(self, files, machine):
        self.files, self.machine, self.count = files, machine, 0
        self.stack = self.pair = self.path = None
        self.hostile = False

    def take(self, hostile):
        """Returns the pair. With `hostile` the device of the second guest imitates no adapter."""
        hostile = hostile and not self.machine.keys().isdisjoint(NOT_IMITATED)
        if self.pair is not None and (self.hostile != hostile or not all(n.guest.alive() for n in self.pair)):
            self.discard()
        if self.pair is None:
            self.hostile = hostile
            second = {k: v for k, v in NOT_IMITATED.items() if hostile and k in self.machine}
            self.path = os.path.join(LOGS, f"pair{WORKER}{self.count}")
            self.count += 1
            shutil.rmtree(self.path, ignore_errors=True)
            os.makedirs(self.path)
            self.stack = contextlib.ExitStack()
            # rping brings the libraries that the hostile peer needs, ibv_devinfo has the counters of a port.
            pair = vm.pair(workdir=self.path, each=({}, second), files=self.files, tools=("rping", "nft", "ibv_devinfo"), **self.machine)
            guests = self.stack.enter_context(pair)
            self.pair = tuple(Node(g) for g in guests)
        return self.pair

    def discard(self):
        if self.pair is not None:
            self.stack.close()
            tidy(self.path)
            self.pair = None


@pytest.fixture(scope="session")
def hostile_program(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("hostile_peer") / "hostile_peer")
    source = os.path.join(ROOT, "tests-vm", "hostile_peer", "hostile_peer.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", out, source, "-lrdmacm", "-libverbs"], check=True)
    return out


@pytest.fixture(scope="session")
def pool(modules, hostile_program, profiler, machine):
    pool = Pool([*modules, *profiler, hostile_program], machine)
    yield pool
    pool.discard()


@pytest.fixture
def nodes(pool, request, polled):
    pair = pool.take(request.path.stem.startswith("test_hostile"))
    where = [len(n.guest.console()) for n in pair]
    for node in pair:
        node.guest.softirq = polled
        node.mark_log()

    def fresh():
        return [n.guest.console()[start:] for n, start in zip(pair, where)]

    try:
        yield pair
        if getattr(request.node, "failed_call", True):
            return
        for node in pair:
            if node.guest.alive():
                node.unload()
        marker = request.node.get_closest_marker("splats")
        ignore = marker.args if marker else ()
        bad = [f"{n.guest.name}: {line}" for n, log in zip(pair, fresh()) for line in vm.splats(log, ignore)]
        if bad:
            pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)
        request.node.fine = True
    finally:
        if not getattr(request.node, "fine", False):
            for n, log in zip(pair, fresh()):
                lines = log.splitlines()[-60:]
                request.node.add_report_section("teardown", f"kernel log of {n.guest.name}, all of it in {pool.path}", "\n".join(lines))
            pool.discard()


@pytest.fixture
def hostile(nodes):
    peer = HostilePeer(nodes[1].guest)
    yield peer
    peer.stop()
