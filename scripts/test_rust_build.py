# SPDX-License-Identifier: GPL-2.0
"""Tests of the errors of scripts/rust-build, with a made-up compiler. Run: pytest scripts"""

import os
import subprocess

import pytest
from test_preflight import CONFIG, script, write

HERE = os.path.dirname(os.path.abspath(__file__))

# One of the two forms of the stub has an attribute from the command line.
RUSTC = """case $* in
*--version*) echo "rustc 1.99.0 (fake)" ;;
*compiler_builtins*no_core*) echo "error: with no_core" >&2; exit {with_no_core} ;;
*compiler_builtins*) echo "error: without" >&2; exit {without} ;;
esac"""


@pytest.fixture
def build(tmp_path):
    kdir, core = tmp_path / "kernel", tmp_path / "library"
    write(kdir / "include/config/auto.conf", CONFIG)
    write(core / "core/src/lib.rs", "")
    write(tmp_path / "crates/pinned-init/src/lib.rs", "")
    write(tmp_path / "obj/rust/kernel/x", "")

    def build(**codes):
        env = {
            "PATH": os.environ["PATH"],
            "RO2IB_SRC": os.path.dirname(HERE),
            "RO2IB_OBJ": str(tmp_path / "obj"),
            "RO2IB_KDIR": str(kdir),
            "RUSTC": script(tmp_path / "rustc", RUSTC.format(**codes)),
            "RUST_LIB_SRC": str(core),
            "CRATES": str(tmp_path / "crates"),
        }
        done = subprocess.run(
            [os.path.join(HERE, "rust-build"), "--base", tmp_path / "stamp"],
            env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        left = [entry.name for entry in (tmp_path / "obj/rust/kernel").glob("base-*")]
        return done.returncode, done.stderr, left

    return build


@pytest.mark.parametrize(("with_no_core", "without"), [(0, 1), (1, 0)])
def test_either_form_of_the_stub_will_do(build, with_no_core, without):
    status, err, left = build(with_no_core=with_no_core, without=without)
    assert status == 0, err
    assert len(left) == 1
    assert "error: with no_core" not in err


def test_both_errors_are_shown_if_both_forms_fail(build):
    status, err, left = build(with_no_core=1, without=1)
    assert status == 1
    assert "error: with no_core" in err and "error: without" in err
    assert "no stub of compiler_builtins" in err
    assert left == []
