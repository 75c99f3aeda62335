# SPDX-License-Identifier: GPL-2.0
"""What is wrong with an object, seen by objdump: code that a kernel would not want to have. test_objects.py looks at the
driver's with it, test_objects_found.py at some that are wrong on purpose."""

import functools
import re
import subprocess

ADDRESS = r"^\s*[0-9a-f]+:\s+"
VECTOR = {
    # All that begins with f is x87's, or a prefix of a segment.
    "amd64": re.compile(rf"%[xyz]?mm\d|%st\b|{ADDRESS}f(?!s\b)"),
    # Not the targets of branches, which may look like registers.
    "arm64": re.compile(rf"{ADDRESS}(?!b\.|bl?\b|cb|tb|adr)\S+\s.*(?<![\w#])[bhsdqvz]([12]?\d|3[01])\b(?![^<]*>)"),
}
# A pointer in a table, and what code that is called through one begins with.
POINTER = {"amd64": "R_X86_64_64", "arm64": "R_AARCH64_ABS64"}
LANDING = {"amd64": ("endbr64",), "arm64": ("bti", "paciasp")}
RETURN = re.compile(rf"{ADDRESS}([a-z]+ )?l?ret[lqw]?\b")
INDIRECT = re.compile(r"\bl?(jmp|call)[lqw]?\s+\*")
STORE = re.compile(r"st[pr] .*\bx30\b.*\[sp")
# As it is read back: with the frame pointer, or alone from the top of the stack. Otherwise x30 is a register like any other.
LOAD = re.compile(r"ldp x29, x30, \[sp|ldr x30, \[sp\], ")
# compiler-rt's outline atomics, and what a compiler calls if it has no instruction.
OUTLINE = ("__aarch64_", "__atomic_", "__sync_")


class Object:
    """An object file, and objdump's words about it; `program` is one that knows its architecture."""

    def __init__(self, path, arch="amd64", program=("objdump",), cwd=None):
        self.path, self.arch, self.program, self.cwd = path, arch, program, cwd

    def objdump(self, option):
        cmd = [*self.program, option, "--no-show-raw-insn", self.path]
        return subprocess.run(cmd, check=True, cwd=self.cwd, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    @functools.cached_property
    def code(self):
        """The disassembly, line by line."""
        return self.objdump("-d")

    @functools.cached_property
    def functions(self):
        """The instructions of each function by (section, address)."""
        found, section, body = {}, None, []
        for line in self.code:
            if m := re.match(r"Disassembly of section (\S+):", line):
                section = m[1]
            elif m := re.match(r"([0-9a-f]+) <.+>:", line):
                body = found[section, int(m[1], 16)] = []
            elif m := re.match(r"\s*[0-9a-f]+:\s+(.*)", line):
                body.append(" ".join(m[1].split()))
        return found

    @functools.cached_property
    def sections(self):
        """Sizes by name."""
        text = "\n".join(self.objdump("-h"))
        return {
            name: int(size, 16) for name, size in re.findall(r"^\s*\d+\s+(\S+)\s+([0-9a-f]{8})\s", text, re.MULTILINE)
        }

    @functools.cached_property
    def undefined(self):
        """Names that others have to have."""
        return [line.split()[-1] for line in self.objdump("-t") if "*UND*" in line]

    def floating_point(self):
        return [line for line in self.code if VECTOR[self.arch].search(line)]

    def raw_returns(self):
        return [line for line in self.code if RETURN.search(line)]

    def raw_indirect_branches(self):
        return [line for line in self.code if INDIRECT.search(line)]

    def targets(self):
        """Functions whose address is in data, such as a table of callbacks: (section, address) of each."""
        found, where = [], ""
        relocation = re.compile(rf"\S+\s+{POINTER[self.arch]}\s+(\.text\S*?)(\+0x[0-9a-f]+)?$")
        for line in self.objdump("-r"):
            if m := re.match(r"RELOCATION RECORDS FOR \[(\S+)\]", line):
                where = m[1]
            elif where.startswith((".data", ".rodata")) and (m := relocation.match(line)):
                found.append((m[1], int(m[2] or "0", 16)))
        return found

    def without_landing_pad(self):
        """Of `targets` those that are not the beginning of a function, or do not begin with a landing pad."""
        first = {name: body[0].split()[0] for name, body in self.functions.items() if body}
        return [t for t in self.targets() if first.get(t) not in LANDING[self.arch]]

    def saving(self):
        """Functions that keep the return address in memory."""
        return [name for name, body in self.functions.items() if any(STORE.match(ins) for ins in body)]

    def unsigned_returns(self):
        """Of `saving` those that do so before it is signed, or use what they read back before it is checked."""
        bad = []
        for name in self.saving():
            body = self.functions[name]
            first = next(i for i, ins in enumerate(body) if STORE.match(ins))
            if "paciasp" not in body[:first]:
                bad.append((name, first))
            # From where it is read back to where it is used.
            for i, ins in enumerate(body):
                if LOAD.match(ins):
                    rest = body[i:]
                    ends = [n for n, r in enumerate(rest) if r.split()[0] in ("ret", "b", "br")]
                    if not ends or "autiasp" not in rest[: ends[0]]:
                        bad.append((name, i))
        return bad

    def outline_atomics(self):
        return [name for name in self.undefined if name.startswith(OUTLINE)]

    def full_barriers(self):
        """Atomic operations of arm64 with a fence on either side: how many."""
        loop = r"ldxrb? .*\n(?:(?!dmb).*\n){1,5}cbnz .*\n"
        fenced = re.compile(rf"^dmb ish\n(?:(?!dmb).*\n){{0,3}}{loop}(?:(?!dmb).*\n)?dmb ish$", re.MULTILINE)
        return sum(len(fenced.findall("\n".join(body))) for body in self.functions.values())

    def seq_cst(self):
        """Those that let accesses from before pass those that follow."""
        loop = re.compile(r"^ldaxrb? .*\n(?:.*\n){0,5}stlxrb? .*$", re.MULTILINE)
        return [m[0] for body in self.functions.values() for m in loop.finditer("\n".join(body))]
