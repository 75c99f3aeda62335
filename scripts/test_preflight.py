# SPDX-License-Identifier: GPL-2.0
"""scripts/preflight against made-up kernel trees. Run: pytest scripts"""

import os
import stat
import subprocess

import pytest

PREFLIGHT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preflight")
RUSTC_TEXT = "rustc 1.99.0 (fake)"
CONFIG = f"""CONFIG_64BIT=y
CONFIG_MODULES=y
CONFIG_INFINIBAND=m
CONFIG_INFINIBAND_ADDR_TRANS=y
CONFIG_RUST=y
CONFIG_RUSTC_VERSION_TEXT="{RUSTC_TEXT}"
CONFIG_OBJTOOL=y
CONFIG_KUNIT=y
CONFIG_RDMA_RXE=m
"""
FILES = (
    "rust/libcore.rmeta",
    "rust/libkernel.rmeta",
    "rust/libpin_init.rmeta",
    "rust/libmacros.so",
    "rust/bindgen_parameters",
    "include/generated/rustc_cfg",
    "scripts/target.json",
    "Module.symvers",
    "tools/objtool/objtool",
)


def script(path, text):
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def tree(tmp_path):
    kdir = tmp_path / "kernel"
    for name in FILES:
        path = kdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    (kdir / "tools/objtool/objtool").chmod(0o755)
    conf = kdir / "include/config/auto.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(CONFIG)
    env = dict(
        os.environ,
        RUSTC=script(tmp_path / "rustc", RUSTC_TEXT),
        BINDGEN=script(tmp_path / "bindgen", "bindgen 0.73.0"),
        LLVM="1",
    )

    def run():
        done = subprocess.run([PREFLIGHT, kdir], env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    run.kdir, run.conf = kdir, conf
    return run


def test_complete_tree_is_ok(tree):
    status, out, err = tree()
    assert status == 0, err
    assert out == f"preflight: {tree.kdir}: ok\n"


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(tree, name):
    (tree.kdir / name).unlink()
    status, out, err = tree()
    assert status == 1
    assert out == ""
    assert os.path.basename(name) in err
    assert len(err.splitlines()) <= 2  # the note on gcc may come along


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("CONFIG_RUST=y\n", "", "CONFIG_RUST is off"),
        ("CONFIG_INFINIBAND=m\n", "", "CONFIG_INFINIBAND is off"),
        ("CONFIG_INFINIBAND_ADDR_TRANS=y\n", "", "rdma_cm"),
        ("CONFIG_MODULES=y\n", "", "CONFIG_MODULES is off"),
        ("1.99.0", "1.98.0", "set RUSTC"),
    ],
)
def test_wrong_config_is_named(tree, old, new, says):
    tree.conf.write_text(CONFIG.replace(old, new))
    status, _, err = tree()
    assert status == 1
    assert says in err


def test_kunit_as_module_is_only_a_note(tree):
    tree.conf.write_text(CONFIG.replace("KUNIT=y", "KUNIT=m"))
    status, _, err = tree()
    assert status == 0
    assert "KUNIT" in err


def test_unconfigured_and_absent_trees(tree):
    tree.conf.unlink()
    assert "not configured" in tree()[2]
    tree.kdir.rename(tree.kdir.with_name("gone"))
    status, _, err = tree()
    assert status == 1
    assert "no such directory" in err
