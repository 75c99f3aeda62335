// SPDX-License-Identifier: GPL-2.0
/*
 * Link of the NIs: state of the interface and its address, notifiers, and the
 * list of NIs.
 *
 * Locking: ro2ib_ni_mutex guards the list of NIs and their link state. The
 * notifiers take it with rtnl held, so no holder of it may take rtnl. RCU
 * readers may read the list, too.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/notifier.h>
#include <linux/rculist.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>
#include <net/route.h>

#include "ro2iblnd_netdev_carrier.h"
#include "internal.h"

/* NIs whose startup is complete, and that are not being shut down. */
static LIST_HEAD(ro2ib_ni_list);
static DEFINE_MUTEX(ro2ib_ni_mutex);

/*
 * Longest wait of a link that is being set down until peers got the
 * disconnects, in ms.
 */
#define RO2IB_LEAVE_MAX		500
#define RO2IB_LEAVE_STEP	10

/*
 * Longest total wait of several links that are set down one after the other, in
 * ms, within one period: rtnl is held meanwhile.
 */
#define RO2IB_LEAVE_TOTAL	1000
#define RO2IB_LEAVE_PERIOD	(10 * HZ)

/* State of the link */

/*
 * Returns the interface of the NI if the interface exists and has the NI's
 * address. Under rcu_read_lock().
 */
static struct net_device *ro2ib_ni_netdev(const struct ro2ib_ni *ni)
{
	const struct in_ifaddr *ifa;
	struct in_device *in_dev;
	struct net_device *dev;

	dev = dev_get_by_index_rcu(ni->net, ni->ifindex);
	if (!dev || dev->reg_state != NETREG_REGISTERED)
		return NULL;
	in_dev = __in_dev_get_rcu(dev);
	if (!in_dev)
		return NULL;
	in_dev_for_each_ifa_rcu(ifa, in_dev)
		if (ifa->ifa_local == ni->ip)
			return dev;
	return NULL;
}

/*
 * Called when any interface gets or loses the NI's address. While the NI's
 * interface has the address, other holders do not matter (lo, for a load
 * balancer). If it lost the address, the interface may have been created again,
 * or the address has moved to another interface.
 */
static void ro2ib_find_interface(struct ro2ib_ni *ni)
{
	const struct net_device *dev;

	rcu_read_lock();
	if (!ro2ib_ni_netdev(ni)) {
		dev = __ip_dev_find(ni->net, ni->ip, false);
		if (dev && !(dev->flags & IFF_LOOPBACK))
			WRITE_ONCE(ni->ifindex, dev->ifindex);
	}
	rcu_read_unlock();
}

static int ro2ib_is_bond(struct net_device *dev,
			 struct netdev_nested_priv *unused)
{
	return netif_is_lag_master(dev);
}

/* The interface changes if the address moves. */
bool ro2ib_ni_is_bonded(const struct ro2ib_ni *ni)
{
	struct netdev_nested_priv unused = {};
	struct net_device *dev;
	bool bonded;

	rcu_read_lock();
	dev = dev_get_by_index_rcu(ni->net, READ_ONCE(ni->ifindex));
	bonded = dev && (ro2ib_is_bond(dev, &unused) ||
			 netdev_walk_all_lower_dev_rcu(dev, ro2ib_is_bond,
						       &unused));
	rcu_read_unlock();
	return bonded;
}

/*
 * Returns the state of the interface for the NI's address: RO2IB_LINK_UP, DOWN
 * or NO_CARRIER. Connections over InfiniBand do not go through IPoIB. A bond of
 * IPoIB counts as down: the active port depends on the carriers of the bond.
 */
static enum ro2ib_link_event ro2ib_link_state(const struct ro2ib_ni *ni)
{
	enum ro2ib_link_event link = RO2IB_LINK_DOWN;
	struct net_device *dev;

	rcu_read_lock();
	dev = ro2ib_ni_netdev(ni);
	if (dev && ro2ib_netdev_carries(dev) && netif_oper_up(dev))
		link = RO2IB_LINK_UP;
	else if (dev && netif_running(dev) && dev->type == ARPHRD_INFINIBAND &&
		 !netif_is_lag_master(dev))
		link = RO2IB_LINK_NO_CARRIER;
	rcu_read_unlock();
	return link;
}

