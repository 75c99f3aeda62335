# SPDX-License-Identifier: GPL-2.0
"""What rustc made for a stock kernel, looked at with objdump: it has to be as that kernel wants all code to be. What a
distribution's security people ask first. Needs no guest."""

import functools
import os
import re
import subprocess

import pytest
from conftest import ROOT
from test_stock import KERNELS, STOCK, stock

VECTOR = {
    "amd64": re.compile(r"%[xyz]mm\d|\bfld|\bfst"),
    # Not the targets of branches, which may look like registers.
    "arm64": re.compile(
        r"^\s*[0-9a-f]+:\s+(?!b\.|bl?\b|cb|tb|adr)\S+\s.*(?<![\w#])[bhsdqvz]([12]?\d|3[01])\b(?![^<]*>)"
    ),
}
# A pointer in a table, and what code that is called through one begins with.
POINTER = {"amd64": "R_X86_64_64", "arm64": "R_AARCH64_ABS64"}
LANDING = {"amd64": ("endbr64",), "arm64": ("bti", "paciasp")}
RETURN = re.compile(r"^\s*[0-9a-f]+:\s+(repz )?retq?\b")
INDIRECT = re.compile(r"\b(jmp|call)q?\s+\*")


class Built:
    """The modules for one kernel."""

    def __init__(self, series):
        self.series = series
        self.log = stock("build", series, log=True)
        self.tree = self.log.splitlines()[-1]
        env = os.path.join(stock("fetch", series), "stock.env")
        with open(env, encoding="ascii") as f:
            found = dict(re.findall(r"^(\w+)=(.*)$", f.read(), re.MULTILINE))
        self.arch = found.get("KERNEL_ARCH", "amd64")
        kdir = found["KDIR"]
        with open(os.path.join(kdir, "include/config/auto.conf"), encoding="ascii") as f:
            self.config = dict(re.findall(r"^CONFIG_(\w+)=(.*)$", f.read(), re.MULTILINE))

    def has(self, *names):
        """Whether the kernel has an option, under any of its names."""
        return any(self.config.get(n) == "y" for n in names)

    def objdump(self, option, name="rust/ro2iblnd.o"):
        path = os.path.join(self.tree, name)
        # That of this machine may not know another architecture.
        program = ["objdump"] if self.arch == "amd64" else [STOCK, "tool", self.series, "objdump"]
        cmd = [*program, option, "--no-show-raw-insn", path]
        return subprocess.run(cmd, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    @functools.cached_property
    def rust(self):
        return self.objdump("-d")

    @functools.cached_property
    def functions(self):
        """The instructions of each function of Rust by (section, address)."""
        found, section, body = {}, None, []
        for line in self.rust:
            if m := re.match(r"Disassembly of section (\S+):", line):
                section = m[1]
            elif m := re.match(r"([0-9a-f]+) <.+>:", line):
                body = found[section, int(m[1], 16)] = []
            elif m := re.match(r"\s*[0-9a-f]+:\s+(.*)", line):
                body.append(" ".join(m[1].split()))
        return found

    @functools.cached_property
    def sections(self):
        """Sizes of the module's sections by name."""
        text = "\n".join(self.objdump("-h", "ro2iblnd.ko"))
        return {
            name: int(size, 16) for name, size in re.findall(r"^\s*\d+\s+(\S+)\s+([0-9a-f]{8})\s", text, re.MULTILINE)
        }


@pytest.fixture(scope="module", params=KERNELS)
def built(request):
    return Built(request.param)


def test_nobody_has_anything_to_say(built):
    """Neither compiler, nor objtool, nor modpost."""
    # What Kbuild says of tools of another version than the kernel's is not about us.
    others = re.compile(r"(compiler|pahole version) differs")
    bad = [line for line in built.log.splitlines() if re.search(r"\b(warning|error|WARNING|ERROR)\b", line)]
    bad = [line for line in bad if not others.search(line)]
    assert not bad, "\n".join(bad)


def test_no_floating_point(built):
    assert not [line for line in built.rust if VECTOR[built.arch].search(line)]


def test_returns_go_through_the_thunk(built):
    if not built.has("MITIGATION_RETHUNK", "RETHUNK"):
        pytest.skip("this kernel has no return thunks")
    assert not [line for line in built.rust if RETURN.search(line)]
    assert built.sections[".return_sites"] > 0


def test_indirect_branches_go_through_retpolines(built):
    if not built.has("MITIGATION_RETPOLINE", "RETPOLINE"):
        pytest.skip("this kernel has no retpolines")
    assert not [line for line in built.rust if INDIRECT.search(line)]
    assert "__x86_indirect_thunk" in "\n".join(built.objdump("-t"))


def test_the_unwinder_knows_the_code(built):
    if not built.has("UNWINDER_ORC"):
        pytest.skip("this kernel has no ORC unwinder")
    # An entry for each function at least: where it begins.
    functions = sum(1 for line in built.rust if line.endswith(">:"))
    assert functions > 100
    assert built.sections[".orc_unwind_ip"] // 4 > functions


def test_what_is_called_by_address_is_a_landing_pad(built):
    if not built.has("X86_KERNEL_IBT", "ARM64_BTI_KERNEL"):
        pytest.skip("this kernel has neither IBT nor BTI")
    first = {name: body[0].split()[0] for name, body in built.functions.items() if body}
    # Data that holds the address of a function: tables of callbacks.
    targets, where = [], ""
    relocation = re.compile(rf"\S+\s+{POINTER[built.arch]}\s+(\.text\S*?)(\+0x[0-9a-f]+)?$")
    for line in built.objdump("-r"):
        if m := re.match(r"RELOCATION RECORDS FOR \[(\S+)\]", line):
            where = m[1]
        elif where.startswith((".data", ".rodata")) and (m := relocation.match(line)):
            targets.append((m[1], int(m[2] or "0", 16)))
    assert targets
    # Each is the beginning of a function that was looked at, and is a landing pad.
    bad = [t for t in targets if first.get(t) not in LANDING[built.arch]]
    assert not bad, bad


def test_return_addresses_are_signed(built):
    if not built.has("ARM64_PTR_AUTH_KERNEL"):
        pytest.skip("this kernel has no pointer authentication")
    store, load = re.compile(r"st[pr] .*\bx30\b.*\[sp"), re.compile(r"ld[pr] .*\bx30\b.*\[sp")
    signed = 0
    for name, body in built.functions.items():
        saves = [i for i, ins in enumerate(body) if store.match(ins)]
        if not saves:
            continue
        signed += 1
        assert "paciasp" in body[: saves[0]], name
        # From where it is read back to where it is used.
        for i, ins in enumerate(body):
            if load.match(ins):
                rest = body[i:]
                ends = [n for n, r in enumerate(rest) if r.split()[0] in ("ret", "b", "br")]
                assert "autiasp" in rest[: ends[0]] if ends else False, (name, i)
    assert signed > 100


def test_atomics_are_instructions(built):
    """No calls of compiler-rt's outline atomics, which no kernel has."""
    undefined = [line.split()[-1] for line in built.objdump("-t") if "*UND*" in line]
    assert undefined
    assert not [name for name in undefined if name.startswith(("__aarch64_", "__atomic_", "__sync_"))]


def test_full_barriers(built):
    """`Full` is a fence on either side: `SeqCst` alone lets accesses from before pass those that follow."""
    if built.arch != "arm64":
        pytest.skip("any locked instruction is a full barrier")
    loop = r"ldxrb? .*\n(?:(?!dmb).*\n){1,5}cbnz .*\n"
    fenced = re.compile(rf"^dmb ish\n(?:(?!dmb).*\n){{0,3}}{loop}(?:(?!dmb).*\n)?dmb ish$", re.MULTILINE)
    seq_cst = re.compile(r"^ldaxrb? .*\n(?:.*\n){0,5}stlxrb? .*$", re.MULTILINE)
    bodies = ["\n".join(body) for body in built.functions.values()]
    assert sum(len(fenced.findall(body)) for body in bodies) > 20
    assert not [m[0] for body in bodies for m in seq_cst.finditer(body)]
