// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: what comes in.
 */
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/workqueue.h>

#include "internal.h"

static atomic_t nth_parse_err, nth_match_fail;

/* PUTs without a match yet, in order of arrival */
static LIST_HEAD(delayed);
static unsigned int ndelayed;
static void delayed_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(delayed_dwork, delayed_work_fn);

unsigned int lnl_delayed_count(void)
{
	return READ_ONCE(ndelayed);
}

/* The one lnd_recv() that every accepted parse is owed; @lm NULL discards */
void lnl_ni_recv(struct lnl_ni *ni, void *private, struct lnl_msg *lm, int delayed,
		 unsigned int offset, unsigned int mlen, unsigned int rlen)
{
	struct bio_vec *kiov = NULL;
	unsigned int niov = 0;
	struct iov_iter to;
	u64 id = 0;
	int rc;

	if (lm) {
		lm->msg.msg_receiving = 0;
		lm->msg.msg_health_status = LNET_MSG_STATUS_OK;
		if (mlen) {
			niov = lm->msg.msg_niov;
			kiov = lm->msg.msg_kiov;
		}
		id = lm->id;
		lnl_msg_give(lm);
	} else {
		lnl_count(discarded);
	}
	iov_iter_bvec(&to, ITER_DEST, kiov, niov, mlen ? mlen + offset : 0);
	if (mlen)
		iov_iter_advance(&to, offset);

	rc = ni->net.net_lnd->lnd_recv(&ni->ni, private, lm ? &lm->msg : NULL, delayed, &to,
				       rlen);
	lnl_rx_hold(-1);
	if (!rc)
		return;
	if (rc > 0)
		lnl_fault(bad_return, "lnd_recv returned %d\n", rc);
	lnl_count(recv_refused);
	pr_info_ratelimited("lnet_lite: lnd_recv of %u of %u bytes at %u refused: %d\n", mlen,
			    rlen, offset, rc);
	if (rc < 0 && lm && lnl_msg_take_back(lm, id))
		lnl_finish(lm, rc);
}

static void recv_put(struct lnl_ni *ni, struct lnl_msg *lm)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_put *put = &msg->msg_hdr.msg.put;

	if (msg->msg_wanted)
		lnl_msg_payload(lm);
	msg->msg_ev.type = LNET_EVENT_PUT;
	msg->msg_ev.rlength = msg->msg_len;
	msg->msg_ev.mlength = msg->msg_wanted;
	msg->msg_ev.offset = msg->msg_offset;
	msg->msg_ev.match_bits = put->match_bits;
	msg->msg_ev.hdr_data = put->hdr_data;
	msg->msg_ev.initiator = msg->msg_hdr.src_nid;
	msg->msg_ack = put->ack_wmd.wh_interface_cookie != LNET_WIRE_HANDLE_COOKIE_NONE ||
		       put->ack_wmd.wh_object_cookie != LNET_WIRE_HANDLE_COOKIE_NONE;
	if (msg->msg_wanted < msg->msg_len)
		lnl_count(truncated);
	lnl_ni_recv(ni, msg->msg_private, lm, msg->msg_rx_delayed, msg->msg_offset,
		    msg->msg_wanted, msg->msg_len);
}

static int delay_put(struct lnl_ni *ni, struct lnl_msg *lm)
{
	const struct lnet_lnd *lnd = ni->net.net_lnd;
	struct lnet_msg *msg = &lm->msg;
	long ms = lnl_knob(recv_delay_ms);
	int rc;

	if (lnd->lnd_eager_recv) {
		lnl_count(eager_recvs);
		rc = lnd->lnd_eager_recv(&ni->ni, msg->msg_private, msg, &msg->msg_private);
		if (rc)
			return rc < 0 ? rc : -EINVAL;
	}
	lnl_count(delayed_recvs);
	msg->msg_rx_delayed = 1;
	lm->due = ktime_add_ms(ktime_get(), ms);
	spin_lock(&lnl_lock);
	list_add_tail(&lm->list, &delayed);
	ndelayed++;
	spin_unlock(&lnl_lock);
	if (!lnl_knob(lazy))
		queue_delayed_work(system_unbound_wq, &delayed_dwork, msecs_to_jiffies(ms));
	return 0;
}