/* Returns whether only this driver reports that the NI cannot be used. */
static bool ro2ib_ni_down(unsigned long fatal)
{
	return fatal && !(fatal & RO2IB_FATAL_TOLD);
}

/* Sets the reasons in @mask to those in @on; tells LNet if the sum changed. */
static void ro2ib_ni_fatal(struct ro2ib_ni *ni, unsigned long mask,
			   unsigned long on)
{
	unsigned long was = ni->fatal;

	lockdep_assert_held(&ro2ib_ni_mutex);

	ni->fatal = (was & ~mask) | on;
	if (!ro2ib_ni_down(was) && ro2ib_ni_down(ni->fatal))
		pr_warn_ratelimited("%s: link is down\n", ni->name);
	else if (ro2ib_ni_down(was) && !ni->fatal)
		pr_info_ratelimited("%s: link is up\n", ni->name);
	if (!was == !ni->fatal)
		return;

	lnet_set_link_fatal_state(ni->ni, !!ni->fatal);
	/*
	 * LNet tells its peers; it has no peers to tell before the NI is
	 * active.
	 */
	if (ro2ib_ni_active(ni))
		lnet_mark_ping_buffer_for_update();
}

static void ro2ib_ni_check_link(struct ro2ib_ni *ni)
{
	enum ro2ib_link_event link = ro2ib_link_state(ni);

	if (link == ni->link)
		return;

	ni->link = link;
	ro2ib_ni_fatal(ni, RO2IB_FATAL_LINK,
		       link == RO2IB_LINK_UP ? 0 : RO2IB_FATAL_LINK);
	ro2ib_ops->link_event(ni->priv, link);
}

/* Two interfaces on one link */

/*
 * Returns whether the kernel sends packets of the NI's address through another
 * interface than @home, to nodes of the subnet of @own.
 */
static bool ro2ib_routes_elsewhere(const struct ro2ib_ni *ni,
				   const struct net_device *home,
				   const struct in_ifaddr *own)
{
	struct flowi4 fl = { .saddr = ni->ip };
	struct rtable *rt;
	bool elsewhere;
	u32 host;

	for (host = 1; host < 8; host++) {
		fl.daddr = own->ifa_address ^ htonl(host);
		if (inet_ifa_match(fl.daddr, own) &&
		    inet_addr_type(ni->net, fl.daddr) == RTN_UNICAST)
			break;
	}
	if (host == 8)
		return false;
	rt = ip_route_output_key(ni->net, &fl);
	if (IS_ERR(rt))
		return false;
	elsewhere = READ_ONCE(rt->dst.dev) != home;
	ip_rt_put(rt);
	return elsewhere;
}

/*
 * Returns why peers may not reach the NI: the fault of another interface that
 * has an address in the same subnet and, if the network is set up right, is on
 * the same link. Returns NULL if there is none. *@rival is that interface.
 */
static const char *ro2ib_arp_fault(const struct ro2ib_ni *ni,
				   const struct net_device **rival)
{
	const struct net_device *home = ro2ib_ni_netdev(ni);
	const struct in_ifaddr *ifa, *own = NULL;
	const struct net_device *dev;
	struct in_device *in_dev;
	bool strict;

	if (!home)
		return NULL;
	in_dev = __in_dev_get_rcu(home);
	if (!in_dev)
		return NULL;
	strict = IN_DEV_RPFILTER(in_dev) == 1;
	in_dev_for_each_ifa_rcu(ifa, in_dev)
		if (ifa->ifa_local == ni->ip)
			own = ifa;
	if (!own)
		return NULL;

	for_each_netdev_rcu(ni->net, dev) {
		in_dev = __in_dev_get_rcu(dev);
		if (dev == home || dev->type != home->type || !in_dev ||
		    !netif_running(dev) || dev->flags & IFF_NOARP)
			continue;
		in_dev_for_each_ifa_rcu(ifa, in_dev) {
			if (!inet_ifa_match(ifa->ifa_local, own))
				continue;
			*rival = dev;
			if (!IN_DEV_ARP_IGNORE(in_dev) &&
			    !IN_DEV_ARPFILTER(in_dev))
				return "answers ARP requests for the address of this NI (arp_ignore is 0)";
			if (strict && ro2ib_routes_elsewhere(ni, home, own))
				return "has the route, so packets for this NI are dropped (rp_filter is 1)";
		}
	}
	return NULL;
}

