# SPDX-License-Identifier: GPL-2.0
"""Executed instructions per LNet message, counted in two guests under lnet_lite.

cases    what is measured
measure  guests with the counting plugin (icount.c), and the driver's counters
symbols  addresses to functions, functions to classes
judge    tables, and the comparison with the baseline
"""
