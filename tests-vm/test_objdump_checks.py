# SPDX-License-Identifier: GPL-2.0
"""Tests of objdump_checks.py with objects that are wrong on purpose. For amd64 this machine's compiler and assembler
make them. For arm64, whose tools may be missing, the tests have objdump's output. They need no guest and no kernel."""

import subprocess

import pytest
from objdump_checks import Object

# Options as for a kernel: the compiler makes thunks of all returns and indirect branches.
KERNEL = ["-O2", "-ffreestanding", "-mno-sse", "-mno-mmx", "-mno-80387", "-mfunction-return=thunk-extern"]
KERNEL += ["-mindirect-branch=thunk-extern", "-fno-pic", "-mcmodel=kernel", "-fno-asynchronous-unwind-tables"]
IBT = "-fcf-protection=branch"
C = """
static int twice(int x) { return 2 * x; }
int (*const table[])(int) = { twice };
long counter;
int call(int (*f)(int), int x) { __atomic_fetch_add(&counter, 1, 5); return f(x) + 1; }
"""
LOOKS = ("floating_point", "raw_returns", "raw_indirect_branches", "without_landing_pad", "outline_atomics")


def compiled(path, options=(), planted=""):
    """Returns an object compiled from C, with an instruction planted inside its code."""
    source = path / "x.c"
    source.write_text(C + (f'void planted(void) {{ asm volatile("{planted}"); }}\n' if planted else ""))
    out = str(path / "x.o")
    subprocess.run(["gcc", *KERNEL, IBT, *options, "-c", "-o", out, source], check=True)
    return Object(out)


def assembled(path, text):
    source = path / "x.s"
    source.write_text(text)
    subprocess.run(["gcc", "-c", "-o", path / "x.o", source], check=True)
    return Object(str(path / "x.o"))


def found(one):
    """Returns the findings of each check, without checks that found nothing."""
    return {look: bad for look in LOOKS if (bad := getattr(one, look)())}


def test_nothing_is_found_where_nothing_is(tmp_path):
    one = compiled(tmp_path)
    assert found(one) == {}
    # The checks had code to look at.
    assert len(one.functions) == 2 and len(one.targets()) == 1
    assert {"__x86_return_thunk", "__x86_indirect_thunk_rdi"} & set(one.undefined)
    assert one.sections[".text"] > 0


@pytest.mark.parametrize(
    ("look", "instruction"),
    [
        *(("raw_returns", i) for i in ("ret", "rep; ret", "ret $8", "bnd ret", "lret")),
        *(
            ("raw_indirect_branches", i)
            for i in ("jmp *%rax", "jmp *(%rdi)", "call *%rax", "call *8(%rsi)", "notrack jmp *%rax", "ljmp *(%rdi)")
        ),
        *(
            ("floating_point", i)
            for i in ("movaps %xmm0, %xmm1", "movq %xmm3, %rax", "vaddps %ymm1, %ymm2, %ymm15", "vpxorq %zmm1, %zmm2, %zmm31")
        ),
        *(("floating_point", i) for i in ("movd %eax, %mm0", "fldz", "fildl (%rdi)", "fadd %st(1), %st")),
    ],
)
def test_one_instruction_is_found(tmp_path, look, instruction):
    one = compiled(tmp_path, planted=instruction)
    bad = found(one)
    assert list(bad) == [look], bad
    assert len(bad[look]) == 1, bad


@pytest.mark.parametrize(
    ("look", "option", "count"),
    [
        ("raw_returns", "-mfunction-return=keep", 2),
        ("raw_indirect_branches", "-mindirect-branch=keep", 1),
        ("without_landing_pad", "-fcf-protection=none", 1),
    ],
)
def test_a_missing_option_of_the_compiler_is_found(tmp_path, look, option, count):
    bad = found(compiled(tmp_path, [option]))
    assert list(bad) == [look], bad
    assert len(bad[look]) == count, bad


def test_a_table_that_points_into_a_function_is_found(tmp_path):
    one = compiled(tmp_path, planted="nop; 1: endbr64; .pushsection .rodata; .quad 1b; .popsection; nop")
    assert len(one.targets()) == 2
    assert len(one.without_landing_pad()) == 1


def test_data_is_not_reported(tmp_path):
    """Names and prefixes that resemble a forbidden instruction are not found."""
    planted = "call return_it; jmp retry; mov %fs:0, %rax; cmpxchg %rax, (%rdi); mov $0x10, %eax"
    assert found(compiled(tmp_path, planted=planted)) == {}


def test_sections_of_single_functions_are_found(tmp_path):
    mangled = "_RNvMNtCsiAA1Kt7k6GH_8ro2iblnd3lnd"
    assert not assembled(tmp_path, '.section .text.unlikely, "ax"\n nop').own_sections()
    assert assembled(tmp_path, f'.section .text.{mangled}, "ax"\n nop').own_sections() == [f".text.{mangled}"]
    assert assembled(tmp_path, '.section .rodata..Lanon.1, "a"\n .byte 0').own_sections() == [".rodata..Lanon.1"]