/*
 * Logs once if the node has two interfaces in one subnet and its ARP settings
 * are wrong: peers would send to the adapter of the other interface, and their
 * only symptom is a handshake that takes too long.
 */
static void ro2ib_ni_check_arp(struct ro2ib_ni *ni)
{
	const struct net_device *rival = NULL;
	const char *fault;

	lockdep_assert_held(&ro2ib_ni_mutex);

	rcu_read_lock();
	fault = ro2ib_arp_fault(ni, &rival);
	if (fault && !ni->arp_told)
		pr_warn("%s: peers may not reach this NI: %s is in the same subnet and %s: set %s=1, %s=2 and %s=2\n",
			ni->name, rival->name, fault,
			"net.ipv4.conf.all.arp_ignore",
			"net.ipv4.conf.all.arp_announce",
			"net.ipv4.conf.all.rp_filter");
	rcu_read_unlock();
	ni->arp_told = fault;
}

void ro2ib_lnet_set_fatal(struct ro2ib_ni *ni, bool fatal, bool told)
{
	unsigned long on = 0;

	if (fatal)
		on = RO2IB_FATAL_PORT | (told ? RO2IB_FATAL_TOLD : 0);

	mutex_lock(&ro2ib_ni_mutex);
	ro2ib_ni_fatal(ni, RO2IB_FATAL_PORT | RO2IB_FATAL_TOLD, on);
	mutex_unlock(&ro2ib_ni_mutex);
}

void ro2ib_ni_publish(struct ro2ib_ni *ni)
{
	mutex_lock(&ro2ib_ni_mutex);
	list_add_tail_rcu(&ni->list, &ro2ib_ni_list);
	/* Events before the NI was on the list were not recorded. */
	ro2ib_ni_check_link(ni);
	ro2ib_ni_check_arp(ni);
	ro2ib_tune_apply(ni, true);
	mutex_unlock(&ro2ib_ni_mutex);
}

void ro2ib_ni_unpublish(struct ro2ib_ni *ni)
{
	mutex_lock(&ro2ib_ni_mutex);
	list_del_rcu(&ni->list);
	mutex_unlock(&ro2ib_ni_mutex);
	synchronize_rcu();
}

/* Settings that may change at any time */

/* Called when the parameter ni_tune changed. */
void ro2ib_ni_retune(void)
{
	struct ro2ib_ni *ni;

	mutex_lock(&ro2ib_ni_mutex);
	list_for_each_entry(ni, &ro2ib_ni_list, list)
		ro2ib_tune_apply(ni, true);
	mutex_unlock(&ro2ib_ni_mutex);
}

/* Makes the driver derive its values from the parameters again. */
void ro2ib_ni_settings_changed(void)
{
	struct ro2ib_ni *ni;

	mutex_lock(&ro2ib_ni_mutex);
	list_for_each_entry(ni, &ro2ib_ni_list, list)
		ro2ib_ops->settings_changed(ni->priv);
	mutex_unlock(&ro2ib_ni_mutex);
}

/* Returns the running NI of these tunables, or NULL. Under rcu_read_lock(). */
const struct ro2ib_ni *ro2ib_ni_with_tunables(const void *tunables)
{
	const struct ro2ib_ni *ni;

	list_for_each_entry_rcu(ni, &ro2ib_ni_list, list)
		if (tunables == &ni->ni->ni_lnd_tunables)
			return ni;
	return NULL;
}

/* Returns a running NI of that net, or NULL. Under rcu_read_lock(). */
const struct ro2ib_ni *ro2ib_ni_of_net(const struct lnet_net *net)
{
	const struct ro2ib_ni *ni;

	list_for_each_entry_rcu(ni, &ro2ib_ni_list, list)
		if (net == ni->ni->ni_net)
			return ni;
	return NULL;
}