static int parse_put(struct lnl_ni *ni, struct lnl_msg *lm)
{
	struct lnet_put *put = &lm->msg.msg_hdr.msg.put;
	int rc;

	lnl_count(recv_put);
	put->match_bits = le64_to_cpu((__force __le64)put->match_bits);
	put->hdr_data = le64_to_cpu((__force __le64)put->hdr_data);
	put->ptl_index = le32_to_cpu((__force __le32)put->ptl_index);
	put->offset = le32_to_cpu((__force __le32)put->offset);

	switch (lnl_target_put(lm, true)) {
	case LNL_MATCH_OK:
		recv_put(ni, lm);
		return 0;
	case LNL_MATCH_NONE:
		/* no later event would release the message */
		if (READ_ONCE(ni->ni.ni_state) != LNET_NI_STATE_ACTIVE)
			return -ENOENT;
		rc = delay_put(ni, lm);
		if (!rc)
			return 0;
		/* eager_recv failed and has let go: lnd_recv must not follow */
		lm->rx_held = false;
		return rc;
	default:
		return -ENOENT;
	}
}

static int parse_get(struct lnl_ni *ni, struct lnl_msg *lm, bool rdma)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_get *get = &msg->msg_hdr.msg.get;
	struct lnet_nid hop = msg->msg_from;
	struct lnet_handle_wire wmd = get->return_wmd;
	struct lnet_processid src = {
		.nid = msg->msg_hdr.src_nid,
		.pid = msg->msg_hdr.src_pid,
	};

	lnl_count(recv_get);
	get->match_bits = le64_to_cpu((__force __le64)get->match_bits);
	get->ptl_index = le32_to_cpu((__force __le32)get->ptl_index);
	get->src_offset = le32_to_cpu((__force __le32)get->src_offset);
	get->sink_length = le32_to_cpu((__force __le32)get->sink_length);

	if (lnl_target_get(lm) != LNL_MATCH_OK)
		return -ENOENT;

	msg->msg_ev.type = LNET_EVENT_GET;
	msg->msg_ev.rlength = get->sink_length;
	msg->msg_ev.mlength = msg->msg_wanted;
	msg->msg_ev.offset = msg->msg_offset;
	msg->msg_ev.match_bits = get->match_bits;
	msg->msg_ev.initiator = src.nid;
	lnl_prep_send(lm, LNET_MSG_REPLY, &src, msg->msg_offset, msg->msg_wanted);
	msg->msg_hdr.msg.reply.dst_wmd = wmd;

	if (rdma) {
		/* the LND moves the data and completes the REPLY from its recv */
		lnl_ni_recv(ni, msg->msg_private, lm, 0, msg->msg_offset, msg->msg_len,
			    msg->msg_len);
		return 0;
	}
	lnl_ni_recv(ni, msg->msg_private, NULL, 0, 0, 0, 0);
	msg->msg_receiving = 0;
	if (lnl_send(lm, ni, &hop, !nid_same(&hop, &src.nid)))
		lnl_finish(lm, -ESHUTDOWN);
	return 0;
}

static int parse_reply(struct lnl_ni *ni, struct lnl_msg *lm)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_libmd *md;
	unsigned int mlen;

	lnl_count(recv_reply);
	md = lnl_md_lookup(&msg->msg_hdr.msg.reply.dst_wmd);
	if (!md)
		return -ENOENT;
	mlen = min(msg->msg_len, md->md_length);
	if (!(md->md_options & LNET_MD_OP_GET) ||
	    (mlen < msg->msg_len && !(md->md_options & LNET_MD_TRUNCATE))) {
		lnl_md_put(md);
		return -ENOENT;
	}
	lnl_msg_attach(lm, md, 0, mlen);
	if (mlen)
		lnl_msg_payload(lm);
	msg->msg_ev.type = LNET_EVENT_REPLY;
	msg->msg_ev.rlength = msg->msg_len;
	msg->msg_ev.mlength = mlen;
	lnl_ni_recv(ni, msg->msg_private, lm, 0, 0, mlen, msg->msg_len);
	return 0;
}

