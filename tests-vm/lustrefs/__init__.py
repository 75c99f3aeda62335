# SPDX-License-Identifier: GPL-2.0
"""A Lustre file system over two guests: one serves, one mounts.

lustre_tree     the parts of a built Lustre tree that go into the guests
testbed         the two nodes: modules, targets, mount, and back
loads           I/O whose data is verified, and its longest waits
fault_kinds     faults of the nodes in that time
fault_schedule  when each fault comes
table           a line per row, and all of them at the end
"""