def test_large_frames_are_found(tmp_path):
    assert not compiled(tmp_path, planted="sub $0x80, %rsp; add $0x80, %rsp; sub $-128, %rsp").large_frames(1024)
    one = compiled(tmp_path, planted="sub $0x10, %rsp; sub $0x418, %rsp; add $0x428, %rsp")
    assert one.large_frames(1024) == {"planted": 0x418}


PANIC = "_RNvNtNtCs2DxGA1hvVcO_4core9panicking11panic_const24panic_const_sub_overflow"
FORMATTER = "_RNvNtCs2DxGA1hvVcO_4core3fmt5write"


@pytest.mark.parametrize("section", [".text", ".text.unlikely"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_panic_that_can_be_reached_is_found(tmp_path, section, inside):
    """Panics behind calls within a section, which have an address, and behind calls with a relocation, for a section or
    a name of another object, are found."""
    one = assembled(
        tmp_path,
        f"""
        .text
        handler: call middle; ret
        other: call leaf; ret
        leaf: ret
        .section {section}
        nop
        middle: call leaf; jmp {PANIC}
        {f"{PANIC}: ud2" if inside else ""}
        """,
    )
    assert one.panics("^handler$") == ["middle <- handler"]
    assert set(one.reachable("^other$")) == {"other", "leaf"}
    assert not one.panics("^other$")


def test_the_formatter_of_core_may_panic(tmp_path):
    one = assembled(tmp_path, f"handler: call {FORMATTER}; ret\n{FORMATTER}: call {PANIC}\n")
    assert FORMATTER in one.reachable("^handler$")
    assert not one.panics("^handler$")


def test_calls_for_atomics_are_found(tmp_path):
    assert list(found(compiled(tmp_path, planted="call __atomic_fetch_add_8"))) == ["outline_atomics"]
    assert list(found(compiled(tmp_path, planted="call __aarch64_ldadd8_acq_rel"))) == ["outline_atomics"]


# --- arm64


class Told(Object):
    """Object of arm64 that consists of objdump's output only."""

    def __init__(self, code, data=()):
        super().__init__("none", "arm64")
        lines = [f"{i * 4:4x}:\t{line}" for i, line in enumerate(code)]
        self.told = {
            "-d": ["Disassembly of section .text:", "0000000000000000 <f>:", *lines],
            "-r": ["RELOCATION RECORDS FOR [.rodata]:", *(f"0000 R_AARCH64_ABS64   {d}" for d in data)],
        }

    def objdump(self, option):
        return self.told[option]


SIGNED = ["paciasp", "stp\tx29, x30, [sp, #-32]!", "bl\td0 <g>", "ldp\tx29, x30, [sp], #32", "autiasp", "ret"]


def test_arm64_nothing_is_found_where_nothing_is():
    one = Told(SIGNED, [".text"])
    assert one.saving() and one.targets()
    assert not one.unsigned_returns() and not one.without_landing_pad() and not one.floating_point()


@pytest.mark.parametrize("gone", ["paciasp", "autiasp"])
def test_arm64_an_unsigned_return_address_is_found(gone):
    assert Told([line for line in SIGNED if line != gone]).unsigned_returns()


def test_arm64_a_return_address_checked_too_late_is_found():
    assert Told([*SIGNED[:4], "ret", "autiasp"]).unsigned_returns()


def test_arm64_x30_may_be_a_register_like_any_other():
    scratch = ["str x30, [sp, #24]", "ldp x30, x11, [sp, #24]", "add x9, x30, x11", "b 40"]
    assert not Told([*SIGNED[:3], *scratch, *SIGNED[3:]]).unsigned_returns()


def test_arm64_a_missing_landing_pad_is_found():
    assert Told(["nop", *SIGNED], [".text"]).without_landing_pad() == [(".text", 0)]
    assert Told(SIGNED, [".text+0x4"]).without_landing_pad() == [(".text", 4)]


@pytest.mark.parametrize("instruction", ["fmov\td0, x1", "ldr\tq0, [x1]", "movi\tv0.2d, #0x0", "str\ts3, [x0]"])
def test_arm64_floating_point_is_found(instruction):
    assert len(Told([*SIGNED, instruction]).floating_point()) == 1


LOOP = ["ldxr\tx1, [x0]", "add\tx2, x1, #0x1", "stxr\tw3, x2, [x0]", "cbnz\tw3, 4 <f+0x4>"]


def test_arm64_full_barriers_are_counted():
    assert Told(["dmb\tish", *LOOP, "dmb\tish"]).full_barriers() == 1
    assert Told([*LOOP, "dmb\tish"]).full_barriers() == 0
    assert Told(["dmb\tish", *LOOP, "ret"]).full_barriers() == 0


def test_arm64_seq_cst_is_found():
    weak = [line.replace("ldxr", "ldaxr").replace("stxr", "stlxr") for line in LOOP]
    assert len(Told(weak).seq_cst()) == 1
    assert not Told(LOOP).seq_cst()
