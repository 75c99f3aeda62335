# SPDX-License-Identifier: GPL-2.0
"""A Lustre file system over two guests: one serves, one mounts.

tree    what of a built Lustre tree goes into the guests
bed     the two nodes: modules, targets, mount, and back
loads   I/O whose data is verified, and the longest that any of it waited
events  what happens to the nodes meanwhile
table   a line per row, and all of them at the end
"""
