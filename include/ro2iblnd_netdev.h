/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An interface and what it rests on. A VLAN is up and has its routes for a
 * moment after the interface below it is down, and its carrier follows later:
 * whoever asks whether packets can leave has to look at both.
 */
#ifndef RO2IBLND_NETDEV_H
#define RO2IBLND_NETDEV_H

#include <linux/if_vlan.h>
#include <linux/netdevice.h>

/*
 * The interface that the VLAN @dev is on; NULL if it is none. Under
 * rcu_read_lock().
 */
static inline const struct net_device *
ro2ib_netdev_below(const struct net_device *dev)
{
#if IS_ENABLED(CONFIG_VLAN_8021Q)
	if (is_vlan_dev(dev))
		return vlan_dev_priv(dev)->real_dev;
#endif
	return NULL;
}

/* Does what is sent through @dev leave this node? Like ro2ib_netdev_below(). */
static inline bool ro2ib_netdev_carries(const struct net_device *dev)
{
	for (; dev; dev = ro2ib_netdev_below(dev))
		if (!netif_running(dev) || !netif_carrier_ok(dev))
			return false;
	return true;
}

/* Is @dev the interface @other, or on it? Like ro2ib_netdev_below(). */
static inline bool ro2ib_netdev_rests_on(const struct net_device *dev,
					 const struct net_device *other)
{
	while (dev && dev != other)
		dev = ro2ib_netdev_below(dev);
	return dev;
}

#endif
