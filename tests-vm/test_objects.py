# SPDX-License-Identifier: GPL-2.0
"""What rustc made for a stock kernel, looked at with objdump: it has to be as that kernel wants all code to be. What a
distribution's security people ask first. Needs no guest."""

import functools
import os
import re
import subprocess

import pytest
from test_stock import KERNELS, stock

VECTOR = re.compile(r"%[xyz]mm\d|\bfld|\bfst")
RETURN = re.compile(r"^\s*[0-9a-f]+:\s+(repz )?retq?\b")
INDIRECT = re.compile(r"\b(jmp|call)q?\s+\*")


def objdump(*words):
    return subprocess.run(["objdump", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


class Built:
    """The modules for one kernel."""

    def __init__(self, series):
        self.log = stock("build", series, log=True)
        self.tree = self.log.splitlines()[-1]
        env = os.path.join(stock("fetch", series), "stock.env")
        with open(env, encoding="ascii") as f:
            kdir = re.search(r"^KDIR=(.*)$", f.read(), re.MULTILINE)[1]
        with open(os.path.join(kdir, "include/config/auto.conf"), encoding="ascii") as f:
            self.config = dict(re.findall(r"^CONFIG_(\w+)=(.*)$", f.read(), re.MULTILINE))

    def has(self, *names):
        """Whether the kernel has an option, under any of its names."""
        return any(self.config.get(n) == "y" for n in names)

    @functools.cached_property
    def rust(self):
        return objdump("-d", "--no-show-raw-insn", os.path.join(self.tree, "rust/ro2iblnd.o")).splitlines()

    @functools.cached_property
    def sections(self):
        """Sizes of the module's sections by name."""
        text = objdump("-h", os.path.join(self.tree, "ro2iblnd.ko"))
        return {name: int(size, 16) for name, size in re.findall(r"^\s*\d+\s+(\S+)\s+([0-9a-f]{8})\s", text, re.MULTILINE)}


@pytest.fixture(scope="module", params=KERNELS)
def built(request):
    return Built(request.param)


def test_nobody_has_anything_to_say(built):
    """Neither compiler, nor objtool, nor modpost."""
    bad = [line for line in built.log.splitlines() if re.search(r"\b(warning|error|WARNING|ERROR)\b", line)]
    assert not bad, "\n".join(bad)


def test_no_floating_point(built):
    assert not [line for line in built.rust if VECTOR.search(line)]


def test_returns_go_through_the_thunk(built):
    if not built.has("MITIGATION_RETHUNK", "RETHUNK"):
        pytest.skip("this kernel has no return thunks")
    assert not [line for line in built.rust if RETURN.search(line)]
    assert built.sections[".return_sites"] > 0


def test_indirect_branches_go_through_retpolines(built):
    if not built.has("MITIGATION_RETPOLINE", "RETPOLINE"):
        pytest.skip("this kernel has no retpolines")
    assert not [line for line in built.rust if INDIRECT.search(line)]
    assert "__x86_indirect_thunk" in "\n".join(objdump("-t", os.path.join(built.tree, "rust/ro2iblnd.o")).splitlines())


def test_the_unwinder_knows_the_code(built):
    if not built.has("UNWINDER_ORC"):
        pytest.skip("this kernel has no ORC unwinder")
    # An entry for each function at least: where it begins.
    functions = sum(1 for line in built.rust if line.endswith(">:"))
    assert functions > 100
    assert built.sections[".orc_unwind_ip"] // 4 > functions


def test_what_is_called_by_address_begins_with_endbr(built):
    if not built.has("X86_KERNEL_IBT"):
        pytest.skip("this kernel has no IBT")
    first, name, section = {}, None, None
    for line in built.rust:
        if m := re.match(r"Disassembly of section (\S+):", line):
            section = m[1]
        elif m := re.match(r"([0-9a-f]+) <(.+)>:", line):
            name, at = (section, int(m[1], 16)), None
        elif name and (m := re.match(r"\s*([0-9a-f]+):\s+(\S+)", line)):
            first[name] = m[2]
            name = None
    # Data that holds the address of a function: tables of callbacks.
    targets, where = [], ""
    for line in objdump("-r", os.path.join(built.tree, "rust/ro2iblnd.o")).splitlines():
        if m := re.match(r"RELOCATION RECORDS FOR \[(\S+)\]", line):
            where = m[1]
        elif where.startswith((".data", ".rodata")) and (m := re.match(r"\S+\s+R_X86_64_64\s+(\.text\S*?)(\+0x[0-9a-f]+)?$", line)):
            targets.append((m[1], int(m[2] or "0", 16)))
    assert targets
    # A vtable's entries are never jumped to without its own check; all of them have it.
    bad = [t for t in targets if first.get(t) not in (None, "endbr64")]
    assert not bad, bad
    assert any(v == "endbr64" for v in first.values())
