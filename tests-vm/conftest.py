"""Guests for the tests. A test asks for

guest           one guest, rxe0 (10.0.1.1) and rxe1 (10.0.1.2) in it
guests          two guests on a wire, rxe0 in each, 10.0.0.1 and 10.0.0.2
boot(...)       a function: any other guest, options as for vm.Guest
boot_pair(...)  a function: any other pair

all with the project's modules in /files (not loaded; see MODULES). When the test
is over, a kernel log with a splat in it fails the test, unless the test says
which lines it provokes: @pytest.mark.splats("pattern", ...). Consoles are kept
in tests-vm/logs/<test>/ (or RO2IBLND_LOGS).
"""

import contextlib
import os
import re
import shutil
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import vm  # noqa: E402

# Where `make` leaves what it built; another build directory by RO2IBLND_MODULES.
BUILT = os.environ.get("RO2IBLND_MODULES", ROOT)
MODULES = ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko")


def pytest_configure(config):
    config.addinivalue_line("markers", "splats(*patterns): kernel log lines that the test provokes")


@pytest.fixture(scope="session")
def modules():
    """Paths of the project's modules, in the order of loading."""
    paths = [os.path.join(BUILT, m) for m in MODULES]
    absent = [p for p in paths if not os.path.exists(p)]
    if absent:
        pytest.fail(f"not built: {' '.join(absent)}: run make", pytrace=False)
    return paths


@pytest.fixture
def workdir(request):
    """Where the guests of this test keep their files."""
    base = os.environ.get("RO2IBLND_LOGS", os.path.join(ROOT, "tests-vm", "logs"))
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    path = os.path.join(base, f"{request.node.path.stem}-{name}")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    yield path
    # The consoles are the record; the rest is bulk.
    for entry in os.scandir(path):
        if entry.name.endswith(".share"):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name.endswith(".cpio"):
            os.unlink(entry.path)


@pytest.fixture
def watched(request):
    """A list; the kernel logs of the guests in it are judged after the test."""
    guests = []
    yield guests
    marker = request.node.get_closest_marker("splats")
    ignore = marker.args if marker else ()
    bad = []
    for guest in guests:
        # The console is complete even for a guest that is dead.
        bad += [f"{guest.name}: {line}" for line in vm.splats(guest.console(), ignore)]
    if bad:
        pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)


@pytest.fixture
def _stack(watched):
    # After `watched`, so that guests are closed before it looks at their consoles.
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def boot(modules, workdir, watched, _stack):
    def boot(name=None, files=(), **options):
        name = name or f"guest{len(watched)}"
        guest = vm.Guest(name, files=[*modules, *files], workdir=workdir, **options)
        watched.append(guest)
        return _stack.enter_context(guest)

    return boot


@pytest.fixture
def boot_pair(modules, workdir, watched, _stack):
    def boot_pair(files=(), **options):
        guests = _stack.enter_context(vm.pair(workdir=workdir, files=[*modules, *files], **options))
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
