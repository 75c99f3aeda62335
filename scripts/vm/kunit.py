# SPDX-License-Identifier: GPL-2.0
"""KUnit suites of modules, run in a guest and judged by the kernel's own parser."""

import os
import re
import subprocess
import sys

from .env import build_env
from .guest import Guest
from .rdma_links import setup_two_links
from .splat import splats

_STAMP = re.compile(r"^(<\d+>)?\[ *\d+\.\d+\](\[ *[TC]\d+\])? ")


def run_kunit(modules, before=(), two_links=False, timeout=300, params="", ignore=(), **options):
    """Loads each of `modules` in a fresh guest, prints the verdict, and returns 0 if all tests passed.

    before: modules loaded first, whose suites do not count
    A run without a suite, a failed case, and a splat in the log are failures.
    """
    parser = os.path.join(build_env()["KSRC"], "tools/testing/kunit/kunit.py")
    failed = 0
    with Guest("kunit", **options) as guest:
        if two_links:
            setup_two_links(guest)
        for path in before:
            guest.insmod(path)
        for path in modules:
            guest.check("dmesg -c >/dev/null")
            status, out = guest.run(f"insmod {guest.put(path)} {params}", timeout)
            log = guest.dmesg()
            name = os.path.basename(path)
            if status != 0:
                print(f"{name}: insmod: {out.strip()}\n{log}")
                failed += 1
                continue
            plain = "".join(_STAMP.sub("", line) + "\n" for line in log.splitlines())
            suites = re.findall(r"^(?:not )?ok \d+ (\S+)", plain, re.MULTILINE)
            verdict = subprocess.run([sys.executable, parser, "parse"], input=plain, text=True, check=False)
            bad = splats(log, ignore)
            print(f"{name}: {len(suites)} suites, parser says {verdict.returncode}, {len(bad)} splats")
            for line in bad:
                print(f"  {line}")
            if verdict.returncode != 0 or not suites or bad:
                failed += 1
    return 1 if failed else 0
