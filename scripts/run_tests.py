# SPDX-License-Identifier: GPL-2.0
"""All tests of the project, in parts; see scripts/test.

host    cargo test of rust/proto and of scripts/ro2ibtop
model   cargo test of rust/proto/model
sim     the whole driver on the host, simulated: a million worlds
fuzz    coverage-guided fuzzing for some seconds, with the same inputs in each run
lint    rustfmt, clippy with the kernel's flags, the rules of the house, pyflakes
kunit   KUnit suites in a guest: proto under the kernel's flags, rdma/ on
        soft-RoCE, NI to NI
guests  pytest: two guests and more, on the test kernel, and on kernels as Debian
        ships them
bench   instructions per message against the baseline, two cases
stock   the tests of guests that need no test kernel; only on request

A part that cannot run, or that runs no test, counts as failed. The last line is the sum over all parts, "N passed, N
failed".
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "tests-vm")]

from device_kinds import DEVICES, POLLED  # noqa: E402
from vm import build_env  # noqa: E402

LOGS = os.environ.get("RO2IBLND_LOGS", os.path.join(ROOT, "tests-vm", "logs"))
HOUR = 3600
# Memory for a pair of guests, and for a test with its own guests beside it.
PAIR_MIB = 3072


def pairs_at_once():
    """Returns how many pairs of guests run at a time: one more than there are CPUs, because guests also wait, as far as
    there is memory for them.
    """
    with open("/proc/meminfo", encoding="ascii") as f:
        available = int(re.search(r"^MemAvailable: +(\d+)", f.read(), re.MULTILINE)[1]) // 1024
    return max(1, min(1 + (os.cpu_count() or 1), available // PAIR_MIB, 8))


class Failure(Exception):
    """Error of a part that could not run to its end."""


def end(child):
    """Terminates a child and its whole session. SIGTERM comes first, so that make and others can delete half-made
    files.
    """
    for how in signal.SIGTERM, signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)


def stopped(number, _frame):
    sys.exit(f"ended by {signal.Signals(number).name}")


def run(name, *cmd, cwd=ROOT, timeout=HOUR, env=None):
    """Runs a command with its output in a log, and returns (exit status, output)."""
    path = os.path.join(LOGS, f"{name}.log")
    with open(path, "w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen(
            cmd, cwd=cwd, env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            status = -1
            log.write(f"\nkilled after {timeout} s\n")
        finally:
            # Ends the command and all its children, even if the test run is interrupted.
            if child.returncode is None:
                end(child)
        log.seek(0)
        out = log.read()
    if status != 0:
        tail = out.splitlines()[-40:]
        print("\n".join([f"--- {' '.join(cmd)}: exit status {status}, end of {path}:", *tail, "---"]))
    return status, out


def make(name, *targets):
    status, _out = run(name, "make", f"-j{os.cpu_count()}", *targets)
    if status != 0:
        raise Failure(f"make {' '.join(targets)}")


def cargo(name, directory, *options):
    tools = build_env()
    env = {
        "RUSTC": tools["RUSTC"],
        "RUSTDOC": tools["RUSTDOC"],
        "CARGO_TARGET_DIR": os.path.join(tools["CARGO_CACHE"], name),
    }
    status, out = run(name, tools["CARGO"], "test", "--locked", *options, cwd=os.path.join(ROOT, directory), env=env)
    results = re.findall(r"^test result: .* (\d+) passed; (\d+) failed", out, re.MULTILINE)
    passed = sum(int(p) for p, _ in results)
    failed = sum(int(f) for _, f in results)
    if not passed or (status != 0 and not failed):
        raise Failure("cargo test" if status else "no tests")
    return passed, failed


def host(_options):
    proto = cargo("host", "rust/proto")
    # The build is optimised because the tests measure the program's speed.
    top = cargo("ro2ibtop", "scripts/ro2ibtop", "--release")
    return proto[0] + top[0], proto[1] + top[1]


def model(options):
    directory = "rust/proto/model"
    if not os.path.exists(os.path.join(ROOT, directory, "Cargo.toml")):
        raise Failure(f"no {directory}")
    long = ("--", "--include-ignored") if options.long else ()
    return cargo("model", directory, "--release", *long)


def sim(options):
    tools = build_env()
    env = {k: tools[k] for k in ("RUSTC", "CARGO")}
    # Every machine runs the same worlds.
    count = "5000000" if options.long else "1000000"
    jobs = str(max(1, os.cpu_count() or 1))
    status, out = run("sim", "scripts/sim", "--count", count, "--jobs", jobs, env=env)
    results = re.search(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)
    if not results or (status != 0) != (results[2] != "0") or not int(results[1]):
        raise Failure("scripts/sim")
    print("  " + out.splitlines()[-2])
    passed, failed = int(results[1]), int(results[2])
    # More peers than may connect at a time.
    status, out = run("sim-storm", "scripts/sim", "--peers", "1000", env=env)
    good = status == 0 and out.rstrip().endswith("nothing wrong")
    print("  " + out.splitlines()[-1])
    # The budgets against hostile peers must not drop requests of these peers.
    status, out = run("sim-storms", "scripts/sim", "--peers", "400", "--storms", "3", env=env)
    again = status == 0 and out.rstrip().endswith("nothing wrong")
    print("  " + out.splitlines()[-1])
    passed, failed = passed + good + again, failed + (not good) + (not again)
    # A slow part must not delay others.
    status, out = run("sim-slow", "scripts/sim", "--slow", env=env)
    results = re.search(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)
    if not results or (status != 0) != (results[2] != "0") or not int(results[1]):
        raise Failure("scripts/sim --slow")
    print("  " + out.splitlines()[-1])
    return passed + int(results[1]), failed + int(results[2])


def fuzz(options):
    # Random inputs are for long runs; other runs are repeatable.
    how = ("--seconds", "1800") if options.long else ("--same",)
    status, out = run("fuzz", sys.executable, "-B", "scripts/fuzz", *how)
    results = re.search(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)
    if not results or (status != 0) != (results[2] != "0"):
        raise Failure("scripts/fuzz")
    print(re.sub(r"^", "  ", out[: results.start()].rstrip(), flags=re.MULTILINE))
    return int(results[1]), int(results[2])


def python():
    """Checks the Python code, including tests that only long runs execute: pytest collects each test, and all names
    that they use are defined.
    """
    bad = []
    status, out = run(
        "collect",
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--collect-only",
        "tests-vm",
        "scripts",
    )
    if status != 0:
        bad += re.findall(r"^E +.*|^ERROR .*", out, re.MULTILINE) or ["pytest --collect-only"]
    cmd = (sys.executable, "-B", "-m", "pyflakes", "scripts", "tests-vm")
    # pyflakes reports every fixture that is imported from another file as a redefinition, and cannot be told otherwise.
    done = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stderr:
        bad.append(done.stderr)
    found = re.findall(r"^(.+?):(\d+):\S* (undefined name .*|.* imported but unused)$", done.stdout, re.MULTILINE)
    for path, number, what in found:
        # Fixtures of another file are used by their names alone.
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            line = f.read().splitlines()[int(number) - 1]
        if "# noqa: F401" not in line:
            bad.append(f"{path}:{number}: {what}")
    print("\n".join(bad), end="\n" if bad else "")
    return not bad


def lint(_options):
    checks = (
        ("fmt-check", ("make", "fmt-check")),
        ("clippy", ("make", f"-j{os.cpu_count()}", "clippy")),
        ("audit", (sys.executable, "-B", "scripts/audit")),
    )
    passed = 0
    for name, cmd in checks:
        status, out = run(name, *cmd)
        # Kbuild's warning about tools that were installed after the kernel was built is not a lint.
        noise = (
            re.findall(r"^(?:warning|error)\b(?!: (?:pahole version|the compiler) differs).*", out, re.MULTILINE)
            if name == "clippy"
            else []
        )
        if status == 0 and noise:
            print("\n".join(sorted(set(noise))))
            # clippy does not check compiled files a second time.
            shutil.rmtree(os.path.join(ROOT, ".clippy"), ignore_errors=True)
        good = status == 0 and not noise
        print(f"  {name}: {'ok' if good else 'FAILED'}")
        passed += good
    good = python()
    print(f"  python: {'ok' if good else 'FAILED'}")
    return passed + good, len(checks) + 1 - passed - good


def kunit_module(module, before=(), crate=None):
    """Runs one KUnit module in a guest and returns (passed, failed). The module is built first if it is over another
    kernel crate.
    """
    if crate:
        make(f"build-{crate}", crate, f"GOALS={os.path.basename(module)}")
    cmd = (sys.executable, "-B", "scripts/vm", "kunit", "--two-links", *before, os.path.join(ROOT, module))
    status, out = run(f"kunit-{module.replace('/', '-')}", *cmd)
    counts = re.search(r"Testing complete\. Ran (\d+) tests: (.*)", out)
    cases = {k: int(n) for k, n in re.findall(r"(\w+): (\d+)", counts[2])} if counts else {}
    good = cases.get("passed", 0)
    # A skipped case counts as failed.
    bad = sum(n for k, n in cases.items() if k != "passed")
    if (status != 0 or not good) and not bad:
        bad = 1
    return good, bad


def kunit(_options):
    passed = failed = 0
    lnet_lite, driver = (os.path.join(ROOT, m) for m in ("lnet_lite/lnet_lite.ko", "ro2iblnd.ko"))
    runs = {
        "ro2iblnd_kunit.ko": {},
        # The driver's own kernel crate, on a kernel that has a crate itself: both must behave alike.
        ".own/ro2iblnd_kunit.ko": {"crate": "own-crate"},
        "ro2iblnd_e2e.ko": {"before": ("--before", lnet_lite, "--before", driver)},
    }
    with ThreadPoolExecutor(2) as pool:
        futures = {module: pool.submit(kunit_module, module, **how) for module, how in runs.items()}
    for module, future in futures.items():
        try:
            good, bad = future.result()
        except Failure as e:
            print(f"  FAILED: {e}")
            good, bad = 0, 1
        print(f"  {module}: {good} passed, {bad} failed")
        passed += good
        failed += bad
    return passed, failed


def pytest(name, options, *what):
    junit = os.path.join(LOGS, f"{name}.xml")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(junit)
    cmd = [
        sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-v", "--durations=10",
        f"--junitxml={junit}", "-o", "junit_family=xunit1", *what,
    ]  # fmt: skip
    if options.long:
        cmd += ["--long", "--vcpus", "4"]
    else:
        # All tests of a file run in one worker because they share a pair of guests.
        cmd += ["-n", str(pairs_at_once()), "--dist", "loadfile"]
        # By default xdist starts with files that have many tests, not with files that take long.
        if (
            "--no-loadscope-reorder"
            in subprocess.run([*cmd[:4], "--help"], capture_output=True, text=True, check=False).stdout
        ):
            cmd.append("--no-loadscope-reorder")
    status, out = run(name, *cmd, timeout=6 * HOUR)
    print(out[out.rfind("= slowest") :] if "= slowest" in out else out[-2000:])
    try:
        suite = ET.parse(junit).getroot().find("testsuite")
    except (FileNotFoundError, ET.ParseError):
        raise Failure("pytest did not come to its end") from None
    failed = set()
    passed = 0
    for case in suite.iter("testcase"):
        if any(case.find(k) is not None for k in ("failure", "error")):
            failed.add((case.get("classname"), case.get("name")))
        elif case.find("skipped") is None:
            passed += 1
        else:
            print(f"  skipped: {case.get('classname')} {case.get('name')}")
    if not passed or (status != 0 and not failed):
        raise Failure(f"pytest: exit status {status}")
    return passed, len(failed)


def guests(options):
    # `make test-lustre` runs the tests that need a Lustre tree.
    passed, failed = pytest("guests", options, "--ignore-glob=*/test_lustre*.py", "tests-vm", "scripts")
    if options.long:
        # Files whose completions were polled in a softirq run without it, and the others with it.
        good, bad = pytest("guests-others", options, "--polled", "others", *[f"tests-vm/{name}.py" for name in POLLED])
        passed, failed = passed + good, failed + bad
        what = [f"tests-vm/test_{name}.py" for name in ("traffic", "lifecycle")]
        for device in DEVICES.keys() - {"rxe"}:
            good, bad = pytest(f"guests-{device}", options, "--device", device, *what)
            passed, failed = passed + good, failed + bad
    return passed, failed


def bench(_options):
    make("bench-module", "bench-module")
    status, out = run("bench", sys.executable, "-B", "scripts/bench", "--check")
    results = re.search(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)
    if not results or (status != 0) != (results[2] != "0"):
        raise Failure("scripts/bench")
    print(re.sub(r"^", "  ", out[: results.start()].rstrip(), flags=re.MULTILINE))
    return int(results[1]), int(results[2])


def stock(options):
    return pytest(
        "stock",
        options,
        "tests-vm/test_driver_objdump.py",
        "tests-vm/test_stock_kernels.py",
        "tests-vm/test_vlan.py",
        "tests-vm/test_shared_adapter.py",
        "tests-vm/test_trace.py",
        "tests-vm/test_top.py",
    )


class Aside:
    """Part that runs in the background, because other parts leave a CPU idle while they compile."""

    def __init__(self, part):
        cmd = (sys.executable, "-B", "-u", __file__, "--only", part)
        self.child = subprocess.Popen(
            cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, _options):
        out = self.child.communicate()[0]
        results = re.search(r"^(\d+) passed, (\d+) failed$", out, re.MULTILINE)
        if not results or (self.child.returncode != 0) != (results[2] != "0"):
            raise Failure(out[-2000:])
        # Without the first line and the last three lines, which this script prints for every run.
        print("\n".join(out.splitlines()[1:-3]))
        return int(results[1]), int(results[2])


PARTS = {
    "host": host,
    "model": model,
    "sim": sim,
    "fuzz": fuzz,
    "lint": lint,
    "kunit": kunit,
    "guests": guests,
    "bench": bench,
    "stock": stock,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="also run the long tests of guests and the long searches")
    parser.add_argument("--only", action="append", choices=PARTS, help="run only this part (may be repeated)")
    options = parser.parse_args()
    os.makedirs(LOGS, exist_ok=True)
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, stopped)
    # guests includes stock.
    parts = options.only or [p for p in PARTS if p != "stock"]

    passed = failed = 0
    aside = {p: Aside(p) for p in ("lint", "fuzz") if p in parts and "sim" in parts and not options.long}
    if {"kunit", "guests"} & set(parts):
        print("== build", flush=True)
        try:
            make("build", "modules", "KUNIT_TESTS=1", "TEST_MODULES=1")
        except Failure as e:
            # The other parts can still run.
            print(f"  FAILED: {e}")
            failed += 1
            parts = [p for p in parts if p not in ("kunit", "guests")]
    for part in parts:
        began = time.monotonic()
        print(f"== {part}", flush=True)
        try:
            good, bad = (aside.get(part) or PARTS[part])(options)
        except Failure as e:
            print(f"  FAILED: {e}")
            good, bad = 0, 1
        print(f"  {part}: {good} passed, {bad} failed in {time.monotonic() - began:.0f} s", flush=True)
        passed += good
        failed += bad
    if not passed:
        failed = failed or 1
    print(f"logs: {LOGS}")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


sys.exit(main())
