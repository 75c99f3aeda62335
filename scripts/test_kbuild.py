# SPDX-License-Identifier: GPL-2.0
"""Tests of Kbuild's variables, as make expands them for a made-up kernel. Run: pytest scripts"""

import glob
import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAKEFILE = """
src := {root}
obj := {obj}
objtree := {obj}
srctree := {obj}
SRCARCH := x86
RUST_CRATE := own
c_flags := {flags}
include {root}/Kbuild
$(info BINDGEN $(ro2ib-bindgen-cflags))
$(info CC $(subdir-ccflags-y))
FORCE: ;
"""


@pytest.fixture
def variables(tmp_path):
    def variables(flags="", *options):
        makefile = MAKEFILE.format(root=ROOT, obj=tmp_path, flags=flags)
        done = subprocess.run(
            ["make", "-n", "-f", "-", *options, "FORCE"],
            input=makefile, cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("BINDGEN", "CC")))

    return variables


@pytest.mark.parametrize(
    "flag",
    [
        "-ftrivial-auto-var-init=zero",
        "-ftrivial-auto-var-init=pattern",
        "-fplugin=./scripts/gcc-plugins/latent_entropy_plugin.so",
        "-fplugin-arg-stackleak_plugin-track-min-size=100",
    ],
)
def test_libclang_gets_no_flag_that_only_gcc_knows(variables, flag):
    flags = variables(f"-DBEFORE {flag} -DAFTER")["BINDGEN"].split()
    assert "-DBEFORE" in flags and "-DAFTER" in flags
    assert not [f for f in flags if f.startswith(flag.split("=")[0])]


def test_warnings_end_only_test_oldest_kernels(variables):
    assert "-Wno-error" in variables()["CC"].split()
    assert "-Wno-error" not in variables("", "KUNIT_TESTS=1")["CC"].split()


def test_builds_that_tests_start_choose_their_own_cache_for_core():
    """A variable that `make test` exported empty would turn the cache of those builds off."""
    env = {name: value for name, value in os.environ.items() if name not in ("CACHE", "RO2IB_RUST_CACHE")}
    cmd = ["make", "-f", os.path.join(ROOT, "Makefile"), "--eval", "show: ; @env", "show", "KDIR=/nonexistent", "CACHE="]
    done = subprocess.run(cmd, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "PATH=" in done.stdout and "RO2IB_RUST_CACHE" not in done.stdout


def names(pattern):
    """Returns the names that match a regular expression of alternatives in parentheses."""
    if m := re.search(r"\(([\w|]+)\)", pattern):
        return [n for word in m[1].split("|") for n in names(pattern[: m.start()] + word + pattern[m.end() :])]
    return [pattern]


def test_bindings_have_no_unused_kernel_function():
    with open(os.path.join(ROOT, "scripts/bindgen_parameters"), encoding="ascii") as f:
        found = re.findall(r"^--allowlist-function '?([^'\n]+)'?$", f.read(), re.MULTILINE)
    wanted = [n for pattern in found if not pattern.startswith("ro2ib_") for n in names(pattern)]
    assert len(wanted) >= 10
    code = ""
    for path in glob.glob(os.path.join(ROOT, "rust/**/*.rs"), recursive=True) + glob.glob(f"{ROOT}/tests-kunit/*.rs"):
        if "/sim/" not in path and not path.endswith("_generated.rs"):
            with open(path, encoding="utf-8") as f:
                code += f.read()
    assert not [name for name in wanted if not re.search(rf"\bbindings::{name}\b", code)]


def test_no_macro_declares_a_function_for_rust():
    """bindgen 0.69.4, which some distributions have, does not see functions that a macro declares."""
    headers = [os.path.join(ROOT, "include", name) for name in os.listdir(os.path.join(ROOT, "include"))]
    found = [line for header in headers for line in open(header) if re.search(r"##\w+\(.*\);", line)]
    assert found == []
