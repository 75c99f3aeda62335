// SPDX-License-Identifier: GPL-2.0
/*
 * NI in the shim: choice of its interface and address, and references.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/slab.h>
#include <net/net_namespace.h>

#include "internal.h"

/* Period of the log line of a shutdown that waits for references. */
#define RO2IB_WAIT_WARN	(15 * HZ)

/* Choice of the interface */

static bool ro2ib_addr_matches(const struct lnet_nid *nid,
			       const struct lnet_inetdev *dev)
{
	return !nid_addr_is_set(nid) ||
	       nid->nid_addr[0] == ro2ib_inet_ip(dev);
}

/*
 * Finds the interface in the list by name (NULL: any) and by the address in the
 * NID, if it has one. Returns its index, or logs the error and returns a
 * negative errno.
 */
static int ro2ib_ni_match(const struct lnet_ni *lni, const char *wanted,
			  const struct lnet_inetdev *devs, int n)
{
	bool named = false;
	int i;

	for (i = 0; i < n; i++) {
		if (wanted && strcmp(wanted, devs[i].li_name))
			continue;
		named = true;
		if (ro2ib_inet_is_ipv4(&devs[i]) &&
		    ro2ib_addr_matches(&lni->ni_nid, &devs[i]))
			return i;
	}

	if (!wanted)
		pr_err_ratelimited("no interface that is up has address %pI4\n",
				   &lni->ni_nid.nid_addr[0]);
	else if (!named)
		pr_err_ratelimited("interface %s does not exist in this network namespace, or is not up, or has no address\n",
				   wanted);
	else if (nid_addr_is_set(&lni->ni_nid))
		pr_err_ratelimited("interface %s does not have address %pI4\n",
				   wanted, &lni->ni_nid.nid_addr[0]);
	else
		pr_err_ratelimited("interface %s has no IPv4 address: o2ib supports IPv4 NIDs only\n",
				   wanted);
	return -ENOENT;
}

static int ro2ib_store_numa_node(struct net_device *dev,
				 struct netdev_nested_priv *priv)
{
	int *node = priv->data;

	*node = dev_to_node(&dev->dev);
	return *node != NUMA_NO_NODE;
}

/*
 * Returns the CPT of the first interface below that of the NI which has a NUMA
 * node, CFS_CPT_ANY if there is none. A bond, a VLAN or a bridge has no node of
 * its own, and LNet prefers an NI with a CPT.
 */
static int ro2ib_cpt_below(struct net *net, int ifindex)
{
	int node = NUMA_NO_NODE;
	struct netdev_nested_priv priv = { .data = &node };
	struct net_device *dev;

	rcu_read_lock();
	dev = dev_get_by_index_rcu(net, ifindex);
	if (dev)
		netdev_walk_all_lower_dev_rcu(dev, ro2ib_store_numa_node, &priv);
	rcu_read_unlock();
	return node == NUMA_NO_NODE ? CFS_CPT_ANY :
				      cfs_cpt_of_node(lnet_cpt_table(), node);
}

static void ro2ib_ni_apply(struct lnet_ni *lni, struct ro2ib_ni_cfg *cfg,
			   const struct lnet_inetdev *dev)
{
	u32 num;

	lni->ni_nid.nid_size = 0;
	memset(lni->ni_nid.nid_addr, 0, sizeof(lni->ni_nid.nid_addr));
	lni->ni_nid.nid_addr[0] = ro2ib_inet_ip(dev);
	lni->ni_dev_cpt = dev->li_cpt;

	cfg->nid = lnet_nid_to_nid4(&lni->ni_nid);
	cfg->ip = ro2ib_inet_ip(dev);
	cfg->net = lni->ni_net_ns;
	cfg->ifindex = ro2ib_inet_index(dev, lni->ni_net_ns);
	if (lni->ni_dev_cpt == CFS_CPT_ANY)
		lni->ni_dev_cpt = ro2ib_cpt_below(cfg->net, cfg->ifindex);

	num = lni->ni_net->net_id & 0xffff;
	if (num)
		snprintf(cfg->name, sizeof(cfg->name), "%pI4@o2ib%u", &cfg->ip,
			 num);
	else
		snprintf(cfg->name, sizeof(cfg->name), "%pI4@o2ib", &cfg->ip);
}

/*
 * Returns whether LNet has an NI with that NID. LNet refuses a second NI only
 * after it has started, and 2.16 and later free it twice then.
 */
static bool ro2ib_ni_exists(struct lnet_nid *nid)
{
	struct lnet_ni *lni = lnet_nid_to_ni_addref(nid);

	if (lni)
		lnet_ni_decref(lni);
	return lni;
}

/*
 * Chooses the interface of an NI, and completes the lnet_ni and the part of the
 * configuration that depend on it. Takes rtnl, sleeps.
 */