static int parse_ack(struct lnl_ni *ni, struct lnl_msg *lm)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_ack *ack = &msg->msg_hdr.msg.ack;
	struct lnet_libmd *md;

	lnl_count(recv_ack);
	md = lnl_md_lookup(&ack->dst_wmd);
	if (!md)
		return -ENOENT;
	if (!(md->md_options & LNET_MD_OP_PUT)) {
		lnl_md_put(md);
		return -ENOENT;
	}
	lnl_msg_attach(lm, md, 0, 0);
	msg->msg_ev.type = LNET_EVENT_ACK;
	msg->msg_ev.mlength = le32_to_cpu((__force __le32)ack->mlength);
	msg->msg_ev.match_bits = le64_to_cpu((__force __le64)ack->match_bits);
	lnl_ni_recv(ni, msg->msg_private, lm, 0, 0, 0, msg->msg_len);
	return 0;
}

static int refuse(const char *why, const struct lnet_hdr *hdr, const struct lnet_nid *from)
{
	lnl_count(parse_refused);
	pr_info_ratelimited("lnet_lite: %s: type %u, payload %u, %s -> %s, from %s\n", why,
			    hdr->type, hdr->payload_length, libcfs_nidstr(&hdr->src_nid),
			    libcfs_nidstr(&hdr->dest_nid), libcfs_nidstr(from));
	return -EPROTO;
}

/* LNet refuses the message: the LND keeps its buffer and closes the connection */
static int validate(struct lnl_ni *ni, const struct lnet_hdr *hdr,
		    const struct lnet_nid *from, bool for_me, bool rdma)
{
	bool local = false;

	switch (hdr->type) {
	case LNET_MSG_ACK:
	case LNET_MSG_GET:
		if (hdr->payload_length)
			return refuse("payload where there can be none", hdr, from);
		break;
	case LNET_MSG_PUT:
	case LNET_MSG_REPLY:
		if (hdr->payload_length > LNET_MTU)
			return refuse("payload too long", hdr, from);
		break;
	default:
		return refuse("unknown type", hdr, from);
	}
	if (for_me)
		return 0;

	if (LNET_NID_NET(&hdr->dest_nid) == ni->net.net_id)
		return refuse("should have been sent direct", hdr, from);
	/* routing=2 lets one kernel play router and destination */
	if (lnl_knob(routing) != 2) {
		spin_lock(&lnl_lock);
		local = lnl_ni_find_locked(&hdr->dest_nid);
		spin_unlock(&lnl_lock);
	}
	if (local)
		return refuse("another of my NIDs", hdr, from);
	if (rdma && hdr->type == LNET_MSG_GET)
		return refuse("optimised GET for another node", hdr, from);
	return 0;
}

static struct lnl_msg *rx_msg(struct lnl_ni *ni, const struct lnet_hdr *hdr,
			      const struct lnet_nid *from, void *private,
			      struct lnet_peer_ni *peer, bool for_me)
{
	struct lnl_msg *lm = lnl_msg_alloc();
	struct lnet_msg *msg;

	if (!lm)
		return NULL;
	msg = &lm->msg;
	msg->msg_type = hdr->type;
	msg->msg_private = private;
	msg->msg_receiving = 1;
	msg->msg_len = hdr->payload_length;
	msg->msg_wanted = hdr->payload_length;
	msg->msg_hdr = *hdr;
	msg->msg_from = *from;
	msg->msg_initiator = hdr->src_nid;
	if (!for_me) {
		msg->msg_target.nid = hdr->dest_nid;
		msg->msg_target.pid = hdr->dest_pid;
		msg->msg_routing = 1;
	}
	lm->rxpeer = peer;
	lm->rx_held = true;
	spin_lock(&lnl_lock);
	lm->rxni = ni;
	lnl_ni_get_locked(ni);
	peer->down = false;
	peer->last_alive = ktime_get_seconds();
	spin_unlock(&lnl_lock);
	return lm;
}

static int parse_one(struct lnl_ni *ni, struct lnl_msg *lm, bool rdma)
{
	if (lm->msg.msg_routing)
		return lnl_forward_recv(ni, lm);
	switch (lm->msg.msg_type) {
	case LNET_MSG_PUT:
		return parse_put(ni, lm);
	case LNET_MSG_GET:
		return parse_get(ni, lm, rdma);
	case LNET_MSG_REPLY:
		return parse_reply(ni, lm);
	default:
		return parse_ack(ni, lm);
	}
}

