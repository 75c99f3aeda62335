// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: peers of an NI, and what the LND says about them.
 */
#include <linux/export.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>

#include "internal.h"

struct lnet_peer_ni *lnl_peer_find_locked(struct lnl_ni *ni, const struct lnet_nid *nid)
{
	struct lnet_peer_ni *peer;

	lockdep_assert_held(&lnl_lock);
	list_for_each_entry(peer, &ni->peers, list)
		if (nid_same(&peer->nid, nid))
			return peer;
	return NULL;
}

/* The caller holds a reference on @ni; the peer stays as long as the NI */
struct lnet_peer_ni *lnl_peer_get(struct lnl_ni *ni, const struct lnet_nid *nid)
{
	struct lnet_peer_ni *peer, *made;

	spin_lock(&lnl_lock);
	peer = lnl_peer_find_locked(ni, nid);
	spin_unlock(&lnl_lock);
	if (peer)
		return peer;

	made = kzalloc_obj(*made, GFP_NOFS);
	if (!made)
		return NULL;
	made->nid = *nid;
	made->credits = ni->net.net_tunables.lct_peer_tx_credits;
	made->credits_min = made->credits;
	INIT_LIST_HEAD(&made->txq);

	spin_lock(&lnl_lock);
	peer = lnl_peer_find_locked(ni, nid);
	if (!peer) {
		list_add_tail(&made->list, &ni->peers);
		peer = made;
		made = NULL;
	}
	spin_unlock(&lnl_lock);
	kfree(made);
	return peer;
}

int lnet_notify(struct lnet_ni *ni, struct lnet_nid *nid, bool alive, bool reset,
		time64_t when)
{
	time64_t now = ktime_get_seconds();
	struct lnet_peer_ni *peer;

	lnl_check_context(__func__);

	spin_lock(&lnl_lock);
	if (!lnl_ni_known_locked(ni)) {
		spin_unlock(&lnl_lock);
		lnl_fault(parse_unknown_ni, "%s for an NI that is gone\n", __func__);
		return -EINVAL;
	}
	spin_unlock(&lnl_lock);

	if (LNET_NID_NET(&ni->ni_nid) != LNET_NID_NET(nid)) {
		lnl_fault(notify_other_net, "%s says %s\n", libcfs_nidstr(&ni->ni_nid),
			  libcfs_nidstr(nid));
		return -EINVAL;
	}
	if (when > now) {
		lnl_fault(notify_future, "%s, %lld s ahead\n", libcfs_nidstr(nid), when - now);
		return -EINVAL;
	}
	if (alive)
		lnl_count(notify_up);
	else
		lnl_count(notify_down);

	spin_lock(&lnl_lock);
	peer = lnl_peer_find_locked(lnl_ni(ni), nid);
	/* a message that came in later than @when proves the peer alive */
	if (peer && (alive || peer->last_alive <= when))
		peer->down = !alive;
	spin_unlock(&lnl_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(lnet_notify);

int lnl_peers_print(char *buf, size_t size)
{
	struct lnet_peer_ni *peer;
	struct lnl_ni *ni;
	unsigned int i;
	int n = 0, p = 0;

	spin_lock(&lnl_lock);
	for (i = 0; (ni = lnl_ni_nth_locked(i)); i++) {
		list_for_each_entry(peer, &ni->peers, list) {
			n += scnprintf(buf + n, size - n,
				       "peer%d=%s via=%s credits=%d min=%d state=%s puts=%lld\n",
				       p++, libcfs_nidstr(&peer->nid),
				       libcfs_nidstr(&ni->ni.ni_nid), peer->credits,
				       peer->credits_min, peer->down ? "down" : "up",
				       atomic64_read(&peer->puts));
		}
	}
	spin_unlock(&lnl_lock);
	return n + scnprintf(buf + n, size - n, "peers=%d\n", p);
}
