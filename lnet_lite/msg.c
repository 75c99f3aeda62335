// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: messages, who owns them, and how they end.
 *
 * A message handed to the LND is the LND's until it calls lnet_finalize(), once.
 * All live messages are in a table by address, and what is freed rests in
 * quarantine for a while: so a second finalize, or one of something that never
 * was a message, is recognised without touching freed memory.
 */
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "internal.h"

#define LNL_QUARANTINE	1024
#define LNL_FINALIZERS	16

static DEFINE_HASHTABLE(msgs, 10);	/* live and in quarantine */
static LIST_HEAD(quarantine);
static unsigned int quarantined, live;
static int rx_held;
static u64 next_id;
static struct kmem_cache *msg_cache;

/* Messages whose completion waits for a thread that is already completing */
static LIST_HEAD(finalizing);
static struct task_struct *finalizers[LNL_FINALIZERS];

int lnl_msg_init(void)
{
	msg_cache = kmem_cache_create("lnet_lite_msg", sizeof(struct lnl_msg), 0, 0, NULL);
	return msg_cache ? 0 : -ENOMEM;
}

unsigned int lnl_msgs_live(void)
{
	return READ_ONCE(live);
}

unsigned int lnl_rx_held(void)
{
	return READ_ONCE(rx_held);
}

/* Messages accepted by lnet_parse() for which lnd_recv() is still due */
void lnl_rx_hold(int delta)
{
	spin_lock(&lnl_lock);
	rx_held += delta;
	WARN_ON_ONCE(rx_held < 0);
	spin_unlock(&lnl_lock);
}

static struct lnl_msg *find_locked(const struct lnet_msg *msg)
{
	struct lnl_msg *lm;

	hash_for_each_possible(msgs, lm, hash, (unsigned long)msg)
		if (&lm->msg == msg)
			return lm;
	return NULL;
}

struct lnl_msg *lnl_msg_alloc(void)
{
	struct lnl_msg *lm = kmem_cache_zalloc(msg_cache, GFP_NOFS);

	if (!lm)
		return NULL;
	INIT_LIST_HEAD(&lm->list);
	lm->owner = LNL_OWN_CORE;
	spin_lock(&lnl_lock);
	lm->id = ++next_id;
	hash_add(msgs, &lm->hash, (unsigned long)&lm->msg);
	live++;
	spin_unlock(&lnl_lock);
	return lm;
}

void lnl_msg_free(struct lnl_msg *lm)
{
	struct lnl_msg *old = NULL;

	lnl_forward_free(lm);
	spin_lock(&lnl_lock);
	if (lm->rxni)
		lnl_ni_put_locked(lm->rxni);
	if (lm->txni)
		lnl_ni_put_locked(lm->txni);
	lm->rxni = NULL;
	lm->txni = NULL;
	lm->owner = LNL_OWN_FREE;
	live--;
	list_add_tail(&lm->list, &quarantine);
	if (++quarantined > LNL_QUARANTINE) {
		old = list_first_entry(&quarantine, struct lnl_msg, list);
		list_del(&old->list);
		hash_del(&old->hash);
		quarantined--;
	}
	spin_unlock(&lnl_lock);
	if (old)
		kmem_cache_free(msg_cache, old);
}

/* Of the fragment lists that the LND can see */
static u32 frag_sum(const struct lnet_msg *msg)
{
	if (msg->msg_md)
		return lnl_kiov_sum(msg->msg_md->md_kiov, msg->msg_md->md_niov);
	return lnl_kiov_sum(msg->msg_kiov, msg->msg_niov);
}

/* From here on only lnet_finalize(), or a refusal, gives the message back */
void lnl_msg_give(struct lnl_msg *lm)
{
	lm->kiov_sum = frag_sum(&lm->msg);
	spin_lock(&lnl_lock);
	WARN_ON_ONCE(lm->owner != LNL_OWN_CORE);
	lm->owner = LNL_OWN_LND;
	spin_unlock(&lnl_lock);
}

/* The LND refused: false if it had finalized the message all the same */
bool lnl_msg_take_back(struct lnl_msg *lm, u64 id)
{
	bool mine = false;

	spin_lock(&lnl_lock);
	if (find_locked(&lm->msg) == lm && lm->id == id && lm->owner == LNL_OWN_LND) {
		lm->owner = LNL_OWN_CORE;
		mine = true;
	}
	spin_unlock(&lnl_lock);
	if (!mine)
		lnl_fault(finalize_then_error, "%p refused after it was finalized\n", lm);
	return mine;
}

void lnl_msg_attach(struct lnl_msg *lm, struct lnet_libmd *md, unsigned int offset,
		    unsigned int mlen)
{
	/* the caller's reference becomes the message's */
	lm->msg.msg_md = md;
	lm->msg.msg_offset = offset;
	lm->msg.msg_wanted = mlen;
}

void lnl_msg_payload(struct lnl_msg *lm)
{
	lm->msg.msg_niov = lm->msg.msg_md->md_niov;
	lm->msg.msg_kiov = lm->msg.msg_md->md_kiov;
}

