/* SPDX-License-Identifier: GPL-2.0 */
/* NIDs, process ids, event kinds and MD options */
#ifndef _LNL_UAPI_LNET_TYPES_H
#define _LNL_UAPI_LNET_TYPES_H

#include <linux/types.h>
#include <linux/string.h>
#include <asm/byteorder.h>
#include <uapi/linux/lnet/lnet-idl.h>

#define LNET_RESERVED_PORTAL	0
#define LNET_PID_LUSTRE		12345
#define LNET_NID_ANY		(~(lnet_nid_t)0)
#define LNET_ANY_NID		((struct lnet_nid) { 0xFF, 0xFF, ~0, { ~0, ~0, ~0, ~0 } })

#define LNET_MTU_BITS		20
#define LNET_MTU		(1u << LNET_MTU_BITS)
#define LNET_MAX_PAYLOAD	LNET_MTU

#define LNET_WIRE_HANDLE_COOKIE_NONE	(~0ULL)

struct lnet_processid {
	struct lnet_nid	nid;
	lnet_pid_t	pid;
};

enum lnet_event_kind {
	LNET_EVENT_GET		= 1,
	LNET_EVENT_PUT		= 2,
	LNET_EVENT_REPLY	= 3,
	LNET_EVENT_ACK		= 4,
	LNET_EVENT_SEND		= 5,
	LNET_EVENT_UNLINK	= 6,
};

enum lnet_md_options {
	LNET_MD_OP_PUT		= 0x0001,
	LNET_MD_OP_GET		= 0x0002,
	LNET_MD_MANAGE_REMOTE	= 0x0004,
	LNET_MD_TRUNCATE	= 0x0010,
	LNET_MD_ACK_DISABLE	= 0x0020,
};

static inline __u32 LNET_MKNET(__u32 type, __u32 num)
{
	return (type << 16) | num;
}

static inline __u32 LNET_NETTYP(__u32 net)
{
	return (net >> 16) & 0xff;
}

static inline __u32 LNET_NETNUM(__u32 net)
{
	return net & 0xffff;
}

static inline __u32 LNET_NIDNET(lnet_nid_t nid)
{
	return nid >> 32;
}

static inline __u32 LNET_NIDADDR(lnet_nid_t nid)
{
	return nid & 0xffffffff;
}

static inline lnet_nid_t LNET_MKNID(__u32 net, __u32 addr)
{
	return ((lnet_nid_t)net << 32) | addr;
}

static inline int LNET_NID_IS_ANY(const struct lnet_nid *nid)
{
	return !nid || nid->nid_type == 0xFF;
}

static inline __u32 LNET_NID_NET(const struct lnet_nid *nid)
{
	if (LNET_NID_IS_ANY(nid))
		return LNET_NIDNET(LNET_NID_ANY);
	return LNET_MKNET(nid->nid_type, __be16_to_cpu(nid->nid_num));
}

static inline bool nid_is_nid4(const struct lnet_nid *nid)
{
	return nid->nid_size == 0;
}

/* An address of all zeroes counts as "not given", as in LNet */
static inline bool nid_addr_is_set(const struct lnet_nid *nid)
{
	unsigned int i, n = NID_ADDR_BYTES(nid);
	const __u8 *a = (const __u8 *)nid->nid_addr;

	for (i = 0; i < n && i < sizeof(nid->nid_addr); i++)
		if (a[i])
			return true;
	return false;
}

static inline int nid_same(const struct lnet_nid *a, const struct lnet_nid *b)
{
	return !memcmp(a, b, sizeof(*a));
}

static inline unsigned long nidhash(const struct lnet_nid *nid)
{
	return LNET_NID_NET(nid) ^ (__force __u32)nid->nid_addr[0] ^
	       (__force __u32)nid->nid_addr[1] ^ (__force __u32)nid->nid_addr[2] ^
	       (__force __u32)nid->nid_addr[3];
}

static inline void lnet_nid4_to_nid(lnet_nid_t nid4, struct lnet_nid *nid)
{
	if (nid4 == LNET_NID_ANY) {
		*nid = LNET_ANY_NID;
		return;
	}
	memset(nid, 0, sizeof(*nid));
	nid->nid_type = LNET_NETTYP(LNET_NIDNET(nid4));
	nid->nid_num = __cpu_to_be16(LNET_NETNUM(LNET_NIDNET(nid4)));
	nid->nid_addr[0] = __cpu_to_be32(LNET_NIDADDR(nid4));
}

static inline lnet_nid_t lnet_nid_to_nid4(const struct lnet_nid *nid)
{
	if (LNET_NID_IS_ANY(nid))
		return LNET_NID_ANY;
	return LNET_MKNID(LNET_NID_NET(nid), __be32_to_cpu(nid->nid_addr[0]));
}

#endif
