// SPDX-License-Identifier: GPL-2.0
/*
 * Netlink attributes by which lnetctl shows and sets the tunables of an NI.
 * LNet 2.15 has no such attributes for drivers.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/printk.h>
#include <net/netlink.h>

#include "internal.h"

#ifdef RO2IB_HAVE_LND_NL

/* Attribute numbers are ABI: user tools look the keys up by position. */
enum ro2ib_tun_attr {
	RO2IB_TUN_UNSPEC = 0,
	RO2IB_TUN_HIW,
	RO2IB_TUN_CONCURRENT_SENDS,
	RO2IB_TUN_MAP_ON_DEMAND,
	RO2IB_TUN_FMR_POOL_SIZE,
	RO2IB_TUN_FMR_FLUSH_TRIGGER,
	RO2IB_TUN_FMR_CACHE,
	RO2IB_TUN_NTX,
	RO2IB_TUN_CONNS_PER_PEER,
	RO2IB_TUN_TIMEOUT,
	RO2IB_TUN_TOS,
	/* ko2iblnd has none of these attributes. */
	RO2IB_TUN_RETRY_COUNT,
	RO2IB_TUN_RNR_RETRY_COUNT,
	RO2IB_TUN_KEEPALIVE,
	RO2IB_TUN_QUEUE_DEPTH,
	RO2IB_TUN_QUEUE_DEPTH_MBPS,
	RO2IB_TUN_OLDER_CONNS,
	RO2IB_TUN_PROBE,
	__RO2IB_TUN_MAX_PLUS_ONE,
};

#define RO2IB_TUN_MAX (__RO2IB_TUN_MAX_PLUS_ONE - 1)

/*
 * All values are numbers: "lnetctl import" refuses a file that has a string
 * among the tunables of a driver, and administrators make such files from the
 * output of "lnetctl net show".
 */
const struct ln_key_list ro2ib_tunables_keys = {
	.lkl_maxattr = RO2IB_TUN_MAX,
	.lkl_list = {
		[RO2IB_TUN_HIW] = {
			.lkp_value = "peercredits_hiw",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_CONCURRENT_SENDS] = {
			.lkp_value = "concurrent_sends",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_MAP_ON_DEMAND] = {
			.lkp_value = "map_on_demand",
			.lkp_data_type = NLA_FLAG,
		},
		[RO2IB_TUN_FMR_POOL_SIZE] = {
			.lkp_value = "fmr_pool_size",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_FMR_FLUSH_TRIGGER] = {
			.lkp_value = "fmr_flush_trigger",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_FMR_CACHE] = {
			.lkp_value = "fmr_cache",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_NTX] = {
			.lkp_value = "ntx",
			.lkp_data_type = NLA_U16,
		},
		[RO2IB_TUN_CONNS_PER_PEER] = {
			.lkp_value = "conns_per_peer",
			.lkp_data_type = NLA_U16,
		},
		[RO2IB_TUN_TIMEOUT] = {
			.lkp_value = "timeout",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_TOS] = {
			.lkp_value = "tos",
			.lkp_data_type = NLA_S16,
		},
		[RO2IB_TUN_RETRY_COUNT] = {
			.lkp_value = "retry_count",
			.lkp_data_type = NLA_U16,
		},
		[RO2IB_TUN_RNR_RETRY_COUNT] = {
			.lkp_value = "rnr_retry_count",
			.lkp_data_type = NLA_U16,
		},
		[RO2IB_TUN_KEEPALIVE] = {
			.lkp_value = "keepalive",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_QUEUE_DEPTH] = {
			.lkp_value = "queue_depth",
			.lkp_data_type = NLA_U16,
		},
		[RO2IB_TUN_QUEUE_DEPTH_MBPS] = {
			.lkp_value = "queue_depth_mbps",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_OLDER_CONNS] = {
			.lkp_value = "older_connections",
			.lkp_data_type = NLA_U32,
		},
		[RO2IB_TUN_PROBE] = {
			.lkp_value = "probe",
			.lkp_data_type = NLA_U32,
		},
	},
};

