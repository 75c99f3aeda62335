# SPDX-License-Identifier: GPL-2.0
"""Tests of the flags that scripts/rust-flags gives rustc for some configurations of a kernel. Run: pytest scripts"""

import os
import subprocess

import pytest
from test_preflight import CONFIG, script, write

HERE = os.path.dirname(os.path.abspath(__file__))
ARM64 = CONFIG.replace("X86_64", "ARM64")


@pytest.fixture
def flags(tmp_path):
    def flags(config, minor=85):
        write(tmp_path / "include/config/auto.conf", config)
        rustc = script(tmp_path / "rustc", f'echo "rustc 1.{minor}.0 (fake)"')
        env = {"PATH": os.environ["PATH"], "RUSTC": rustc}
        subprocess.run([os.path.join(HERE, "rust-flags"), tmp_path, tmp_path / "out"], env=env, check=True)
        return (tmp_path / "out/flags").read_text().splitlines()

    return flags


@pytest.mark.parametrize("config", [CONFIG, ARM64], ids=["amd64", "arm64"])
def test_functions_have_no_section_of_their_own(flags, config):
    assert "-Zfunction-sections=n" in flags(config)


@pytest.mark.parametrize(
    ("config", "option", "flag"),
    [
        (CONFIG, "FRAME_POINTER", "-Zllvm_module_flag=frame-pointer:u32:2:max"),
        (ARM64, "UNWIND_TABLES", "-Zllvm_module_flag=uwtable:u32:2:max"),
    ],
    ids=["amd64", "arm64"],
)
def test_functions_that_llvm_adds_are_as_all_others(flags, config, option, flag):
    """Checks the flag for LLVM, which rustc itself sets from 1.98 on."""
    assert flag not in flags(config)
    config += f"CONFIG_{option}=y\n"
    assert flag in flags(config) and flag in flags(config, 97)
    assert flag not in flags(config, 98)


def test_a_rustc_that_does_not_run_is_named(tmp_path):
    write(tmp_path / "include/config/auto.conf", CONFIG)
    env = {"PATH": os.environ["PATH"], "RUSTC": script(tmp_path / "rustc", "exit 1")}
    command = [os.path.join(HERE, "rust-flags"), tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"rust-flags: {tmp_path}/rustc does not run: install" in done.stderr, done
