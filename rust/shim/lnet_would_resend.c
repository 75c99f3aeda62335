// SPDX-License-Identifier: GPL-2.0
/*
 * Resend of messages that a connection lost: whether LNet would resend one
 * itself.
 *
 * LNet does so if it has another path: another local NI if this side is to
 * blame, another NI of the peer if that side is. With one NI on either side, as
 * on most nodes, LNet ends the message instead, and the receiver of a lost ACK
 * or REPLY gets no error. Then the driver resends the message.
 *
 * LNet does not export its number of retries (lnet_retry_count). A message that
 * LNet has retried that often, or any message if the number is 0, ends.
 */
#include <linux/ktime.h>

#include "internal.h"

#ifdef LNET_LITE

static bool ro2ib_lnet_would_resend(struct lnet_msg *msg,
			       enum lnet_msg_hstatus health)
{
	return lnet_lite_resends(msg, health);
}

#else

/*
 * NIs of this node except the loopback. The caller only needs to know if there
 * is more than one.
 */
static bool ro2ib_has_other_ni(void)
{
	struct lnet_net *net;
	struct lnet_ni *ni;
	int n = 0;

	list_for_each_entry(net, &the_lnet.ln_nets, net_list)
		list_for_each_entry(ni, &net->net_ni_list, ni_netlist)
			if (!nid_is_lo0(&ni->ni_nid) && ++n > 1)
				return true;
	return false;
}

static bool ro2ib_peer_has_other_ni(const struct lnet_peer_ni *lpni)
{
	return lpni && lpni->lpni_peer_net && lpni->lpni_peer_net->lpn_peer &&
	       lpni->lpni_peer_net->lpn_peer->lp_nnis > 1;
}

/*
 * Decides as lnet_health_check() and its callees do, except that the number of
 * earlier resends does not count.
 */
static bool ro2ib_lnet_would_resend(struct lnet_msg *msg,
			       enum lnet_msg_hstatus health)
{
	int cpt = msg->msg_tx_cpt;
	bool other;

	/*
	 * LNet does not resend it: a message that checks a path must fail if
	 * the path does.
	 */
	if (msg->msg_recovery || msg->msg_no_resend)
		return true;

	lnet_net_lock(cpt);
	switch (health) {
	case LNET_MSG_STATUS_LOCAL_INTERRUPT:
	case LNET_MSG_STATUS_LOCAL_DROPPED:
	case LNET_MSG_STATUS_LOCAL_ABORTED:
	case LNET_MSG_STATUS_LOCAL_NO_ROUTE:
	case LNET_MSG_STATUS_LOCAL_TIMEOUT:
		other = ro2ib_has_other_ni();
		break;
	case LNET_MSG_STATUS_REMOTE_DROPPED:
		other = ro2ib_peer_has_other_ni(msg->msg_txpeer);
		break;
	default:
		other = false;
		break;
	}
	lnet_net_unlock(cpt);
	return other;
}

#endif

bool ro2ib_lnet_prepare_resend(struct lnet_msg *msg, u32 health,
			       struct ro2ib_send_req *req)
{
	/*
	 * A received message names no next hop. And LNet sends a GET past its
	 * own path selection to check a single path (LNetGetForce()): such a
	 * GET has no deadline.
	 */
	if (!msg->msg_sending)
		return false;
	/* The sender may have aborted it. */
	if (msg->msg_md && (READ_ONCE(msg->msg_md->md_flags) & LNET_MD_FLAG_ABORTED))
		return false;
	if (ktime_after(ktime_get(), msg->msg_deadline))
		return false;
	if (ro2ib_lnet_would_resend(msg, health))
		return false;

	ro2ib_send_req_fill(req, msg);
	return true;
}
