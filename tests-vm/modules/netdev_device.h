/* SPDX-License-Identifier: GPL-2.0 */
#ifndef NETDEV_DEVICE_H
#define NETDEV_DEVICE_H

#include <linux/netdevice.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

/*
 * Returns the RDMA device of a network interface, NULL if there is none. The
 * caller calls ib_device_put().
 */
static inline struct ib_device *device_of(const char *interface)
{
	struct net_device *ndev = dev_get_by_name(&init_net, interface);
	struct ib_device *device;

	if (!ndev)
		return NULL;
	device = ib_device_get_by_netdev(ndev, RDMA_DRIVER_UNKNOWN);
	dev_put(ndev);
	return device;
}

#endif
