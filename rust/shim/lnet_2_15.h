/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interfaces that LNet 2.15 lacks, or has in another form. With later versions the
 * functions here only rename LNet's own.
 */
#ifndef RO2IB_LNET_2_15_H
#define RO2IB_LNET_2_15_H

#ifdef RO2IB_HAVE_INET_INDEX

static inline bool ro2ib_inet_is_ipv4(const struct lnet_inetdev *dev)
{
	return dev->li_size == sizeof(__be32);
}

static inline __be32 ro2ib_inet_ip(const struct lnet_inetdev *dev)
{
	return (__force __be32)dev->li_ipaddr;
}

static inline int ro2ib_inet_index(const struct lnet_inetdev *dev,
				   struct net *net)
{
	return dev->li_index;
}

static inline int ro2ib_inet_enumerate(struct lnet_inetdev **devs,
				       struct net *net)
{
	return lnet_inet_enumerate(devs, net, false);
}

static inline int ro2ib_notify(struct lnet_ni *lni, struct lnet_nid *nid,
			       bool alive, bool reset, time64_t when)
{
	return lnet_notify(lni, nid, alive, reset, when);
}

#else /* LNet 2.15 */

/* LNet lists IPv4 addresses only. */
static inline bool ro2ib_inet_is_ipv4(const struct lnet_inetdev *dev)
{
	return true;
}

static inline __be32 ro2ib_inet_ip(const struct lnet_inetdev *dev)
{
	return htonl(dev->li_ipaddr);
}

/*
 * The name is the label of the address, as in eth0:1. 0: the interface is gone.
 */
static inline int ro2ib_inet_index(const struct lnet_inetdev *dev,
				   struct net *net)
{
	const struct net_device *found;
	char name[IFNAMSIZ];
	int index;

	strscpy(name, dev->li_name, sizeof(name));
	name[strcspn(name, ":")] = '\0';

	rcu_read_lock();
	found = dev_get_by_name_rcu(net, name);
	index = found ? found->ifindex : 0;
	rcu_read_unlock();
	return index;
}

static inline int ro2ib_inet_enumerate(struct lnet_inetdev **devs,
				       struct net *net)
{
	return lnet_inet_enumerate(devs, net);
}

static inline int ro2ib_notify(struct lnet_ni *lni, struct lnet_nid *nid,
			       bool alive, bool reset, time64_t when)
{
	return lnet_notify(lni, lnet_nid_to_nid4(nid), alive, reset, when);
}

/* LNet frees it with LIBCFS_FREE(). */
static inline int lnet_ni_add_interface(struct lnet_ni *lni, const char *name)
{
	size_t size = strlen(name) + 1;

	LIBCFS_ALLOC(lni->ni_interface, size);
	if (!lni->ni_interface)
		return -ENOMEM;

	strscpy(lni->ni_interface, name, size);
	return 0;
}

static inline bool nid_addr_is_set(const struct lnet_nid *nid)
{
	return nid->nid_addr[0];
}

/* LNet 2.15 has no function that reports the change to peers at once. */
static inline void lnet_set_link_fatal_state(struct lnet_ni *lni, u32 state)
{
	atomic_set(&lni->ni_fatal_error_on, state);
}

static inline void lnet_mark_ping_buffer_for_update(void)
{
}

/* All pages of a message are of one kind: LNet looks at the first only, too. */
static inline bool lnet_md_is_gpu(const struct lnet_libmd *md)
{
	return md && md->md_niov &&
	       lnet_is_rdma_only_page(md->md_kiov[0].bv_page);
}

/* libcfs is set up when its module is loaded. */
static inline int libcfs_setup(void)
{
	return 0;
}

#endif

#endif /* RO2IB_LNET_2_15_H */
