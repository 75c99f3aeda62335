# SPDX-License-Identifier: GPL-2.0
"""Tests of the evaluation of `make bench`. Run: pytest scripts"""

import copy
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from bench import judge  # noqa: E402
from bench.cases import CASES, CHEAP  # noqa: E402
from bench.symbols import Symbols, mentions, readable  # noqa: E402
from bench_lustre import beside  # noqa: E402

KALLSYMS = """\
ffffffff81000000 T _text
ffffffff81000010 t __pfx_kmem_cache_free
ffffffff81000020 T kmem_cache_free
ffffffff81000020 T an_alias
ffffffff81000100 T rust_helper_refcount_inc
ffffffff81000200 D some_data
ffffffffa0000000 t ro2ib_send	[ro2iblnd]
ffffffffa0001000 t rxe_completer	[rdma_rxe]
"""


def test_addresses_find_their_function():
    symbols = Symbols(KALLSYMS, {"an_alias": "mm/slub.o"})
    assert symbols.at(0xFFFFFFFFA0000000) == (("ro2ib_send", "ro2iblnd"), 0)
    assert symbols.at(0xFFFFFFFFA0000007) == (("ro2ib_send", "ro2iblnd"), 7)
    assert symbols.at(0xFFFFFFFF80000000) == (("?", ""), -1)
    # Data symbols are not functions.
    assert symbols.at(0xFFFFFFFF81000204) == (("rust_helper_refcount_inc", ""), 0x104)


@pytest.mark.parametrize(
    ("name", "module", "what"),
    [
        ("ro2ib_send", "ro2iblnd", "LND"),
        ("kiblnd_send", "ko2iblnd", "LND"),
        ("lnet_parse", "lnet", "LNet"),
        ("rxe_completer", "rdma_rxe", "provider"),
        ("crc32_le_arch", "", "provider"),
        ("rust_helper_refcount_inc", "", "LND"),
        ("_RNvNtCs1_6kernel4sync3foo", "", "LND"),
        ("from_a_list", "", "memory"),
        ("from_a_list.constprop.0", "", "memory"),
        ("_raw_spin_lock", "", "locks"),
        ("nobody_knows", "", "rest"),
    ],
)
def test_functions_have_classes(name, module, what):
    assert Symbols(KALLSYMS, {"from_a_list": "mm/slub.o"}).class_of(name, module) == what


def test_names_have_no_hashes():
    name = "_RNvNtNtCs4fqI2P2rA04_8ro2iblnd3lnd4pump4pump"
    assert readable([name, "ro2ib_send"]) == {name: "lnd::pump::pump", "ro2ib_send": "ro2ib_send"}


DISASSEMBLY = """\
0000000000000010 <ro2ib_send>:
      10:	mov    0x0(%rip),%rax        # 17 <ro2ib_send+0x7>
			13: R_X86_64_PC32	masks-0x4
      17:	testb  $0x2,0x1(%rax)
      1b:	mov    0x0(%rip),%rax        # 22 <ro2ib_send+0x12>
			1e: R_X86_64_PC32	masks_of_others-0x4

0000000000000030 <ro2ib_receive>:
      30:	nop
      31:	mov    0x0,%rax
			34: R_X86_64_32S	masks
"""


def test_data_references_are_found():
    assert mentions(DISASSEMBLY, "masks") == {"ro2ib_send": [0], "ro2ib_receive": [1]}
    assert mentions(DISASSEMBLY, "nothing") == {}


def test_the_baseline_has_all_cases():
    base = judge.load()
    assert list(base["cases"]) == list(CASES) and set(CHEAP) <= set(CASES)
    for case in base["cases"].values():
        assert sum(case["functions"].values()) == pytest.approx(case["classes"]["LND"], rel=0.01)