static void detach_md(struct lnl_msg *lm, int status)
{
	struct lnet_libmd *md = lm->msg.msg_md;
	struct lnet_event *ev = &lm->msg.msg_ev;

	if (!md)
		return;
	lm->msg.msg_md = NULL;
	ev->status = status;
	ev->msg_type = lm->msg.msg_type;
	ev->md_user_ptr = md->md_user_ptr;
	if (md->md_handler)
		md->md_handler(ev);
	lnl_md_put(md);
}

/* A PUT that wants an ACK: the same message object travels back as the ACK */
static int send_ack(struct lnl_msg *lm)
{
	struct lnet_msg *msg = &lm->msg;
	struct lnet_handle_wire wmd = msg->msg_hdr.msg.put.ack_wmd;
	struct lnet_processid dst = {
		.nid = msg->msg_hdr.src_nid,
		.pid = msg->msg_hdr.src_pid,
	};
	struct lnl_ni *ni = lm->rxni;
	struct lnet_nid hop = msg->msg_from;

	msg->msg_ack = 0;
	lnl_prep_send(lm, LNET_MSG_ACK, &dst, 0, 0);
	msg->msg_hdr.msg.ack.dst_wmd = wmd;
	msg->msg_hdr.msg.ack.match_bits = (__force u64)cpu_to_le64(msg->msg_ev.match_bits);
	msg->msg_hdr.msg.ack.mlength = (__force u32)cpu_to_le32(msg->msg_ev.mlength);
	return lnl_send(lm, ni, &hop, !nid_same(&hop, &dst.nid));
}

static void complete_one(struct lnl_msg *lm)
{
	int status = lm->status;

	if (!status && lm->msg.msg_ack) {
		if (!send_ack(lm))
			return;
	} else if (!status && lm->msg.msg_routing && !lm->msg.msg_sending) {
		if (!lnl_forward_send(lm))
			return;
	}
	lnl_return_credits(lm);
	lnl_msg_free(lm);
}

/*
 * End of a message that is ours. Completing may send, sending may finalize: as
 * in LNet, a thread that is already completing, or one too many, only leaves
 * the message for the others.
 */
void lnl_finish(struct lnl_msg *lm, int status)
{
	int i, slot = -1;

	if (lm->tx && lnl_try_resend(lm, status))
		return;
	lm->status = status;
	detach_md(lm, status);

	spin_lock(&lnl_lock);
	list_add_tail(&lm->list, &finalizing);
	for (i = 0; i < LNL_FINALIZERS; i++) {
		if (finalizers[i] == current) {
			spin_unlock(&lnl_lock);
			return;
		}
		if (!finalizers[i] && slot < 0)
			slot = i;
	}
	if (slot < 0) {
		spin_unlock(&lnl_lock);
		return;
	}
	finalizers[slot] = current;
	while ((lm = list_first_entry_or_null(&finalizing, struct lnl_msg, list))) {
		list_del_init(&lm->list);
		spin_unlock(&lnl_lock);
		complete_one(lm);
		spin_lock(&lnl_lock);
	}
	finalizers[slot] = NULL;
	spin_unlock(&lnl_lock);
}

static void note_health(struct lnl_msg *lm, int rc)
{
	unsigned int hs = lm->msg.msg_health_status;

	if (hs >= LNET_MSG_STATUS_END) {
		lnl_fault(health_misuse, "status %u\n", hs);
		return;
	}
	/* LNet looks at health for what was sent, and only if it fits the status */
	if (lm->tx)
		atomic64_inc(&lnl_health[hs]);
	if (!rc != (hs == LNET_MSG_STATUS_OK))
		lnl_count(health_ignored);
}

void lnet_finalize(struct lnet_msg *msg, int rc)
{
	enum lnl_owner owner = LNL_OWN_FREE;
	long delay = lnl_knob(finalize_delay_ms);
	struct lnl_msg *lm;

	lnl_check_context(__func__);
	if (!msg)
		return;

	spin_lock(&lnl_lock);
	lm = find_locked(msg);
	if (lm) {
		owner = lm->owner;
		if (owner == LNL_OWN_LND)
			lm->owner = LNL_OWN_CORE;
	}
	spin_unlock(&lnl_lock);
	if (!lm) {
		lnl_fault(unknown_finalize, "%p is no message, status %d\n", msg, rc);
		return;
	}
	if (owner != LNL_OWN_LND) {
		lnl_fault(double_finalize, "%p, status %d\n", msg, rc);
		return;
	}

	lnl_count(finalized);
	if (rc)
		lnl_count(finalized_error);
	if (rc > 0)
		lnl_fault(bad_return, "%s with status %d\n", __func__, rc);
	note_health(lm, rc);
	if (lm->kiov_sum != frag_sum(msg)) {
		lnl_fault(kiov_modified, "%p\n", msg);
		if (msg->msg_md)
			msg->msg_md->md_flags |= LNET_MD_FLAG_SPOILED;
	}
	if (delay)
		msleep(delay);
	lnl_finish(lm, rc);
}
EXPORT_SYMBOL_GPL(lnet_finalize);

