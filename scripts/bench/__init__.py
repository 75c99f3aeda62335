# SPDX-License-Identifier: GPL-2.0
"""Executed instructions per LNet message, counted in two guests.

count    two guests with the counting plugin (icount.c), with any software in them
cases    traffic that is measured under lnet_lite
measure  the same guests under lnet_lite, and the driver's counters
symbols  addresses to functions, functions to classes
judge    tables, and the comparison with the baseline
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Guests, and the programs that run in them.
sys.path[:0] = [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "tests-vm")]