@pytest.mark.parametrize("name", CHEAP)
def test_growth_fails_and_names_the_case(name):
    base = judge.load()["cases"][name]
    assert judge.verdict(name, base, base, judge.GROWTH)[0]
    now = copy.deepcopy(base)
    function = next(iter(now["functions"]))
    more = 0.035 * base["classes"]["LND"]
    now["functions"][function] += more
    now["functions"]["lnd::new::function"] = 2
    now["classes"]["LND"] += more
    good, lines = judge.verdict(name, base, now, judge.GROWTH)
    assert not good and "+3.5%" in lines[0]
    assert function in lines[1] and "lnd::new::function" in lines[2] and len(lines) == 3
    assert judge.verdict(name, base, now, judge.GROWTH_OTHERWISE)[0]


def test_other_compilers_and_kernels_make_other_code():
    base = {"made with": {"rustc": "1"}}
    assert judge.limit(base, {"rustc": "1"}, "/k/linux-7.3-plain-0") == (judge.GROWTH, "")
    assert judge.limit(base, {"rustc": "2"}, "/k/linux-7.3-plain-0")[0] == judge.GROWTH_OTHERWISE
    assert judge.limit(base, {"rustc": "1"}, "/k/linux-7.3-debug-0")[0] == float("inf")


def test_a_baseline_is_saved_and_kept_by_toolchain(tmp_path):
    path = str(tmp_path / "baseline.json")
    case = judge.load()["cases"][CHEAP[0]]
    judge.save({"one": case}, {"rustc": "1"}, path)
    judge.save({"two": case}, {"rustc": "1"}, path)
    assert list(judge.load(path)["cases"]) == ["one", "two"]
    judge.save({"two": case}, {"rustc": "2"}, path)
    assert list(judge.load(path)["cases"]) == ["two"]
    assert judge.load(path)["cases"]["two"]["functions"] == case["functions"]


def test_smallest_window_counts():
    def window(n):
        return {"classes": {"LND": n}}

    assert judge.best([window(3), window(1), window(2)]) == window(1)


def test_other_work_is_subtracted():
    def of(**counts):
        return {key: dict(counts) for key in ("classes", "calls", "functions", "called", "everything")} | {
            "messages": 100
        }

    left = judge.without(of(a=3, b=10), of(a=1, b=1, c=2))
    assert left["messages"] == 100
    # The largest count comes first; a function that only the rest has gets a negative count.
    assert list(left["functions"].items()) == [("b", 9), ("a", 2), ("c", -2)]


def test_both_drivers_are_printed_with_the_ratio():
    def of(lnd, rest):
        return {
            "ping x1": {
                "classes": {"LND": lnd, "network": 50, "rest": rest},
                "calls": {"wake-ups": lnd / 10},
                "messages": lnd,
            }
        }

    lines = beside({"ro2iblnd": of(30, 10), "ko2iblnd": of(20, 60)}).splitlines()
    assert "| LND | 30 / 20 = 1.50 |" in lines
    # A class that did not occur counts as zero.
    assert "| memory | 0 / 0 = - |" in lines
    assert "| all but provider, network, LNet | 40 / 80 = 0.50 |" in lines
    assert "| whole kernel | 90 / 130 = 0.69 |" in lines
    assert "| wake-ups | 3.00 / 2.00 = 1.50 |" in lines
    assert lines[-1] == "| counted | 30 / 20 |"


