# SPDX-License-Identifier: GPL-2.0
"""Throw-away QEMU guests that run the test kernel, or a stock one. See guest.py."""

from .env import build_env
from .guest import CommandFailed, Guest, GuestDead, Job, Timeout, pair
from .kunit import run_kunit
from .links import setup_link, setup_two_links
from .splat import splats, taints

__all__ = [
    "CommandFailed",
    "Guest",
    "GuestDead",
    "Job",
    "Timeout",
    "build_env",
    "pair",
    "run_kunit",
    "setup_link",
    "setup_two_links",
    "splats",
    "taints",
]
