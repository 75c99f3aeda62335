# SPDX-License-Identifier: GPL-2.0
"""Temporary QEMU guests that run the test kernel, or a stock kernel. See guest.py."""

from .env import build_env, stock_env, stock_kernel
from .guest import PROVIDERS, Bond, CommandFailed, Guest, GuestDead, Job, Timeout, pair, patching_accel
from .kunit import run_kunit
from .rdma_links import enslave, fail_over, link_name, plug, setup_bond, setup_link, setup_two_links, unplug
from .splat import has_foreign, splats, taints

__all__ = [
    "PROVIDERS",
    "Bond",
    "CommandFailed",
    "Guest",
    "GuestDead",
    "Job",
    "Timeout",
    "build_env",
    "stock_env",
    "stock_kernel",
    "enslave",
    "fail_over",
    "has_foreign",
    "link_name",
    "pair",
    "patching_accel",
    "plug",
    "run_kunit",
    "setup_bond",
    "setup_link",
    "setup_two_links",
    "splats",
    "taints",
    "unplug",
]
