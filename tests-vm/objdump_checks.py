# SPDX-License-Identifier: GPL-2.0
"""Checks of objects with objdump for code that a kernel must not have. test_driver_objdump.py applies them to the
driver's objects, test_objdump_checks.py to objects that are wrong on purpose."""

import bisect
import collections
import functools
import re
import subprocess

ADDRESS = r"^\s*[0-9a-f]+:\s+"
VECTOR = {
    # Everything that begins with f is x87's, or a prefix of a segment.
    "amd64": re.compile(rf"%[xyz]?mm\d|%st\b|{ADDRESS}f(?!s\b)"),
    # Without the targets of branches, which may look like registers.
    "arm64": re.compile(rf"{ADDRESS}(?!b\.|bl?\b|cb|tb|adr)\S+\s.*(?<![\w#])[bhsdqvz]([12]?\d|3[01])\b(?![^<]*>)"),
}
# A pointer in a table, and the first instructions of code that is called through a pointer.
POINTER = {"amd64": "R_X86_64_64", "arm64": "R_AARCH64_ABS64"}
LANDING = {"amd64": ("endbr64",), "arm64": ("bti", "paciasp")}
RETURN = re.compile(rf"{ADDRESS}([a-z]+ )?l?ret[lqw]?\b")
INDIRECT = re.compile(r"\bl?(jmp|call)[lqw]?\s+\*")
STORE = re.compile(r"st[pr] .*\bx30\b.*\[sp")
# Load of a saved return address: with the frame pointer, or alone from the top of the stack. Otherwise x30 is a
# register like any other.
LOAD = re.compile(r"ldp x29, x30, \[sp|ldr x30, \[sp\], ")
# Room that a function takes on the stack.
FRAME = {
    "amd64": re.compile(r"\bsub\s+\$0x([0-9a-f]+),%rsp"),
    "arm64": re.compile(r"\bsub\s+sp, sp, #0x([0-9a-f]+)(, lsl #12)?|\bst[pr]\b.*\[sp, #-(\d+)\]!"),
}
# A call or jump to another function: what objdump prints in the instruction, and the relocation below it.
BRANCH = re.compile(r"\b(?:call|j\w+|bl?|b\.\w+)\s+[0-9a-f]+ <([^+>]+)(?:\+0x[0-9a-f]+)?>")
CALL_RELOCATION = re.compile(
    r"\s+[0-9a-f]+: R_(?:X86_64_(?:PLT|PC)32|AARCH64_(?:CALL|JUMP)26)\s+(\S+?)([+-]0x[0-9a-f]+)?$"
)
# A section that rustc makes for one function or one constant, and that a kernel's linker script would have merged.
OWN_SECTION = re.compile(r"^\.(text|rodata|data|bss)\b.*\.(_R|L?anon\.|ro2ib_)")
# Functions of core that end in a panic. `core::fmt` has some for templates that no compiler makes.
PANIC = re.compile(r"4core.*(9panicking|_fail)")
FORMATTER = re.compile(r"4core.*3fmt")
# compiler-rt's outline atomics, and functions that a compiler calls if it has no instruction.
OUTLINE = ("__aarch64_", "__atomic_", "__sync_")


