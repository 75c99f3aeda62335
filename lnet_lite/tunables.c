// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: tunables of an NI, handed to the LND the way LNet does.
 */
#include <linux/export.h>

#include "internal.h"

/* A netlink attribute with its value */
struct nl_s64 {
	struct nlattr	nla;
	s64		value;
} __packed;

/* One "key=value" of the LND's own tunables, the way netlink would hand it over */
static int tunable_set(const struct lnet_lnd *lnd, struct lnet_lnd_tunables *tun,
		       const char *key, long value)
{
	struct nl_s64 attr = {
		.nla.nla_len = nla_attr_size(sizeof(s64)),
		.nla.nla_type = LN_SCALAR_ATTR_INT_VALUE,
		.value = value,
	};
	unsigned int i;

	if (!lnd->lnd_keys || !lnd->lnd_nl_set)
		return -EOPNOTSUPP;
	for (i = 1; i <= lnd->lnd_keys->lkl_maxattr; i++) {
		const char *name = lnd->lnd_keys->lkl_list[i].lkp_value;

		if (name && !strcmp(name, key))
			return lnd->lnd_nl_set(LNET_CMD_NETS, &attr.nla, i, tun);
	}
	return -ENOENT;
}

/* @opts: "key=value ...", common tunables and those of the LND; as "lnetctl net add" */
int lnl_tunables_parse(struct lnl_ni *ni, const struct lnet_lnd *lnd, char *opts)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *cmn = &ni->net.net_tunables;
	struct lnet_lnd_tunables *tun = &ni->ni.ni_lnd_tunables;
	char *word, *value;
	long v;
	int rc;

	/* without any option the LND fills in everything, as with networks=... */
	if (!opts || !opts[0])
		return 0;
	if (lnd->lnd_tun_defaults) {
		rc = lnd->lnd_tun_defaults(tun, cmn);
		if (rc < 0)
			return rc;
	}
	ni->ni.ni_lnd_tunables_set = true;
	while ((word = strsep(&opts, " \t"))) {
		if (!word[0])
			continue;
		value = strchr(word, '=');
		if (!value)
			return -EINVAL;
		*value++ = 0;
		rc = kstrtol(value, 0, &v);
		if (rc)
			return rc;
		if (!strcmp(word, "peer_credits"))
			cmn->lct_peer_tx_credits = v;
		else if (!strcmp(word, "credits"))
			cmn->lct_max_tx_credits = v;
		else if (!strcmp(word, "peer_timeout"))
			cmn->lct_peer_timeout = v;
		else if (!strcmp(word, "peer_buffer_credits"))
			cmn->lct_peer_rtr_credits = v;
		else
			rc = tunable_set(lnd, tun, word, v);
		if (rc) {
			pr_err("lnet_lite: %s=%s refused: %d\n", word, value, rc);
			return rc;
		}
	}
	return 0;
}

/* "lnetctl net set": one of the LND's own tunables of an NI that runs */
int lnl_ni_set(const struct lnet_nid *nid, const char *key, long value)
{
	struct lnl_ni *ni = lnl_ni_pick(nid, nid);
	int rc;

	if (!ni)
		return -ENOENT;
	/* atomic, as under LNet's exclusive net lock */
	spin_lock(&lnl_lock);
	rc = tunable_set(ni->net.net_lnd, &ni->ni.ni_lnd_tunables, key, value);
	spin_unlock(&lnl_lock);
	lnl_ni_put(ni);
	return rc;
}

static int opt(char *opts, size_t size, int n, const char *name, int value)
{
	return value < 0 ? n : n + scnprintf(opts + n, size - n, "%s=%d ", name, value);
}

int lnet_lite_ni_add(const char *net, const char *iface,
		     const struct lnet_lite_ni_opts *o, struct lnet_nid *nid)
{
	char opts[160] = "";
	int n = 0;

	if (o) {
		n = opt(opts, sizeof(opts), n, "peer_credits", o->peer_credits);
		n = opt(opts, sizeof(opts), n, "credits", o->credits);
		n = opt(opts, sizeof(opts), n, "peer_timeout", o->peer_timeout);
		n = opt(opts, sizeof(opts), n, "peer_buffer_credits", o->peer_buffer_credits);
		n = opt(opts, sizeof(opts), n, "conns_per_peer", o->conns_per_peer);
	}
	return lnl_ni_add_line(net, iface, NULL, opts, nid);
}
EXPORT_SYMBOL_GPL(lnet_lite_ni_add);
