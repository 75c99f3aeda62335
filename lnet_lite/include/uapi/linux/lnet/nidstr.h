/* SPDX-License-Identifier: GPL-2.0 */
/* NIDs as text: "10.0.0.1@o2ib3" */
#ifndef _LNL_UAPI_NIDSTR_H
#define _LNL_UAPI_NIDSTR_H

#include <linux/types.h>
#include <uapi/linux/lnet/lnet-types.h>

/* LND types, fixed by the protocol */
enum {
	SOCKLND	= 2,
	O2IBLND	= 5,
	LOLND	= 9,
};

#define LNET_NIDSTR_SIZE	64

char *libcfs_next_nidstring(void);
char *libcfs_net2str_r(__u32 net, char *buf, __kernel_size_t size);
char *libcfs_nidstr_r(const struct lnet_nid *nid, char *buf, __kernel_size_t size);
__u32 libcfs_str2net(const char *str);
int libcfs_strnid(struct lnet_nid *nid, const char *str);

static inline char *libcfs_net2str(__u32 net)
{
	return libcfs_net2str_r(net, libcfs_next_nidstring(), LNET_NIDSTR_SIZE);
}

static inline char *libcfs_nidstr(const struct lnet_nid *nid)
{
	return libcfs_nidstr_r(nid, libcfs_next_nidstring(), LNET_NIDSTR_SIZE);
}

static inline char *libcfs_nid2str(lnet_nid_t nid4)
{
	struct lnet_nid nid;

	lnet_nid4_to_nid(nid4, &nid);
	return libcfs_nidstr(&nid);
}

#endif
