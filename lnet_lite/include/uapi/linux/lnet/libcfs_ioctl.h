/* SPDX-License-Identifier: GPL-2.0 */
/* The legacy control calls that reach lnd_ctl() */
#ifndef _LNL_UAPI_LIBCFS_IOCTL_H
#define _LNL_UAPI_LIBCFS_IOCTL_H

#include <linux/types.h>
#include <linux/ioctl.h>

struct libcfs_ioctl_hdr {
	__u32 ioc_len;
	__u32 ioc_version;
};

struct libcfs_ioctl_data {
	struct libcfs_ioctl_hdr	ioc_hdr;
	__u64			ioc_nid;
	__u64			ioc_u64[1];
	__u32			ioc_flags;
	__u32			ioc_count;
	__u32			ioc_net;
	__u32			ioc_u32[7];
};

#define IOC_LIBCFS_CLOSE_CONNECTION	_IOWR('e', 71, long)
#define IOC_LIBCFS_GET_CONN		_IOWR('e', 73, long)
#define IOC_LIBCFS_DEL_PEER		_IOWR('e', 74, long)
#define IOC_LIBCFS_ADD_PEER		_IOWR('e', 75, long)
#define IOC_LIBCFS_GET_PEER		_IOWR('e', 76, long)

#endif