/*
 * Called when the driver has found the device, or the speed of its port
 * changed. Until the NI is on the list, LNet gets the chosen values
 * (ro2ib_tunables_derive()).
 */
void ro2ib_ni_choose(struct ro2ib_ni *ni, u32 depth, u32 credits, u32 mbps)
{
	mutex_lock(&ro2ib_ni_mutex);
	if (ni->peer_credits_open) {
		WRITE_ONCE(ni->mbps, mbps);
		ni->credits = credits;
		ro2ib_set_chosen_depth(ni, depth);
	}
	mutex_unlock(&ro2ib_ni_mutex);
}

/* Returns the chosen depth and credits, both of one moment. */
void ro2ib_ni_chosen(struct ro2ib_ni *ni, u32 *depth, u32 *credits)
{
	mutex_lock(&ro2ib_ni_mutex);
	*depth = ni->peer_credits;
	*credits = ni->credits;
	mutex_unlock(&ro2ib_ni_mutex);
}

/* Notifiers; the callers of all chains hold rtnl. */

/*
 * Returns whether @dev is the interface of the NI. @dev may be unlisted by now.
 */
static bool ro2ib_ni_is_on(const struct ro2ib_ni *ni,
			   const struct net_device *dev)
{
	return ni->ifindex == dev->ifindex && net_eq(ni->net, dev_net(dev));
}

/*
 * Returns whether @dev is the interface of the NI or below it. The notifiers of
 * an upper interface run after the change of the lower interface. A lower
 * interface may be in another namespace.
 */
static bool ro2ib_ni_rests_on(const struct ro2ib_ni *ni, struct net_device *dev)
{
	bool rests;

	rcu_read_lock();
	rests = ro2ib_ni_is_on(ni, dev) ||
		ro2ib_netdev_rests_on(dev_get_by_index_rcu(ni->net,
							   ni->ifindex), dev);
	rcu_read_unlock();
	return rests;
}

/*
 * Returns whether the interface has the address a second time, with another
 * prefix length, so that no connection ends. Over RoCE connections end: the
 * RDMA core removes the GID of the address with either of them, whatever others
 * there are.
 */
static bool ro2ib_address_stays(const struct ro2ib_ni *ni)
{
	bool stays;

	rcu_read_lock();
	stays = ro2ib_ni_netdev(ni);
	rcu_read_unlock();
	return stays && !ro2ib_ops->has_gid(ni->priv);
}

/*
 * Returns whether the NI loses its link if @dev does not rest on @below any
 * more, which may be @dev itself, or without @ip of @dev.
 */
static bool ro2ib_ni_loses_link(const struct ro2ib_ni *ni,
				struct net_device *dev,
				const struct net_device *below, __be32 ip)
{
	struct net_device *home;
	bool loses;

	if (!ip) {
		if (!ro2ib_ni_rests_on(ni, dev))
			return false;
		rcu_read_lock();
		home = dev_get_by_index_rcu(ni->net, ni->ifindex);
		loses = !home || !ro2ib_netdev_carries_without(home, below);
		rcu_read_unlock();
		return loses;
	}
	return ip == ni->ip && ro2ib_ni_is_on(ni, dev) &&
	       !ro2ib_address_stays(ni);
}

/*
 * Closes connections while their peers can still receive a disconnect: an
 * interface, or an address of it, is about to go. Afterwards there is no route,
 * and a CM message without a route kills rxe's queue pair for CM messages.
 *
 * Waits for the closes with rtnl held: a moment, and RO2IB_LEAVE_MAX at most,
 * or the rest that earlier links have left of RO2IB_LEAVE_TOTAL. No close takes
 * rtnl, except that of a connection that is being set up with ib_mtu: the wait
 * for it times out, as does the wait for answers to a VLAN that is being
 * deleted. An NI whose link was down has no connection to close,
 * and causes no wait. IPoIB causes none either: the CM does not send through
 * it.
 */
