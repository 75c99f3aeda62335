# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/kernel-probe with made-up headers. Run: pytest scripts"""

import os
import re
import subprocess

import pytest

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel-probe")

# As in 5.11 to 6.9: a caller that ignores the return value gets a warning.
SLAB = """
#define GFP_KERNEL 0
__attribute__((warn_unused_result))
static inline void *krealloc_array(void *p, unsigned long n, unsigned long size, int flags) { return p; }
"""


@pytest.mark.parametrize("flags", [[], ["-Werror"], ["-Wall", "-Wextra", "-Werror"]])
def test_a_warning_is_no_answer(tmp_path, flags):
    """Checks probes on a kernel with -Werror: if they failed, ro2iblnd_compat.h would define existing functions again.
    """
    with open(PROBE) as f:
        names = set(re.findall(r"(?:linux|rdma)/[a-z_]+\.h", f.read()))
    for name in names:
        path = tmp_path / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SLAB if name == "linux/slab.h" else "")
    header = tmp_path / "probes.h"
    subprocess.run(
        [PROBE, header, "gcc", "-nostdinc", f"-I{tmp_path}/include", *flags], check=True, capture_output=True
    )
    # Missing features are missing with any flags.
    assert re.findall("RO2IB_HAVE_([A-Z_]+)", header.read_text()) == ["NOTHING", "KREALLOC_ARRAY"]
