/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Headers for users of LNet: they moved after 2.17, and names changed
 * after 2.16.
 */
#ifndef LNET_API_H
#define LNET_API_H

#if __has_include("linux/lnet/api.h")
#include <linux/lnet/api.h>
#else
#include <lnet/api.h>
#include <libcfs/libcfs.h>
#endif
#include <uapi/linux/lnet/nidstr.h>

#ifndef RO2IB_HAVE_UMD
#define umd_start	start
#define umd_length	length
#define umd_threshold	threshold
#define umd_options	options
#define umd_handler	handler
#endif

/* LNet 2.15 takes IPv4 NIDs here. */
#ifndef RO2IB_HAVE_NID_API
#include <linux/errno.h>

static inline int libcfs_strnid(struct lnet_nid *nid, const char *name)
{
	lnet_nid_t found = libcfs_str2nid(name);

	if (found == LNET_NID_ANY)
		return -EINVAL;

	lnet_nid4_to_nid(found, nid);
	return 0;
}

#define LNetGet(self, md, to, ...) \
	LNetGet(LNET_NID_ANY, md, lnet_pid_to_pid4(to), __VA_ARGS__)
#define LNetPut(self, md, ack, to, ...) \
	LNetPut(LNET_NID_ANY, md, ack, lnet_pid_to_pid4(to), __VA_ARGS__)

/* LNet itself finds out whose pages these are. */
#define LNET_MD_GPU_ADDR	0
#endif

#endif
