// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: sending, credits and the queues of messages that wait for them.
 *
 * A message takes a credit of the peer, then one of the NI; each is waited for
 * in order of arrival, and comes back when the message is done. A credit that
 * comes back sends the next message from the thread that finalized: so the LND
 * sees lnd_send() from inside lnet_finalize().
 */
#include <linux/workqueue.h>

#include "internal.h"

static LIST_HEAD(resend);
static void resend_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(resend_dwork, resend_work);

void lnl_prep_send(struct lnl_msg *lm, int type, const struct lnet_processid *target,
		   unsigned int offset, unsigned int len)
{
	struct lnet_msg *msg = &lm->msg;

	msg->msg_type = type;
	msg->msg_target = *target;
	msg->msg_len = len;
	msg->msg_offset = offset;
	msg->msg_niov = 0;
	msg->msg_kiov = NULL;
	if (len)
		lnl_msg_payload(lm);

	memset(&msg->msg_hdr, 0, sizeof(msg->msg_hdr));
	msg->msg_hdr.type = type;
	msg->msg_hdr.dest_nid = target->nid;
	msg->msg_hdr.dest_pid = target->pid;
	msg->msg_hdr.src_pid = LNET_PID_LUSTRE;
	msg->msg_hdr.payload_length = len;
}

static void count_sent(const struct lnet_msg *msg)
{
	switch (msg->msg_type) {
	case LNET_MSG_PUT:
		lnl_count(sent_put);
		break;
	case LNET_MSG_GET:
		lnl_count(sent_get);
		break;
	case LNET_MSG_REPLY:
		lnl_count(sent_reply);
		break;
	case LNET_MSG_ACK:
		lnl_count(sent_ack);
		break;
	}
}

static void ni_send(struct lnl_ni *ni, struct lnl_msg *lm)
{
	u64 id = lm->id;
	int rc;

	count_sent(&lm->msg);
	lm->msg.msg_health_status = LNET_MSG_STATUS_OK;
	lnl_msg_give(lm);
	rc = ni->net.net_lnd->lnd_send(&ni->ni, lm->msg.msg_private, &lm->msg);
	if (!rc)
		return;
	if (rc > 0)
		lnl_fault(bad_return, "lnd_send returned %d\n", rc);
	lnl_count(send_refused);
	pr_info_ratelimited("lnet_lite: lnd_send refused: %d\n", rc);
	/* LNet does not try again what the LND has refused */
	if (rc < 0 && lnl_msg_take_back(lm, id)) {
		lm->retries = INT_MAX;
		lnl_finish(lm, rc);
	}
}

/* 0: both credits are there; -EAGAIN: queued; other: too late. Whether the NI stops LNet does not ask here */
static int take_credits_locked(struct lnl_msg *lm)
{
	struct lnet_peer_ni *peer = lm->txpeer;
	struct lnl_ni *ni = lm->txni;
	struct lnet_msg *msg = &lm->msg;

	if (!msg->msg_routing && ktime_after(ktime_get(), lm->msg.msg_deadline)) {
		msg->msg_health_status = LNET_MSG_STATUS_NETWORK_TIMEOUT;
		return -ETIMEDOUT;
	}
	if (!msg->msg_peertxcredit) {
		msg->msg_peertxcredit = 1;
		peer->credits--;
		peer->credits_min = min(peer->credits_min, peer->credits);
		if (peer->credits < 0) {
			msg->msg_tx_delayed = 1;
			lnl_count(tx_queued_peer);
			list_add_tail(&lm->list, &peer->txq);
			return -EAGAIN;
		}
	}
	if (!msg->msg_txcredit) {
		msg->msg_txcredit = 1;
		ni->tq_credits--;
		ni->tq_credits_min = min(ni->tq_credits_min, ni->tq_credits);
		if (ni->tq_credits < 0) {
			msg->msg_tx_delayed = 1;
			lnl_count(tx_queued_ni);
			list_add_tail(&lm->list, &ni->tq_delayed);
			return -EAGAIN;
		}
	}
	msg->msg_tx_delayed = 0;
	return 0;
}

static void post(struct lnl_msg *lm)
{
	struct lnl_ni *ni = lm->txni;
	int rc;

	spin_lock(&lnl_lock);
	rc = take_credits_locked(lm);
	spin_unlock(&lnl_lock);
	if (!rc) {
		ni_send(ni, lm);
	} else if (rc != -EAGAIN) {
		lm->retries = INT_MAX;
		lnl_finish(lm, rc);
	}
}

/*
 * To @next_hop over @ni. 0: the message is on its way and ends by itself; else
 * it is still the caller's. @as_router: the LND shall see a router there.
 */
