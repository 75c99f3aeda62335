/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interface and the interfaces that it rests on: a VLAN or a macvlan rests on
 * one interface, a bond, a team or a bridge on several. An upper interface is
 * up and has its routes for a moment after the interface below it is down, and
 * its carrier follows later. So whether packets can leave depends on both.
 *
 * All functions need rcu_read_lock().
 */
#ifndef RO2IBLND_NETDEV_CARRIER_H
#define RO2IBLND_NETDEV_CARRIER_H

#include <linux/netdevice.h>

struct ro2ib_netdev_walk {
	const struct net_device *gone;
	struct net_device *port;	/* last port of a master */
	bool port_carries;		/* one of the ports carries */
};

static inline bool
ro2ib_netdev_carries_without(struct net_device *dev,
			     const struct net_device *gone);

static inline bool ro2ib_netdev_has_carrier(const struct net_device *dev,
					    const struct net_device *gone)
{
	return dev != gone && netif_running(dev) && netif_carrier_ok(dev);
}

/* Returns 1, which ends the walk, if no packet leaves without @lower. */
static inline int ro2ib_netdev_visit(struct net_device *lower,
				     struct netdev_nested_priv *priv)
{
	struct ro2ib_netdev_walk *walk = priv->data;

	/* Visited for the port that rests on it. */
	if (walk->port && netdev_has_upper_dev_all_rcu(lower, walk->port))
		return 0;
	/* A master (bond, team, bridge) needs one of its ports. */
	if (netdev_master_upper_dev_get_rcu(lower)) {
		walk->port = lower;
		walk->port_carries |=
			ro2ib_netdev_carries_without(lower, walk->gone);
		return 0;
	}
	return !ro2ib_netdev_has_carrier(lower, walk->gone);
}

/*
 * Returns whether packets sent through @dev leave this node if the interface
 * @gone, which may be @dev, below it, or NULL, does not carry packets.
 */
static inline bool
ro2ib_netdev_carries_without(struct net_device *dev,
			     const struct net_device *gone)
{
	struct ro2ib_netdev_walk walk = { .gone = gone };
	struct netdev_nested_priv priv = { .data = &walk };

	if (!ro2ib_netdev_has_carrier(dev, gone) ||
	    netdev_walk_all_lower_dev_rcu(dev, ro2ib_netdev_visit, &priv))
		return false;
	return !walk.port || walk.port_carries;
}

static inline bool ro2ib_netdev_carries(struct net_device *dev)
{
	return ro2ib_netdev_carries_without(dev, NULL);
}

/* Returns whether @dev is the interface @other, or rests on it. */
static inline bool ro2ib_netdev_rests_on(struct net_device *dev,
					 struct net_device *other)
{
	return dev && (dev == other ||
		       netdev_has_upper_dev_all_rcu(other, dev));
}

#endif