int lnet_parse(struct lnet_ni *lni, struct lnet_hdr *hdr, struct lnet_nid *from_nid,
	       void *private, int rdma_req)
{
	bool for_me, known, held = true;
	struct lnl_ni *ni = lnl_ni(lni);
	unsigned int len = hdr->payload_length;
	struct lnet_peer_ni *peer;
	struct lnl_msg *lm;
	long slow;
	int rc;

	lnl_check_context(__func__);

	/* a reference keeps the NI while we are at it */
	spin_lock(&lnl_lock);
	known = lnl_ni_known_locked(lni);
	if (known)
		lnl_ni_get_locked(ni);
	spin_unlock(&lnl_lock);
	if (!known) {
		lnl_fault(parse_unknown_ni, "%s for an NI that is gone\n", __func__);
		return -ESHUTDOWN;
	}

	slow = lnl_knob(slow_ms);
	if (slow && (LNET_NID_IS_ANY(&lnl_slow_peer) || nid_same(&lnl_slow_peer, from_nid)))
		msleep(slow);
	if (lnl_every(LNL_K_parse_err_every, &nth_parse_err)) {
		lnl_count(parse_refused);
		rc = lnl_knob(parse_err);
		goto out;
	}
	for_me = nid_same(&ni->ni.ni_nid, &hdr->dest_nid);
	rc = validate(ni, hdr, from_nid, for_me, rdma_req);
	if (rc)
		goto out;

	/* accepted: from here on lnd_recv() follows, whatever happens */
	lnl_count(parsed);
	lnl_rx_hold(1);
	if ((!for_me && !lnl_knob(routing)) ||
	    lnl_every(LNL_K_match_fail_every, &nth_match_fail))
		goto drop;
	peer = lnl_peer_get(ni, from_nid);
	lm = peer ? rx_msg(ni, hdr, from_nid, private, peer, for_me) : NULL;
	if (!lm)
		goto drop;
	rc = parse_one(ni, lm, rdma_req);
	if (!rc)
		goto out;
	held = lm->rx_held;
	lnl_finish(lm, rc);
	rc = 0;
	if (!held) {
		lnl_rx_hold(-1);
		goto out;
	}
drop:
	lnl_count(parse_dropped);
	lnl_ni_recv(ni, private, NULL, 0, 0, 0, len);
	rc = 0;
out:
	lnl_ni_put(ni);
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_parse);

static void drop_delayed(struct lnl_msg *lm)
{
	struct lnl_ni *ni = lm->rxni;
	void *private = lm->msg.msg_private;
	unsigned int len = lm->msg.msg_len;

	lnl_count(parse_dropped);
	lnl_ni_recv(ni, private, NULL, 0, 0, 0, len);
	lnl_finish(lm, -ENOENT);
}

static void run_one(struct lnl_msg *lm, bool drop)
{
	if (!drop && lnl_target_put(lm, false) == LNL_MATCH_OK)
		recv_put(lm->rxni, lm);
	else
		drop_delayed(lm);
}

/* All that is due; of an NI that stops, everything, and it is dropped */
static void run_delayed(struct lnl_ni *stopping)
{
	bool lazy = lnl_knob(lazy);
	struct lnl_msg *lm, *next;
	ktime_t now = ktime_get();
	LIST_HEAD(run);

	spin_lock(&lnl_lock);
	list_for_each_entry_safe(lm, next, &delayed, list) {
		if (stopping ? lm->rxni != stopping : lazy || ktime_after(lm->due, now))
			continue;
		list_move_tail(&lm->list, &run);
		ndelayed--;
	}
	lazy = !lazy && !stopping && ndelayed;
	spin_unlock(&lnl_lock);

	list_for_each_entry_safe(lm, next, &run, list) {
		list_del_init(&lm->list);
		run_one(lm, stopping);
	}
	if (lazy)
		queue_delayed_work(system_unbound_wq, &delayed_dwork, 1);
}

static void delayed_work_fn(struct work_struct *work)
{
	run_delayed(NULL);
}

/* A knob moved (@ni NULL), or @ni stops */
void lnl_delayed_run(struct lnl_ni *ni, bool all)
{
	if (all)
		run_delayed(ni);
	else
		mod_delayed_work(system_unbound_wq, &delayed_dwork, 0);
}

void lnl_parse_fini(void)
{
	cancel_delayed_work_sync(&delayed_dwork);
}
