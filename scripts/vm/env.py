# SPDX-License-Identifier: GPL-2.0
"""The paths that scripts/env prints: kernel tree, image, cache."""

import functools
import os
import shlex
import subprocess

SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.cache
def _build_env(_key):
    out = subprocess.run([os.path.join(SCRIPTS, "env")], check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = (shlex.split(line)[0].split("=", 1) for line in out.splitlines() if line)
    return dict(pairs)


def build_env():
    """A dict with KDIR, KSRC, KERNEL_IMAGE, KERNEL_MODULES, ..."""
    keys = ("KDIR", "KERNEL_FLAVOR", "KERNEL_SRC", "STOCK", "RO2IBLND_CACHE", "KERNEL_IMAGE", "KERNEL_MODULES")
    return _build_env(tuple(os.environ.get(k) for k in keys))