class Object:
    """Object file, and objdump's output for it. `program` is an objdump that knows its architecture."""

    def __init__(self, path, arch="amd64", program=("objdump",), cwd=None):
        self.path, self.arch, self.program, self.cwd = path, arch, program, cwd

    def objdump(self, option):
        cmd = [*self.program, option, "--no-show-raw-insn", self.path]
        return subprocess.run(cmd, check=True, cwd=self.cwd, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    @functools.cached_property
    def code(self):
        """Disassembly, line by line."""
        return self.objdump("-d")

    @functools.cached_property
    def functions(self):
        """Instructions of each function by (section, address)."""
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
        """Sizes of sections by name."""
        text = "\n".join(self.objdump("-h"))
        return {
            name: int(size, 16) for name, size in re.findall(r"^\s*\d+\s+(\S+)\s+([0-9a-f]{8})\s", text, re.MULTILINE)
        }

    @functools.cached_property
    def undefined(self):
        """Names that other objects have to define."""
        return [line.split()[-1] for line in self.objdump("-t") if "*UND*" in line]

    @functools.cached_property
    def _named(self):
        """Lines of the disassembly with relocations, each with its section and function."""
        found, section, name = [], None, None
        for line in self.objdump("-dr"):
            if m := re.match(r"Disassembly of section (\S+):", line):
                section = m[1]
            elif m := re.match(r"([0-9a-f]+) <(.+)>:", line):
                # Padding before a function has a local label.
                name = m[2]
                found.append((section, name, int(m[1], 16), None))
            elif name:
                found.append((section, name, None, line))
        return found

    def frames(self):
        """Returns the bytes of stack by name of function, without pushed registers."""
        found = collections.Counter()
        for _, name, _, line in self._named:
            if line and (m := FRAME[self.arch].search(line)):
                if self.arch == "amd64":
                    size = int(m[1], 16)
                    # Compilers also write an addition of 128 in this way.
                    size = 0 if size >> 63 else size
                    found[name] = max(found[name], size)
                else:
                    found[name] += int(m[3]) if m[3] else int(m[1], 16) << (12 if m[2] else 0)
        return found

    def large_frames(self, limit):
        return {name: size for name, size in self.frames().items() if size > limit}

    def own_sections(self):
        return [name for name in self.sections if OWN_SECTION.search(name)]

    @functools.cached_property
    def calls(self):
        """Names of the functions that each function calls, or jumps to, directly."""
        starts, found = collections.defaultdict(list), collections.defaultdict(set)
        for section, name, address, _ in self._named:
            if address is not None:
                starts[section].append((address, name))
        for _, name, _, line in self._named:
            if not line:
                continue
            if m := CALL_RELOCATION.match(line):
                target, offset = m[1], int(m[2] or "0", 16)
                if target in starts:
                    # x86 counts from the end of the instruction.
                    offset += 4 if self.arch == "amd64" else 0
                    at = bisect.bisect_right(starts[target], (offset, "\x7f")) - 1
                    target = starts[target][max(at, 0)][1]
                found[name].add(target)
            elif (m := BRANCH.search(line)) and m[1] != name:
                found[name].add(m[1])
        return found

    def reachable(self, roots):
        """Returns the functions that direct calls reach from those whose names match, each with its caller."""
        prev = {name: None for name in self.calls if re.search(roots, name)}
        todo = list(prev)
        for name in todo:
            for target in sorted(self.calls.get(name, ())):
                if target not in prev:
                    prev[target] = name
                    todo.append(target)
        return prev

    def panics(self, roots):
        """Returns paths from functions whose names match to a call of a panic, one for each function that has such a
        call."""
        prev, found = self.reachable(roots), []
        for name in prev:
            if PANIC.search(name) or FORMATTER.search(name):
                continue
            if any(PANIC.search(target) for target in self.calls.get(name, ())):
                way = [name]
                while prev[way[-1]]:
                    way.append(prev[way[-1]])
                found.append(" <- ".join(way))
        return found

    def floating_point(self):
        return [line for line in self.code if VECTOR[self.arch].search(line)]

    def raw_returns(self):
        return [line for line in self.code if RETURN.search(line)]

    def raw_indirect_branches(self):
        return [line for line in self.code if INDIRECT.search(line)]

    def targets(self):
        """Returns (section, address) of functions whose address is in data, such as a table of callbacks."""
        found, where = [], ""
        relocation = re.compile(rf"\S+\s+{POINTER[self.arch]}\s+(\.text\S*?)(\+0x[0-9a-f]+)?$")
        for line in self.objdump("-r"):
            if m := re.match(r"RELOCATION RECORDS FOR \[(\S+)\]", line):
                where = m[1]
            elif where.startswith((".data", ".rodata")) and (m := relocation.match(line)):
                found.append((m[1], int(m[2] or "0", 16)))
        return found

    def without_landing_pad(self):
        """Returns those of `targets` that are not the start of a function, or do not start with a landing pad."""
        first = {name: body[0].split()[0] for name, body in self.functions.items() if body}
        return [t for t in self.targets() if first.get(t) not in LANDING[self.arch]]

    def saving(self):
        """Returns the functions that keep the return address in memory."""
        return [name for name, body in self.functions.items() if any(STORE.match(ins) for ins in body)]

    def unsigned_returns(self):
        """Returns those of `saving` that store the address before it is signed, or use the loaded address before it is
        checked."""
        bad = []
        for name in self.saving():
            body = self.functions[name]
            first = next(i for i, ins in enumerate(body) if STORE.match(ins))
            if "paciasp" not in body[:first]:
                bad.append((name, first))
            # From the load of the address to its use.
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
        """Returns the number of arm64's atomic operations with a fence on either side."""
        loop = r"ldxrb? .*\n(?:(?!dmb).*\n){1,5}cbnz .*\n"
        fenced = re.compile(rf"^dmb ish\n(?:(?!dmb).*\n){{0,3}}{loop}(?:(?!dmb).*\n)?dmb ish$", re.MULTILINE)
        return sum(len(fenced.findall("\n".join(body))) for body in self.functions.values())

    def seq_cst(self):
        """Returns the atomic operations that let earlier accesses pass later ones."""
        loop = re.compile(r"^ldaxrb? .*\n(?:.*\n){0,5}stlxrb? .*$", re.MULTILINE)
        return [m[0] for body in self.functions.values() for m in loop.finditer("\n".join(body))]
