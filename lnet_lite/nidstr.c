// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: NIDs and nets as text.
 */
#include <linux/export.h>
#include <linux/inet.h>
#include <linux/kernel.h>
#include <linux/percpu.h>

#include "internal.h"

static const struct {
	u32		type;
	const char	*name;
} lnd_names[] = {
	{ SOCKLND, "tcp" },
	{ O2IBLND, "o2ib" },
	{ LOLND, "lo" },
};

/* Buffers handed out in turn; a string stays good for the next 255 calls */
#define NIDSTRS 256
static char nidstrs[NIDSTRS][LNET_NIDSTR_SIZE];
static atomic_t nidstr_next;

char *libcfs_next_nidstring(void)
{
	return nidstrs[(unsigned int)atomic_inc_return(&nidstr_next) % NIDSTRS];
}
EXPORT_SYMBOL_GPL(libcfs_next_nidstring);

char *libcfs_net2str_r(__u32 net, char *buf, __kernel_size_t size)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(lnd_names); i++) {
		if (lnd_names[i].type != LNET_NETTYP(net))
			continue;
		if (LNET_NETNUM(net))
			snprintf(buf, size, "%s%u", lnd_names[i].name, LNET_NETNUM(net));
		else
			snprintf(buf, size, "%s", lnd_names[i].name);
		return buf;
	}
	snprintf(buf, size, "<%u:%u>", LNET_NETTYP(net), LNET_NETNUM(net));
	return buf;
}
EXPORT_SYMBOL_GPL(libcfs_net2str_r);

char *libcfs_nidstr_r(const struct lnet_nid *nid, char *buf, __kernel_size_t size)
{
	char net[16];

	if (LNET_NID_IS_ANY(nid)) {
		snprintf(buf, size, "<?>");
		return buf;
	}
	libcfs_net2str_r(LNET_NID_NET(nid), net, sizeof(net));
	if (nid_is_nid4(nid))
		snprintf(buf, size, "%pI4@%s", &nid->nid_addr[0], net);
	else
		snprintf(buf, size, "%pI6c@%s", nid->nid_addr, net);
	return buf;
}
EXPORT_SYMBOL_GPL(libcfs_nidstr_r);

/* "o2ib3" -> net id; LNET_NIDNET(LNET_NID_ANY) if it is not a net */
__u32 libcfs_str2net(const char *str)
{
	unsigned int i, num;

	for (i = 0; i < ARRAY_SIZE(lnd_names); i++) {
		size_t len = strlen(lnd_names[i].name);

		if (strncmp(str, lnd_names[i].name, len))
			continue;
		if (!str[len])
			return LNET_MKNET(lnd_names[i].type, 0);
		if (!kstrtouint(str + len, 10, &num) && num <= U16_MAX)
			return LNET_MKNET(lnd_names[i].type, num);
	}
	return LNET_NIDNET(LNET_NID_ANY);
}
EXPORT_SYMBOL_GPL(libcfs_str2net);

/* "10.0.0.1@o2ib" -> NID; 0 or -EINVAL */
int libcfs_strnid(struct lnet_nid *nid, const char *str)
{
	const char *at = strchr(str, '@');
	const char *end;
	u8 addr[4];
	u32 net;

	if (!at || !in4_pton(str, at - str, addr, '@', &end) || end != at)
		return -EINVAL;
	net = libcfs_str2net(at + 1);
	if (net == LNET_NIDNET(LNET_NID_ANY))
		return -EINVAL;
	memset(nid, 0, sizeof(*nid));
	nid->nid_type = LNET_NETTYP(net);
	nid->nid_num = cpu_to_be16(LNET_NETNUM(net));
	memcpy(&nid->nid_addr[0], addr, sizeof(addr));
	return 0;
}
EXPORT_SYMBOL_GPL(libcfs_strnid);

char *lnet_msgtyp2str(int type)
{
	switch (type) {
	case LNET_MSG_ACK:
		return "ACK";
	case LNET_MSG_PUT:
		return "PUT";
	case LNET_MSG_GET:
		return "GET";
	case LNET_MSG_REPLY:
		return "REPLY";
	case LNET_MSG_HELLO:
		return "HELLO";
	default:
		return "<unknown>";
	}
}
EXPORT_SYMBOL_GPL(lnet_msgtyp2str);