int lnl_send(struct lnl_msg *lm, struct lnl_ni *ni, const struct lnet_nid *next_hop,
	     bool as_router)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_peer_ni *peer;
	unsigned int secs;

	peer = lnl_peer_get(ni, next_hop);
	if (!peer)
		return -ENOMEM;

	spin_lock(&lnl_lock);
	if (ni->ni.ni_state != LNET_NI_STATE_ACTIVE) {
		spin_unlock(&lnl_lock);
		return -ESHUTDOWN;
	}
	/* LNet asks the LND for its timeout right here, under its own lock */
	secs = lnl_lnd_timeout(ni);
	lm->msg.msg_deadline = ktime_add_ms(ktime_get(),
				    secs * (lnl_knob(retries) + 1) * MSEC_PER_SEC + 1000);
	lm->txni = ni;
	lm->txpeer = peer;
	lm->tx = true;
	lnl_ni_get_locked(ni);
	spin_unlock(&lnl_lock);

	msg->msg_sending = 1;
	if (!msg->msg_routing)
		msg->msg_hdr.src_nid = ni->ni.ni_nid;
	msg->msg_target.nid = *next_hop;
	msg->msg_target_is_router = as_router;
	if (as_router)
		msg->msg_target.pid = LNET_PID_LUSTRE;
	post(lm);
	return 0;
}

/* The message has left the wire: a message that waits for its credits goes next */
void lnl_return_credits(struct lnl_msg *lm)
{
	struct lnl_msg *next[2] = {};
	struct lnl_ni *ni = lm->txni;
	struct lnet_peer_ni *peer = lm->txpeer;
	int i;

	if (!lm->tx)
		return;
	spin_lock(&lnl_lock);
	if (lm->msg.msg_txcredit) {
		lm->msg.msg_txcredit = 0;
		if (++ni->tq_credits <= 0)
			next[0] = list_first_entry_or_null(&ni->tq_delayed, struct lnl_msg,
							   list);
		if (next[0])
			list_del_init(&next[0]->list);
	}
	if (lm->msg.msg_peertxcredit) {
		lm->msg.msg_peertxcredit = 0;
		if (++peer->credits <= 0)
			next[1] = list_first_entry_or_null(&peer->txq, struct lnl_msg, list);
		if (next[1])
			list_del_init(&next[1]->list);
	}
	spin_unlock(&lnl_lock);
	for (i = 0; i < ARRAY_SIZE(next); i++)
		if (next[i])
			post(next[i]);
}

static bool resendable(enum lnet_msg_hstatus hstatus)
{
	switch (hstatus) {
	case LNET_MSG_STATUS_LOCAL_INTERRUPT:
	case LNET_MSG_STATUS_LOCAL_DROPPED:
	case LNET_MSG_STATUS_LOCAL_ABORTED:
	case LNET_MSG_STATUS_LOCAL_NO_ROUTE:
	case LNET_MSG_STATUS_LOCAL_TIMEOUT:
	case LNET_MSG_STATUS_REMOTE_DROPPED:
		return true;
	default:
		return false;
	}
}

bool lnet_lite_resends(struct lnet_msg *msg, enum lnet_msg_hstatus hstatus)
{
	struct lnl_msg *lm = container_of(msg, struct lnl_msg, msg);

	return !msg->msg_routing && resendable(hstatus) &&
	       lm->retries < lnl_knob(retries) &&
	       !ktime_after(ktime_get(), msg->msg_deadline);
}
EXPORT_SYMBOL_GPL(lnet_lite_resends);

/*
 * As LNet with health on, if knob retries says so: a send that failed before it
 * can have had an effect goes out again a little later, the same object, MD and
 * all. An optimised GET, too, though its REPLY is finalized.
 */
bool lnl_try_resend(struct lnl_msg *lm, int status)
{
	if (!status || !lnet_lite_resends(&lm->msg, lm->msg.msg_health_status))
		return false;
	lm->retries++;
	/* its credits go with the work: the next message may fail in the same way, and so on */
	spin_lock(&lnl_lock);
	list_add_tail(&lm->list, &resend);
	spin_unlock(&lnl_lock);
	mod_delayed_work(system_unbound_wq, &resend_dwork,
			 msecs_to_jiffies(lnl_knob(retry_ms)));
	return true;
}

static void resend_work(struct work_struct *work)
{
	struct lnl_msg *lm;

	spin_lock(&lnl_lock);
	while ((lm = list_first_entry_or_null(&resend, struct lnl_msg, list))) {
		list_del_init(&lm->list);
		spin_unlock(&lnl_lock);
		lnl_return_credits(lm);
		if (READ_ONCE(lm->txni->ni.ni_state) == LNET_NI_STATE_ACTIVE) {
			lnl_count(resent);
			post(lm);
		} else {
			/* LNet looks for an NI again, and finds none */
			lm->retries = INT_MAX;
			lnl_finish(lm, -ESHUTDOWN);
		}
		spin_lock(&lnl_lock);
	}
	spin_unlock(&lnl_lock);
}

/* Those of an NI that stops end with -ESHUTDOWN, the others are sent early */
void lnl_resend_flush(void)
{
	mod_delayed_work(system_unbound_wq, &resend_dwork, 0);
	flush_delayed_work(&resend_dwork);
}

void lnl_send_fini(void)
{
	cancel_delayed_work_sync(&resend_dwork);
}