int ro2ib_ni_select(struct lnet_ni *lni, struct ro2ib_ni_cfg *cfg)
{
	struct lnet_inetdev *devs = NULL;
	const char *wanted = NULL;
	int n;
	int i;
	int rc = 0;

	if (!lni->ni_net_ns) {
		pr_err_ratelimited("an NI needs a network namespace\n");
		return -EINVAL;
	}
	if (!nid_is_nid4(&lni->ni_nid)) {
		pr_err_ratelimited("o2ib supports IPv4 NIDs only: give the NI an IPv4 address\n");
		return -EAFNOSUPPORT;
	}

	if (lni->ni_interface && *lni->ni_interface)
		wanted = lni->ni_interface;
	else if (!nid_addr_is_set(&lni->ni_nid))
		wanted = ro2ib_param_ipif_name();
	if (wanted && strlen(wanted) >= IFNAMSIZ) {
		pr_err_ratelimited("interface name '%s' is longer than %d characters\n",
				   wanted, IFNAMSIZ - 1);
		return -E2BIG;
	}

	n = ro2ib_inet_enumerate(&devs, lni->ni_net_ns);
	if (n < 0) {
		pr_err_ratelimited("cannot list the network interfaces: %d\n",
				   n);
		return n;
	}

	i = ro2ib_ni_match(lni, wanted, devs, n);
	if (i < 0) {
		rc = i;
		goto out;
	}
	ro2ib_ni_apply(lni, cfg, &devs[i]);
	if (ro2ib_ni_exists(&lni->ni_nid)) {
		pr_err_ratelimited("%s: LNet has an NI with this NID already\n",
				   cfg->name);
		rc = -EADDRINUSE;
		goto out;
	}

	if (!lni->ni_interface || !*lni->ni_interface) {
		rc = lnet_ni_add_interface(lni, devs[i].li_name);
		if (rc < 0) {
			pr_err_ratelimited("%s: cannot store the name of interface %s: %d\n",
					   cfg->name, devs[i].li_name, rc);
			goto out;
		}
	}

	rc = 0;
#ifdef RO2IB_HAVE_DEFAULT_CPTS
	/* Needs ni_dev_cpt; must precede all placement by CPT. */
	rc = lnet_ni_set_default_cpts(lni);
	if (rc)
		pr_err_ratelimited("%s: cannot bind to CPTs: %d\n", cfg->name,
				   rc);
#endif
out:
	kfree(devs);
	return rc;
}

/* References */

struct ro2ib_ni *ro2ib_ni_alloc(struct lnet_ni *lni,
				const struct ro2ib_ni_cfg *cfg)
{
	struct ro2ib_ni *ni;

	ni = kzalloc_obj(*ni, GFP_KERNEL);
	if (!ni)
		return NULL;

	INIT_LIST_HEAD(&ni->list);
	refcount_set(&ni->users, 1);
	init_completion(&ni->released);
	ni->ni = lni;
	ni->net = cfg->net;
	ni->ip = (__force __be32)cfg->ip;
	ni->ifindex = cfg->ifindex;
	ni->nid = cfg->nid;
	ni->peer_credits = cfg->peer_credits;
	ni->peer_credits_open = cfg->peer_credits_open;
	ni->credits_open = cfg->max_tx_credits_open;
	ni->credits = cfg->max_tx_credits;
	ro2ib_tune_init(ni);
	strscpy(ni->name, cfg->name, sizeof(ni->name));
	return ni;
}

void ro2ib_ni_get(struct ro2ib_ni *ni)
{
	refcount_inc(&ni->users);
}

void ro2ib_ni_put(struct ro2ib_ni *ni)
{
	if (refcount_dec_and_test(&ni->users))
		complete(&ni->released);
}

/*
 * Drops the shim's reference and frees the NI after the driver has dropped its
 * own.
 */
void ro2ib_ni_release(struct ro2ib_ni *ni)
{
	ro2ib_ni_put(ni);
	while (!wait_for_completion_timeout(&ni->released, RO2IB_WAIT_WARN))
		pr_warn("%s: shutdown waits for %u references\n", ni->name,
			refcount_read(&ni->users));

	ro2ib_lnet_set_dma_device(ni, NULL);
	kfree(ni);
}

/* GPU affinity */

void ro2ib_lnet_set_dma_device(struct ro2ib_ni *ni, struct device *dev)
{
	struct device *old;

	if (dev)
		get_device(dev);
	/*
	 * An NI that loses its device may already be looking for another
	 * device.
	 */
	old = xchg((__force struct device **)&ni->dma_dev, dev);
	if (old) {
		synchronize_rcu();
		put_device(old);
	}
}

/* Atomic: LNet holds a spinlock. */
unsigned int ro2ib_get_dev_prio(struct lnet_ni *lni, unsigned int dev_idx)
{
	struct ro2ib_ni *ni = lni->ni_data;
	unsigned int prio = UINT_MAX;
	struct device *dev;

	if (!ni)
		return prio;

	rcu_read_lock();
	dev = rcu_dereference(ni->dma_dev);
	if (dev)
		prio = lnet_get_dev_prio(dev, dev_idx);
	rcu_read_unlock();
	return prio;
}