static void ro2ib_close_before_down(struct net_device *dev,
				    const struct net_device *below, __be32 ip)
{
	/* rtnl guards both. */
	static unsigned long period;
	static unsigned long waited;
	unsigned long total = msecs_to_jiffies(RO2IB_LEAVE_TOTAL);
	struct ro2ib_ni *ni;
	bool told = false;
	unsigned long begin;
	unsigned long most;
	bool busy;

	ASSERT_RTNL();
	if (dev->type != ARPHRD_ETHER)
		return;

	mutex_lock(&ro2ib_ni_mutex);
	list_for_each_entry(ni, &ro2ib_ni_list, list) {
		ni->leaving = !(ni->fatal & RO2IB_FATAL_LINK) &&
			      ro2ib_ni_loses_link(ni, dev, below, ip);
		if (!ni->leaving)
			continue;
		told = true;
		ni->link = RO2IB_LINK_DOWN;
		ro2ib_ni_fatal(ni, RO2IB_FATAL_LINK, RO2IB_FATAL_LINK);
		ro2ib_ops->link_event(ni->priv, RO2IB_LINK_LEAVING);
	}
	mutex_unlock(&ro2ib_ni_mutex);

	begin = jiffies;
	if (time_after_eq(begin, period + RO2IB_LEAVE_PERIOD)) {
		period = begin;
		waited = 0;
	}
	most = min(msecs_to_jiffies(RO2IB_LEAVE_MAX), total - waited);
	for (;;) {
		busy = false;
		mutex_lock(&ro2ib_ni_mutex);
		list_for_each_entry(ni, &ro2ib_ni_list, list)
			busy |= ni->leaving && ro2ib_ops->link_busy(ni->priv);
		mutex_unlock(&ro2ib_ni_mutex);
		if (!busy || time_after_eq(jiffies, begin + most))
			break;
		msleep(RO2IB_LEAVE_STEP);
	}
	waited = min(waited + (jiffies - begin), total);
	/*
	 * The CM answers the messages that have just come in. The kernel waits
	 * for RCU before the interface of an adapter is down and its routes go,
	 * but not for an interface that rests on others.
	 */
	if (told && !list_empty(&dev->adj_list.lower))
		synchronize_rcu();
}

static int ro2ib_netdev_event(struct notifier_block *nb, unsigned long event,
			      void *ptr)
{
	const struct netdev_notifier_changeupper_info *info = ptr;
	struct net_device *dev = netdev_notifier_info_to_dev(ptr);
	enum ro2ib_link_event tell = RO2IB_LINK_UP;
	struct ro2ib_ni *ni;

	switch (event) {
	case NETDEV_GOING_DOWN:
		ro2ib_close_before_down(dev, dev, 0);
		return NOTIFY_DONE;
	case NETDEV_BONDING_FAILOVER:
	case NETDEV_CHANGEADDR:
		tell = RO2IB_LINK_MOVED;
		break;
	case NETDEV_CHANGEMTU:
		tell = RO2IB_LINK_MTU;
		break;
	case NETDEV_CHANGEUPPER:
		/*
		 * A master got or lost a port, or a VXLAN has another lower
		 * interface: the carrier of the upper one may stay as it is,
		 * which is no event. An interface that is deleted, or whose
		 * last port has gone, still has its carrier for a moment. The
		 * early event was for these.
		 */
		dev = info->upper_dev;
		if (list_empty(&dev->adj_list.lower))
			return NOTIFY_DONE;
		break;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
	case NETDEV_UNREGISTER:
		break;
	default:
		return NOTIFY_DONE;
	}

	mutex_lock(&ro2ib_ni_mutex);
	list_for_each_entry(ni, &ro2ib_ni_list, list) {
		if (event == NETDEV_UP && net_eq(ni->net, dev_net(dev)))
			ro2ib_ni_check_arp(ni);
		if (!ro2ib_ni_rests_on(ni, dev))
			continue;
		/*
		 * A bond failed over, IPoIB has another address, or the MTU
		 * changed. A VLAN has events of its own for its changes.
		 */
		if (tell != RO2IB_LINK_UP && ro2ib_ni_is_on(ni, dev))
			ro2ib_ops->link_event(ni->priv, tell);
		ro2ib_ni_check_link(ni);
	}
	mutex_unlock(&ro2ib_ni_mutex);
	return NOTIFY_DONE;
}