/*
 * The REPLY that an optimised GET does not send: to be made by the LND before it
 * can finalize @get_msg. NULL: no memory, not a GET that may be optimised, or one
 * that is sent again: the first REPLY has used its MD up.
 */
struct lnet_msg *lnet_create_reply_msg(struct lnet_ni *ni, struct lnet_msg *get_msg)
{
	struct lnl_msg *get = lnl_msg(get_msg), *lm;
	struct lnet_libmd *md = get_msg->msg_md;

	if (get->reply_given && get->retries) {
		lnl_count(opt_get_again);
		return NULL;
	}
	if (get_msg->msg_type != LNET_MSG_GET || get_msg->msg_target_is_router ||
	    get_msg->msg_routing || !md || get->reply || get->reply_given) {
		lnl_fault(reply_misuse, "%s for a %s%s\n", __func__,
			  get->reply_given ? "second time, " : "",
			  lnet_msgtyp2str(get_msg->msg_type));
		return NULL;
	}
	lm = lnl_msg_alloc();
	if (!lm)
		return NULL;
	get->reply_given = true;
	lm->reply = true;
	lm->msg.msg_type = LNET_MSG_GET;
	lm->msg.msg_from = get_msg->msg_target.nid;
	lm->msg.msg_initiator = get_msg->msg_target.nid;
	refcount_inc(&md->md_refcount);
	lnl_msg_attach(lm, md, 0, md->md_length);
	lm->msg.msg_ev.type = LNET_EVENT_REPLY;
	lm->msg.msg_ev.rlength = md->md_length;
	lm->msg.msg_ev.mlength = md->md_length;
	spin_lock(&lnl_lock);
	lm->rxni = lnl_ni(ni);
	lnl_ni_get_locked(lm->rxni);
	spin_unlock(&lnl_lock);
	lnl_msg_give(lm);
	lnl_count(opt_get_replies);
	return &lm->msg;
}
EXPORT_SYMBOL_GPL(lnet_create_reply_msg);

void lnet_set_reply_msg_len(struct lnet_ni *ni, struct lnet_msg *reply, unsigned int len)
{
	if (!reply || !lnl_msg(reply)->reply || reply->msg_ev.type != LNET_EVENT_REPLY) {
		lnl_fault(reply_misuse, "%s for something else\n", __func__);
		return;
	}
	/* LNet panics here: the peer claims to have written beyond the sink */
	if (len > reply->msg_ev.mlength) {
		lnl_fault(reply_len_overflow, "%u > %u\n", len, reply->msg_ev.mlength);
		return;
	}
	reply->msg_ev.mlength = len;
}
EXPORT_SYMBOL_GPL(lnet_set_reply_msg_len);

/* No rule ever matches; failures are made at the fabric, not here */
bool lnet_send_error_simulation(struct lnet_msg *msg, enum lnet_msg_hstatus *hstatus)
{
	return false;
}
EXPORT_SYMBOL_GPL(lnet_send_error_simulation);

/* Messages of @ni that the LND has and has not finalized */
unsigned int lnl_msgs_at_lnd(struct lnl_ni *ni)
{
	struct lnl_msg *lm;
	unsigned int n = 0;
	int bkt;

	spin_lock(&lnl_lock);
	hash_for_each(msgs, bkt, lm, hash)
		if (lm->owner == LNL_OWN_LND && (lm->txni == ni || lm->rxni == ni))
			n++;
	spin_unlock(&lnl_lock);
	return n;
}

int lnl_msgs_print(char *buf, size_t size)
{
	static const char * const owners[] = { "core", "lnd" };
	struct lnl_msg *lm;
	int bkt, n = 0;

	spin_lock(&lnl_lock);
	hash_for_each(msgs, bkt, lm, hash) {
		if (lm->owner == LNL_OWN_FREE)
			continue;
		n += scnprintf(buf + n, size - n,
			       "msg%llu=%s owner=%s %s%s peer=%s len=%u wanted=%u%s\n",
			       lm->id, lnet_msgtyp2str(lm->msg.msg_type), owners[lm->owner],
			       lm->tx ? "tx" : "rx", lm->reply ? " opt-reply" : "",
			       libcfs_nidstr(lm->tx ? &lm->msg.msg_target.nid :
						      &lm->msg.msg_from),
			       lm->msg.msg_len, lm->msg.msg_wanted,
			       lm->msg.msg_tx_delayed ? " queued" : "");
	}
	n += scnprintf(buf + n, size - n, "outstanding=%u\n", live);
	spin_unlock(&lnl_lock);
	return n;
}

void lnl_msg_fini(void)
{
	struct hlist_node *tmp;
	struct lnl_msg *lm;
	int bkt;

	if (live)
		lnl_fault(leaked_messages, "%u messages were never finalized\n", live);
	hash_for_each_safe(msgs, bkt, tmp, lm, hash) {
		hash_del(&lm->hash);
		kmem_cache_free(msg_cache, lm);
	}
	kmem_cache_destroy(msg_cache);
}
