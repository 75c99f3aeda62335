/* SPDX-License-Identifier: GPL-2.0 */
/* LNet's debug log, as far as an LND writes into it; debug.c keeps it */
#ifndef _LNL_LIBCFS_DEBUG_H
#define _LNL_LIBCFS_DEBUG_H

#include <linux/compiler_attributes.h>
#include <linux/types.h>

/* Subsystems */
#define S_LND		0x00000800

/* Masks */
#define D_NETERROR	0x00000100
#define D_NET		0x00000200
#define D_CONSOLE	0x02000000

struct libcfs_debug_msg_data {
	const char	*msg_file;
	const char	*msg_fn;
	int		msg_subsys;
	int		msg_line;
	int		msg_mask;
};

extern unsigned int libcfs_debug;
extern unsigned int libcfs_subsystem_debug;

int __printf(2, 3) libcfs_debug_msg(struct libcfs_debug_msg_data *msgdata, const char *format, ...);

#endif
