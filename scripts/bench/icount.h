/* SPDX-License-Identifier: GPL-2.0 */
/* No-op that opens (1) and closes (2) a window: nopl 0x1c001700 + n(%rax). */
#ifndef ICOUNT_H
#define ICOUNT_H

#define ICOUNT_MARKER_LEN	7
#define ICOUNT_MARKER(n)	{ 0x0f, 0x1f, 0x80, (n), 0x17, 0x00, 0x1c }
#define ICOUNT_MARK(n)							\
	__asm__ volatile("nopl 0x1c001700+%c0(%%rax)" : : "i" (n) : "memory")

#endif /* ICOUNT_H */