@pytest.mark.parametrize("other", ["--check", "--save"])
def test_trace_excludes_check_and_save(other):
    """Checks that the command line is refused before a guest boots."""
    bench = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench")
    done = subprocess.run([sys.executable, "-B", bench, "--trace", other], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--trace" in done.stderr, done


@pytest.mark.parametrize("option", ["--check", "--save"])
def test_a_module_for_tests_is_not_compared(tmp_path, option):
    """Checks that a module with hooks for tests is refused before a guest boots."""
    bench = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench")
    module = tmp_path / "ro2iblnd.ko"
    gcc = ["gcc", "-x", "c", "-c", "-o", str(module), "-"]
    subprocess.run(gcc, input="int ro2ib_wc_send(void) { return 0; }", text=True, check=True)
    cmd = [sys.executable, "-B", bench, "--built", str(tmp_path), option]
    done = subprocess.run(cmd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "TEST_MODULES" in done.stderr, done
    assert judge.has_hooks(module)
    subprocess.run(gcc, input="int ro2ib_send(void) { return 0; }", text=True, check=True)
    assert not judge.has_hooks(module)


# Program that runs the plugin with the guest's memory at one address for all.
TOUCHES = r"""
#include "icount.c"

static bool stores;
static uint64_t at;

#define QEMU(type, name, args, ...) type qemu_plugin_##name args { return __VA_ARGS__; }
QEMU(void, register_vcpu_tb_trans_cb, (qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *)))
QEMU(void, register_vcpu_insn_exec_cb,
     (struct qemu_plugin_insn *, void (*)(unsigned int, void *), enum qemu_plugin_cb_flags, void *))
QEMU(void, register_vcpu_insn_exec_inline, (struct qemu_plugin_insn *, enum qemu_plugin_op, void *, uint64_t))
QEMU(void, register_vcpu_mem_cb,
     (struct qemu_plugin_insn *, void (*)(unsigned int, qemu_plugin_meminfo_t, uint64_t, void *),
      enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw, void *))
QEMU(size_t, tb_n_insns, (const struct qemu_plugin_tb *), 0)
QEMU(struct qemu_plugin_insn *, tb_get_insn, (const struct qemu_plugin_tb *, size_t), NULL)
QEMU(uint64_t, insn_vaddr, (const struct qemu_plugin_insn *), 0)
QEMU(size_t, insn_size, (const struct qemu_plugin_insn *), 0)
QEMU(const void *, insn_data, (const struct qemu_plugin_insn *), NULL)
QEMU(_Bool, mem_is_store, (qemu_plugin_meminfo_t), stores)
QEMU(struct qemu_plugin_hwaddr *, get_hwaddr, (qemu_plugin_meminfo_t, uint64_t), (void *)&at)
QEMU(_Bool, hwaddr_is_io, (const struct qemu_plugin_hwaddr *), false)
QEMU(uint64_t, hwaddr_phys_addr, (const struct qemu_plugin_hwaddr *), at)

/* "r0 100": CPU 0 reads there. Prints whether that moved the line. */
int main(void)
{
	unsigned int cpu;
	char what;

	while (scanf(" %c%u %lx", &what, &cpu, &at) == 3) {
		uint64_t moved = 0;

		stores = what == 'w';
		touch(cpu, 0, 0, &moved);
		printf("%d", (int)moved);
	}
	return 0;
}
"""


def test_lines_move_between_cpus(tmp_path):
    """Checks that a CPU that has read or written a line has its content until another CPU writes it."""
    here = os.path.dirname(os.path.abspath(__file__))
    (tmp_path / "touches.c").write_text(TOUCHES)
    gcc = ["gcc", "-std=gnu2x", "-O2", "-DRO2IB_PLUGIN_API=1", "-I", os.path.join(here, "bench")]
    subprocess.run([*gcc, "-o", tmp_path / "touches", tmp_path / "touches.c", "-lpthread"], check=True)

    def moves(script):
        return subprocess.run([tmp_path / "touches"], input=script, check=True, capture_output=True, text=True).stdout

    # A write to a line that no CPU has; reads by the same CPU, by another CPU, and by both, which now have the line.
    assert moves("w0 1000 r0 1008 r1 1010 r1 1000 r0 1000") == "00100"
    # A write takes the line from all other CPUs, once.
    assert moves("r0 40 r1 40 r2 40 w1 40 w1 40 r1 40 r0 40") == "0111001"
    # Adjacent lines are separate.
    assert moves("w0 0 w1 40 w0 3f w1 7f w2 80") == "00000"
    # A CPU that only reads an unchanged line moves it once.
    assert moves("w3 fff000 r2 fff000 r2 fff000 r3 fff000") == "0100"