/*
 * Handles the deletion of an interface that rests on another one, a port that
 * leaves its master, and a VXLAN that leaves its lower interface. The event of
 * the upper interface comes when no message reaches it any more, and when its
 * GIDs are gone.
 */
static int ro2ib_netdev_early_event(struct notifier_block *nb,
				    unsigned long event, void *ptr)
{
	const struct netdev_notifier_changeupper_info *info = ptr;

	if (event == NETDEV_PRECHANGEUPPER && !info->linking)
		ro2ib_close_before_down(info->upper_dev,
					netdev_notifier_info_to_dev(ptr), 0);
	return NOTIFY_DONE;
}

static int ro2ib_inetaddr_event(struct notifier_block *nb, unsigned long event,
				void *ptr)
{
	const struct in_ifaddr *ifa = ptr;
	const struct net_device *dev = ifa->ifa_dev->dev;
	struct ro2ib_ni *ni;

	if (event != NETDEV_UP && event != NETDEV_DOWN)
		return NOTIFY_DONE;

	mutex_lock(&ro2ib_ni_mutex);
	list_for_each_entry(ni, &ro2ib_ni_list, list) {
		if (!net_eq(ni->net, dev_net(dev)))
			continue;
		if (ni->ip == ifa->ifa_local) {
			ro2ib_find_interface(ni);
			ro2ib_ni_check_link(ni);
		}
		ro2ib_ni_check_arp(ni);
	}
	mutex_unlock(&ro2ib_ni_mutex);
	return NOTIFY_DONE;
}

static int ro2ib_inetaddr_leaving(struct notifier_block *nb,
				  unsigned long event, void *ptr)
{
	const struct in_ifaddr *ifa = ptr;

	if (event == NETDEV_DOWN)
		ro2ib_close_before_down(ifa->ifa_dev->dev, NULL, ifa->ifa_local);
	return NOTIFY_DONE;
}

/*
 * Must precede the notifier of the RDMA core, which removes the GIDs of a VLAN.
 */
static struct notifier_block ro2ib_netdev_early_nb = {
	.notifier_call = ro2ib_netdev_early_event,
	.priority = 1,
};

static struct notifier_block ro2ib_netdev_nb = {
	.notifier_call = ro2ib_netdev_event,
};

/* Must precede the routing table's, which removes the routes of the address. */
static struct notifier_block ro2ib_inetaddr_early_nb = {
	.notifier_call = ro2ib_inetaddr_leaving,
	.priority = 1,
};

static struct notifier_block ro2ib_inetaddr_nb = {
	.notifier_call = ro2ib_inetaddr_event,
};

int ro2ib_notifiers_register(void)
{
	int rc;

	rc = register_netdevice_notifier(&ro2ib_netdev_early_nb);
	if (rc)
		return rc;
	rc = register_netdevice_notifier(&ro2ib_netdev_nb);
	if (rc)
		goto err_netdev_early;
	rc = register_inetaddr_notifier(&ro2ib_inetaddr_early_nb);
	if (rc)
		goto err_netdev;
	rc = register_inetaddr_notifier(&ro2ib_inetaddr_nb);
	if (rc)
		goto err_inetaddr_early;
	return 0;

err_inetaddr_early:
	unregister_inetaddr_notifier(&ro2ib_inetaddr_early_nb);
err_netdev:
	unregister_netdevice_notifier(&ro2ib_netdev_nb);
err_netdev_early:
	unregister_netdevice_notifier(&ro2ib_netdev_early_nb);
	return rc;
}

void ro2ib_notifiers_unregister(void)
{
	unregister_inetaddr_notifier(&ro2ib_inetaddr_nb);
	unregister_inetaddr_notifier(&ro2ib_inetaddr_early_nb);
	unregister_netdevice_notifier(&ro2ib_netdev_nb);
	unregister_netdevice_notifier(&ro2ib_netdev_early_nb);
}
