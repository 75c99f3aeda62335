// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: NIs as text, as the answer to a ping, and through lnd_ctl().
 */
#include <linux/skbuff.h>

#include "internal.h"

static const char *state_name(enum lnet_ni_state s)
{
	switch (s) {
	case LNET_NI_STATE_INIT:
		return "init";
	case LNET_NI_STATE_ACTIVE:
		return "active";
	default:
		return "deleting";
	}
}

static int ni_line(struct lnl_ni *ni, char *buf, size_t size)
{
	return scnprintf(buf, size, "%s if=%s state=%s refs=%d credits=%d/%d min=%d fatal=%d dev_cpt=%d\n",
			 libcfs_nidstr(&ni->ni.ni_nid),
			 ni->ni.ni_interface ? ni->ni.ni_interface : "?",
			 state_name(ni->ni.ni_state), ni->refs, ni->tq_credits,
			 ni->tq_credits_max, ni->tq_credits_min,
			 atomic_read(&ni->ni.ni_fatal_error_on),
			 ni->ni.ni_dev_cpt);
}

int lnl_nis_print(char *buf, size_t size)
{
	struct lnl_ni *ni;
	unsigned int i;
	int n = 0;

	spin_lock(&lnl_lock);
	for (i = 0; (ni = lnl_ni_nth_locked(i)); i++) {
		n += scnprintf(buf + n, size - n, "ni%u=", i);
		n += ni_line(ni, buf + n, size - n);
	}
	spin_unlock(&lnl_lock);
	return n + scnprintf(buf + n, size - n, "nis=%u\n", i);
}

static s64 attr_value(const struct nlattr *nla)
{
	switch (nla_len(nla)) {
	case sizeof(u16):
		return nla_get_s16(nla);
	case sizeof(u32):
		return nla_get_u32(nla);
	case sizeof(u64):
		return nla_get_s64(nla);
	default:
		return 1;	/* a flag */
	}
}

/* The LND's tunables by its own keys */
static int tunables_print(const struct lnet_lnd *lnd, struct sk_buff *skb, char *buf,
			  size_t size)
{
	const struct ln_key_list *keys = lnd->lnd_keys;
	const struct nlattr *nla;
	int n = 0, rem;

	rem = skb->len;
	nla = (const struct nlattr *)skb->data;
	for (; nla_ok(nla, rem); nla = nla_next(nla, &rem)) {
		int type = nla_type(nla);

		if (type > keys->lkl_maxattr || !keys->lkl_list[type].lkp_value)
			continue;
		n += scnprintf(buf + n, size - n, "%s=%lld\n",
			       keys->lkl_list[type].lkp_value, attr_value(nla));
	}
	return n;
}

int lnl_ni_show(const struct lnet_nid *nid, char *buf, size_t size)
{
	const struct lnet_ioctl_config_lnd_cmn_tunables *t;
	const struct lnet_lnd *lnd;
	struct sk_buff *skb;
	struct lnl_ni *ni;
	int n, rc = 0;

	ni = lnl_ni_pick(nid, nid);
	if (!ni)
		return -ENOENT;
	skb = alloc_skb(NLMSG_GOODSIZE, GFP_KERNEL);
	if (!skb) {
		lnl_ni_put(ni);
		return -ENOMEM;
	}
	lnd = ni->net.net_lnd;
	t = &ni->net.net_tunables;
	n = scnprintf(buf, size, "nid=");
	n += ni_line(ni, buf + n, size - n);
	n += scnprintf(buf + n, size - n,
		       "peer_timeout=%d\npeer_credits=%d\npeer_buffer_credits=%d\ncredits=%d\n",
		       t->lct_peer_timeout, t->lct_peer_tx_credits, t->lct_peer_rtr_credits,
		       t->lct_max_tx_credits);
	n += scnprintf(buf + n, size - n, "lnd_timeout=%u\n", lnl_lnd_timeout(ni));
	n += scnprintf(buf + n, size - n, "dev_prio=%u\n", lnl_ni_dev_prio(ni, lnl_gpu_index()));
	if (lnd->lnd_nl_get && lnd->lnd_keys) {
		/* atomic, as under LNet's exclusive net lock */
		spin_lock(&lnl_lock);
		rc = lnd->lnd_nl_get(LNET_CMD_NETS, skb, LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES,
				     &ni->ni, false);
		spin_unlock(&lnl_lock);
		if (!rc)
			n += tunables_print(lnd, skb, buf + n, size - n);
	}
	kfree_skb(skb);
	lnl_ni_put(ni);
	return rc ? rc : n;
}

/* The answer to "lnet ping"; number of bytes. The first entry is the loopback */
int lnl_ping_fill(struct lnet_ping_info *info, unsigned int max_nnis)
{
	struct lnl_ni *ni;
	unsigned int i, n = 1;

	memset(info, 0, struct_size(info, pi_ni, max_nnis));
	info->pi_magic = LNET_PROTO_PING_MAGIC;
	info->pi_features = LNET_PING_FEAT_BASE | LNET_PING_FEAT_NI_STATUS;
	info->pi_pid = LNET_PID_LUSTRE;
	info->pi_ni[0].ns_nid = LNET_MKNID(LNET_MKNET(LOLND, 0), 0);
	info->pi_ni[0].ns_status = LNET_NI_STATUS_UP;

	spin_lock(&lnl_lock);
	for (i = 0; n < max_nnis && (ni = lnl_ni_nth_locked(i)); i++) {
		if (ni->ni.ni_state != LNET_NI_STATE_ACTIVE)
			continue;
		info->pi_ni[n].ns_nid = lnet_nid_to_nid4(&ni->ni.ni_nid);
		info->pi_ni[n].ns_status = atomic_read(&ni->ni.ni_fatal_error_on) ?
					   LNET_NI_STATUS_DOWN : LNET_NI_STATUS_UP;
		n++;
	}
	spin_unlock(&lnl_lock);
	info->pi_nnis = n;
	return struct_size(info, pi_ni, n);
}