/* Puts the link speed if the driver chose the queue depth by it. */
static int ro2ib_put_depth_mbps(struct sk_buff *skb, const struct ro2ib_ni *ni)
{
	if (ro2ib_ni_depth_by(ni) != RO2IB_DEPTH_CHOSEN)
		return 0;

	return nla_put_u32(skb, RO2IB_TUN_QUEUE_DEPTH_MBPS,
			   READ_ONCE(ni->mbps));
}

/* Returns the number of connections that still use earlier tunables. Atomic. */
static u32 ro2ib_older_conns(const struct ro2ib_ni *ni)
{
	/* Pairs with the store in ro2ib_startup(). */
	void *priv = smp_load_acquire(&ni->priv);

	return priv ? ro2ib_ops->older_conns(priv) : 0;
}

/*
 * Atomic: LNet holds a spinlock. Does not return -EMSGSIZE if the buffer is
 * full: LNet (2.17) would restart the same dump without end.
 */
int ro2ib_nl_get_all(int cmd, struct sk_buff *skb, int type, void *data,
		     bool export_backup)
{
	const struct lnet_ioctl_config_o2iblnd_tunables *t;
	const struct ro2ib_ni *ni;
	struct lnet_ni *lni = data;

	if (!lni || !skb)
		return -EINVAL;
	if (cmd != LNET_CMD_NETS || type != LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES)
		return -EOPNOTSUPP;

	t = &lni->ni_lnd_tunables.lnd_tun_u.lnd_o2ib;
	ni = lni->ni_data;

	if (nla_put_u32(skb, RO2IB_TUN_HIW, t->lnd_peercredits_hiw) ||
	    nla_put_flag(skb, RO2IB_TUN_MAP_ON_DEMAND) ||
	    nla_put_u32(skb, RO2IB_TUN_CONCURRENT_SENDS,
			t->lnd_concurrent_sends) ||
	    nla_put_u32(skb, RO2IB_TUN_FMR_POOL_SIZE, t->lnd_fmr_pool_size) ||
	    nla_put_u32(skb, RO2IB_TUN_FMR_FLUSH_TRIGGER,
			t->lnd_fmr_flush_trigger) ||
	    nla_put_u32(skb, RO2IB_TUN_FMR_CACHE, t->lnd_fmr_cache) ||
	    nla_put_u16(skb, RO2IB_TUN_NTX, t->lnd_ntx) ||
	    nla_put_u16(skb, RO2IB_TUN_CONNS_PER_PEER, t->lnd_conns_per_peer))
		return -ENOBUFS;

	/* A backup that another node loads must not pin this node's value. */
	if (!export_backup &&
	    nla_put_u32(skb, RO2IB_TUN_TIMEOUT,
			ni ? ro2ib_ni_timeout(ni) : ro2ib_param_timeout()))
		return -ENOBUFS;

	if (nla_put_s16(skb, RO2IB_TUN_TOS, t->lnd_tos))
		return -ENOBUFS;

	/* Attributes of this driver only; none of them can be set here. */
	if (ni && !export_backup &&
	    (nla_put_u16(skb, RO2IB_TUN_RETRY_COUNT,
			 ro2ib_ni_retry_count(ni)) ||
	     nla_put_u16(skb, RO2IB_TUN_RNR_RETRY_COUNT,
			 ro2ib_ni_rnr_retry_count(ni)) ||
	     nla_put_u32(skb, RO2IB_TUN_KEEPALIVE, ro2ib_ni_keepalive(ni)) ||
	     nla_put_u16(skb, RO2IB_TUN_QUEUE_DEPTH,
			 ro2ib_ni_peer_credits(ni)) ||
	     ro2ib_put_depth_mbps(skb, ni) ||
	     nla_put_u32(skb, RO2IB_TUN_OLDER_CONNS, ro2ib_older_conns(ni)) ||
	     nla_put_u32(skb, RO2IB_TUN_PROBE, ro2ib_ni_probe(ni))))
		return -ENOBUFS;

	return 0;
}

static int ro2ib_nl_range(const char *name, s64 v, s64 lo, s64 hi)
{
	if (v >= lo && v <= hi)
		return 0;

	pr_err_ratelimited("tunable %s=%lld is out of range %lld..%lld\n",
			   name, v, lo, hi);
	return -ERANGE;
}

