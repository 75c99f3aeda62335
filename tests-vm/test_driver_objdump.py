# SPDX-License-Identifier: GPL-2.0
"""Checks with objdump that rustc's code for a stock kernel follows that kernel's rules for all code. The security team
of a distribution asks for these first. They need no guest."""

import os
import re

import pytest
from conftest import ROOT
from objdump_checks import Object
from test_stock_kernels import KERNELS, STOCK, stock


class Built:
    """Modules for one kernel."""

    def __init__(self, series):
        tree = stock("build", series)
        with open(f"{tree}.log", encoding="utf-8", errors="replace") as f:
            self.log = f.read()
        env = os.path.join(stock("fetch", series), "stock.env")
        with open(env, encoding="ascii") as f:
            found = dict(re.findall(r"^(\w+)=(.*)$", f.read(), re.MULTILINE))
        self.arch = found.get("KERNEL_ARCH", "amd64")
        kdir = found["KDIR"]
        with open(os.path.join(kdir, "include/config/auto.conf"), encoding="ascii") as f:
            self.config = dict(re.findall(r"^CONFIG_(\w+)=(.*)$", f.read(), re.MULTILINE))
        # The objdump of this machine may not know another architecture.
        program = ("objdump",) if self.arch == "amd64" else (STOCK, "tool", series, "objdump")
        self.rust, self.module = (
            Object(os.path.join(tree, name), self.arch, program, cwd=ROOT) for name in ("rust/ro2iblnd.o", "ro2iblnd.ko")
        )

    def has(self, *names):
        """Returns whether the kernel has an option, under any of its names."""
        return any(self.config.get(n) == "y" for n in names)


@pytest.fixture(scope="module", params=KERNELS)
def built(request):
    return Built(request.param)


def test_build_has_no_warnings(built):
    """Neither the compiler, nor objtool, nor modpost warns about the driver."""
    # Kbuild's warnings about tools of another version than the kernel's do not concern the driver.
    others = re.compile(r"(compiler|pahole version) differs")
    bad = [line for line in built.log.splitlines() if re.search(r"\b(warning|error|WARNING|ERROR)\b", line)]
    bad = [line for line in bad if not others.search(line)]
    assert not bad, "\n".join(bad)


def test_no_floating_point(built):
    assert len(built.rust.functions) > 100
    assert not built.rust.floating_point()


def test_returns_go_through_the_thunk(built):
    if not built.has("MITIGATION_RETHUNK", "RETHUNK"):
        pytest.skip("this kernel has no return thunks")
    assert not built.rust.raw_returns()
    assert built.module.sections[".return_sites"] > 0


def test_indirect_branches_go_through_retpolines(built):
    if not built.has("MITIGATION_RETPOLINE", "RETPOLINE"):
        pytest.skip("this kernel has no retpolines")
    assert not built.rust.raw_indirect_branches()
    assert any(name.startswith("__x86_indirect_thunk") for name in built.rust.undefined)


def test_the_unwinder_knows_the_code(built):
    if not built.has("UNWINDER_ORC"):
        pytest.skip("this kernel has no ORC unwinder")
    # At least one entry for each function: its start.
    assert built.module.sections[".orc_unwind_ip"] // 4 > len(built.rust.functions) > 100


def test_indirect_targets_have_landing_pads(built):
    if not built.has("X86_KERNEL_IBT", "ARM64_BTI_KERNEL"):
        pytest.skip("this kernel has neither IBT nor BTI")
    assert built.rust.targets()
    assert not built.rust.without_landing_pad()


def test_return_addresses_are_signed(built):
    if not built.has("ARM64_PTR_AUTH_KERNEL"):
        pytest.skip("this kernel has no pointer authentication")
    assert len(built.rust.saving()) > 100
    assert not built.rust.unsigned_returns()


def test_atomics_are_instructions(built):
    """The code calls none of compiler-rt's outline atomics, which no kernel has."""
    assert built.rust.undefined
    assert not built.rust.outline_atomics()


def test_no_section_of_its_own_for_each_function(built):
    """Functions have no sections of their own: the kernel keeps a name, and a file in sysfs, for each section of a
    loaded module."""
    assert not built.rust.own_sections()
    assert not built.module.own_sections()
    assert len(built.module.sections) < 150


def test_frames_are_small(built):
    """Stack frames are small: LNet calls the driver from deep in a file system, with 16 KiB of stack for both."""
    frames = built.module.frames()
    assert len(frames) > 100
    assert not built.module.large_frames(1024)


def test_no_completion_handler_can_panic(built):
    """No completion handler can panic: a panic in a softirq stops the node."""
    # The function that C calls for the completions of a poll.
    roots = r"4rdma2qp.*5round"
    found = built.rust.reachable(roots)
    assert sum(1 for caller in found.values() if caller is None) == 1
    assert len(found) > 100
    assert not built.rust.panics(roots)


def test_full_barriers(built):
    """`Full` is a fence on either side: `SeqCst` alone lets earlier accesses pass later ones."""
    if built.arch != "arm64":
        pytest.skip("any locked instruction is a full barrier")
    assert built.rust.full_barriers() > 20
    assert not built.rust.seq_cst()
