# SPDX-License-Identifier: GPL-2.0
"""Paths that scripts/env prints: kernel tree, image, cache."""

import functools
import glob
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
    """Returns a dict with KDIR, KSRC, KERNEL_IMAGE, KERNEL_MODULES, ..."""
    keys = ("KDIR", "KERNEL_FLAVOR", "KERNEL_SRC", "STOCK", "RO2IBLND_CACHE", "KERNEL_IMAGE", "KERNEL_MODULES")
    return _build_env(tuple(os.environ.get(k) for k in keys))


def stock_env(path):
    """Returns the content of a stock.env, which scripts/stock-kernel wrote, as a dict."""
    with open(path, encoding="ascii") as f:
        return dict(word.split("=", 1) for word in shlex.split(f.read()))


def stock_kernel(release):
    """Returns kdir, image and tree of the stock kernel of that release, for Guest. It raises FileNotFoundError if the
    kernel was not fetched.
    """
    cache = build_env()["CACHE"]
    for path in glob.glob(os.path.join(cache, "stock", "*", "stock.env")):
        env = stock_env(path)
        if env["RELEASE"] == release:
            return {"kdir": env["KDIR"], "image": env["KERNEL_IMAGE"], "tree": env["KERNEL_MODULES"]}
    raise FileNotFoundError(f"no stock kernel {release} in {cache}: see scripts/stock-kernel fetch")
