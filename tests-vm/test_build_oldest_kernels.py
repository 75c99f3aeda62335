# SPDX-License-Identifier: GPL-2.0
"""The driver builds for the oldest supported kernels of Debian. With --long test_stock_kernels.py loads it. The
compiler detects what a later kernel has or lacks."""

import os
import re
import subprocess

import pytest
import vm
from conftest import MODULES
from test_stock_kernels import stock

TOOLS = re.compile(r"warning: (pahole version|the compiler) differs")


@pytest.mark.parametrize("series", ["5.10", "6.1"])
def test_build_oldest_kernels(series):
    """The build is complete, as a user builds it, for exactly this kernel, and uses only exported symbols."""
    directory = stock("fetch", series)
    built = stock("build", series)
    with open(f"{built}.log", encoding="utf-8", errors="replace") as f:
        log = f.read()
    release = vm.stock_env(os.path.join(directory, "stock.env"))["RELEASE"]
    for module in MODULES:
        info = subprocess.run(
            ["modinfo", "-F", "vermagic", os.path.join(built, module)], capture_output=True, text=True, check=True
        )
        assert info.stdout.split()[0] == release
    assert "undefined!" not in log
    # The warning that the tools are not the kernel's does not concern the driver.
    assert not [line for line in log.splitlines() if "warning:" in line and not TOOLS.search(line)]
