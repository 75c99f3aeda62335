/* SPDX-License-Identifier: GPL-2.0 */
/* No-op that opens (1) and closes (2) a window: nopl 0x1c001700 + n(%rax). */
#ifndef WINDOW_MARKER_H
#define WINDOW_MARKER_H

#define WINDOW_MARKER_LEN	7
#define WINDOW_MARKER(n)	{ 0x0f, 0x1f, 0x80, (n), 0x17, 0x00, 0x1c }
#define WINDOW_MARK(n)							\
	__asm__ volatile("nopl 0x1c001700+%c0(%%rax)" : : "i" (n) : "memory")

#endif /* WINDOW_MARKER_H */
