// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: interfaces and their addresses. IPv4 only: the protocol that this
 * stand-in serves has no form for longer NIDs.
 */
#include <linux/ethtool.h>
#include <linux/export.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "internal.h"

static int add_addrs(struct net_device *dev, struct lnet_inetdev **list, int n)
{
	struct in_device *in_dev = __in_dev_get_rtnl(dev);
	const struct in_ifaddr *ifa;

	if (!in_dev)
		return n;
	in_dev_for_each_ifa_rtnl(ifa, in_dev) {
		struct lnet_inetdev *more, *e;

		more = krealloc_array(*list, n + 1, sizeof(**list), GFP_KERNEL);
		if (!more)
			return -ENOMEM;
		*list = more;
		e = &more[n++];
		memset(e, 0, sizeof(*e));
		e->li_ipaddr = (__force u32)ifa->ifa_local;
		e->li_netmask = (__force u32)ifa->ifa_mask;
		e->li_index = dev->ifindex;
		e->li_cpt = cfs_cpt_of_node(lnet_cpt_table(),
					    dev_to_node(&dev->dev));
		e->li_iff_master = netif_is_bond_master(dev);
		e->li_size = sizeof(struct in_addr);
		strscpy(e->li_name, ifa->ifa_label[0] ? ifa->ifa_label : dev->name,
			sizeof(e->li_name));
	}
	return n;
}

int lnet_inet_enumerate(struct lnet_inetdev **dev_list, struct net *ns, bool v6_first)
{
	struct lnet_inetdev *list = NULL;
	struct net_device *dev;
	int n = 0;

	rtnl_lock();
	for_each_netdev(ns, dev) {
		unsigned int flags = READ_ONCE(dev->flags);

		if ((flags & IFF_LOOPBACK) || !(flags & IFF_UP))
			continue;
		n = add_addrs(dev, &list, n);
		if (n < 0)
			break;
	}
	rtnl_unlock();

	if (n <= 0) {
		kfree(list);
		*dev_list = NULL;
		return n ? n : -ENOENT;
	}
	*dev_list = list;
	return n;
}
EXPORT_SYMBOL_GPL(lnet_inet_enumerate);

/* Index of the interface that has the name and the address that @ni asks for */
int lnet_inet_select(struct lnet_ni *ni, struct lnet_inetdev *ifaces, int num_ifaces)
{
	bool named = ni->ni_interface && ni->ni_interface[0];
	bool addr = nid_addr_is_set(&ni->ni_nid);
	int i;

	for (i = 0; i < num_ifaces; i++) {
		if (named && strcmp(ni->ni_interface, ifaces[i].li_name))
			continue;
		if (addr && (__force u32)ni->ni_nid.nid_addr[0] != ifaces[i].li_ipaddr)
			continue;
		return i;
	}
	pr_err("lnet_lite: no UP interface %s with the address asked for\n",
	       named ? ni->ni_interface : "");
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(lnet_inet_select);

/* 1 up, 0 down, -1 unknown; the caller holds rtnl */
int lnet_get_link_status_locked(struct net_device *dev)
{
	if (!dev)
		return -1;
	if (!netif_running(dev))
		return 0;
	if (dev->ethtool_ops && dev->ethtool_ops->get_link)
		return dev->ethtool_ops->get_link(dev);
	return -1;
}
EXPORT_SYMBOL_GPL(lnet_get_link_status_locked);

int lnet_get_link_status(struct net_device *dev)
{
	int rc;

	rtnl_lock();
	rc = lnet_get_link_status_locked(dev);
	rtnl_unlock();
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_get_link_status);