int ro2ib_nl_set(int cmd, struct nlattr *attr, int type, void *data)
{
	struct lnet_lnd_tunables *tun = data;
	struct lnet_ioctl_config_o2iblnd_tunables *t;
	const struct ro2ib_ni *ni;
	const char *name;
	s64 lo = 0;
	s64 hi;
	s64 v;
	int rc;

	if (cmd != LNET_CMD_NETS)
		return -EOPNOTSUPP;
	t = &tun->lnd_tun_u.lnd_o2ib;
	/*
	 * LNet 2.16 gets the defaults for an import this way, in a structure
	 * without values. 0 stands for the default, except in tos.
	 */
	if (!attr) {
		if (type == RO2IB_TUN_TOS)
			t->lnd_tos = ro2ib_param_tos();
		return 0;
	}
	if (nla_type(attr) != LN_SCALAR_ATTR_INT_VALUE)
		return -EINVAL;

	switch (type) {
	case RO2IB_TUN_HIW:
	case RO2IB_TUN_CONCURRENT_SENDS:
	case RO2IB_TUN_FMR_POOL_SIZE:
	case RO2IB_TUN_FMR_FLUSH_TRIGGER:
	case RO2IB_TUN_FMR_CACHE:
		hi = U32_MAX;
		break;
	case RO2IB_TUN_NTX:
		hi = U16_MAX;
		break;
	case RO2IB_TUN_CONNS_PER_PEER:
		hi = RO2IB_CONNS_PER_PEER_MAX;
		break;
	case RO2IB_TUN_TOS:
		lo = -1;
		hi = 255;
		break;
	default:
		/*
		 * map_on_demand, timeout and the attributes after tos are
		 * read-only
		 */
		return 0;
	}

	name = ro2ib_tunables_keys.lkl_list[type].lkp_value;
	v = nla_get_s64(attr);
	/* lnetctl 2.16 writes -1 like this, also if the user gave no tos. */
	if (type == RO2IB_TUN_TOS && v == U32_MAX)
		v = -1;
	rc = ro2ib_nl_range(name, v, lo, hi);
	if (rc)
		return rc;

	/* "lnetctl net set" writes to a running NI. */
	rcu_read_lock();
	ni = ro2ib_ni_with_tunables(tun);
	switch (type) {
	case RO2IB_TUN_HIW:
		if (ni)
			v = ro2ib_clamp_hiw(v, ro2ib_ni_lnet_credits(ni));
		WRITE_ONCE(t->lnd_peercredits_hiw, v);
		break;
	case RO2IB_TUN_CONCURRENT_SENDS:
		WRITE_ONCE(t->lnd_concurrent_sends, v);
		break;
	case RO2IB_TUN_FMR_POOL_SIZE:
		WRITE_ONCE(t->lnd_fmr_pool_size, v);
		break;
	case RO2IB_TUN_FMR_FLUSH_TRIGGER:
		WRITE_ONCE(t->lnd_fmr_flush_trigger, v);
		break;
	case RO2IB_TUN_FMR_CACHE:
		WRITE_ONCE(t->lnd_fmr_cache, v);
		break;
	case RO2IB_TUN_NTX:
		WRITE_ONCE(t->lnd_ntx, v);
		break;
	case RO2IB_TUN_CONNS_PER_PEER:
		if (ni)
			ro2ib_log_tunable(ni, name, ro2ib_ni_conns_per_peer(ni),
					  max_t(s64, v, 1));
		/*
		 * 0 means 1; only a startup completes the tunables, not this
		 * call.
		 */
		WRITE_ONCE(t->lnd_conns_per_peer, ni ? max_t(s64, v, 1) : v);
		break;
	case RO2IB_TUN_TOS:
		if (ni)
			ro2ib_log_tunable(ni, name, ro2ib_ni_tos(ni), v);
		WRITE_ONCE(t->lnd_tos, v);
		break;
	}
	rcu_read_unlock();
	return 0;
}

#endif /* RO2IB_HAVE_LND_NL */
