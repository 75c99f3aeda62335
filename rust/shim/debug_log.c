// SPDX-License-Identifier: GPL-2.0
/*
 * LNet's debug log, which "lctl dk" shows. If scripts/lnet-probe finds no debug
 * log in LNet, only console messages are written.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/printk.h>
#include <linux/string.h>

#include "internal.h"

#ifdef RO2IB_HAVE_DEBUG_LOG

static_assert((u32)RO2IB_DK_NETERROR == (u32)D_NETERROR);
static_assert((u32)RO2IB_DK_NET == (u32)D_NET);
static_assert((u32)RO2IB_DK_CONSOLE == (u32)D_CONSOLE);
static_assert((u32)RO2IB_DK_LND == (u32)S_LND);

const unsigned int *const ro2ib_dk_debug = &libcfs_debug;
const unsigned int *const ro2ib_dk_subsystems = &libcfs_subsystem_debug;

void ro2ib_dk_line(u32 mask, const char *file, const char *fn, u32 line,
		   const char *text, u32 len)
{
	struct libcfs_debug_msg_data data = {
		.msg_file = kbasename(file),
		.msg_fn = fn,
		.msg_line = line,
		.msg_subsys = S_LND,
		.msg_mask = mask,
	};

	libcfs_debug_msg(&data, "%.*s\n", (int)len, text);
}

#else

static const unsigned int ro2ib_dk_off;

const unsigned int *const ro2ib_dk_debug = &ro2ib_dk_off;
const unsigned int *const ro2ib_dk_subsystems = &ro2ib_dk_off;

void ro2ib_dk_line(u32 mask, const char *file, const char *fn, u32 line,
		   const char *text, u32 len)
{
	if (mask & RO2IB_DK_CONSOLE)
		pr_info("%.*s\n", (int)len, text);
}

#endif
