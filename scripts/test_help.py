# SPDX-License-Identifier: GPL-2.0
"""Tests of --help of the scripts for developers. Run: pytest scripts"""

import os
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = (
    "audit",
    "demo",
    "fuzz",
    "package",
    "prepare",
    "proto-defects",
    "sim",
    "sim-defects",
    "sim-mutants",
    "stock-kernel",
    "test",
    "test-demo",
    "test-packages",
)


@pytest.mark.parametrize("options", [["--help"], ["-h"]])
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_prints_a_text_and_does_nothing_else(name, options, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "RO2IBLND_CACHE": str(home / "cache"),
        "RO2IBLND_LOGS": str(home / "logs"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [os.path.join(HERE, name), *options], env=env, cwd=home, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 3
    assert not list(home.iterdir())


def test_help_is_found_among_other_options(tmp_path):
    done = subprocess.run(
        [os.path.join(HERE, "test"), "--long", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "--only PART" in done.stdout
