// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: the passive side. Every node serves three portals:
 *
 *   LNET_RESERVED_PORTAL  GET: the list of its NIDs, as LNet's ping
 *   LNL_PORTAL_TRAFFIC    PUT, GET: memory is made to measure; the match bits
 *                         say everything about it
 *   LNL_PORTAL_REPORT     GET: what became of the asker's PUTs
 */
#include <linux/bitfield.h>
#include <linux/highmem.h>
#include <linux/slab.h>

#include "internal.h"

#define LNL_PING_NNIS	16

struct lnl_target {
	struct lnl_buf		*buf;
	struct lnet_peer_ni	*peer;
	u64			key;
	u32			off;
	enum lnet_lite_verify	verify;
};

static void target_release(struct lnet_libmd *md)
{
	struct lnl_target *t = md->md_user_ptr;

	lnl_buf_put(t->buf);
	kfree(t);
}

/* Does the sink hold what the source sent? Runs before the ACK goes out */
static void put_event(struct lnet_event *ev)
{
	struct lnl_target *t = ev->md_user_ptr;
	int rc = 0;

	if (ev->status)
		return;
	lnl_count(target_puts);
	if (t->verify != LNET_LITE_VERIFY_OFF)
		rc = lnl_buf_check(t->buf, t->key, t->off, ev->mlength, 0,
				   t->verify == LNET_LITE_VERIFY_FULL);
	if (rc) {
		pr_err_ratelimited("lnet_lite: PUT of %s, key %#llx, %u bytes at %u: %d\n",
				   libcfs_nidstr(&ev->initiator), t->key, ev->mlength, t->off,
				   rc);
		lnl_count(target_verify_errors);
		atomic64_inc(&t->peer->verify_errors);
	} else if (t->verify != LNET_LITE_VERIFY_OFF) {
		lnl_add(target_verified_bytes, ev->mlength);
		atomic64_add(ev->mlength, &t->peer->verified_bytes);
	}
	atomic64_inc(&t->peer->puts);
}

static void get_event(struct lnet_event *ev)
{
	if (!ev->status)
		lnl_count(target_gets);
}

/* Memory for one message, attached to it */
static int target_attach(struct lnl_msg *lm, struct lnl_buf *buf, u64 key, u32 off, u32 mlen,
			 enum lnet_lite_verify verify, lnet_handler_t handler)
{
	struct lnl_target *t = kmalloc_obj(*t, GFP_NOFS);

	if (!t)
		return -ENOMEM;
	*t = (struct lnl_target) {
		.buf = buf,
		.peer = lm->rxpeer,
		.key = key,
		.off = off,
		.verify = verify,
	};
	buf->md->md_handler = handler;
	buf->md->md_user_ptr = t;
	buf->md->md_options = LNET_MD_OP_PUT | LNET_MD_OP_GET | LNET_MD_MANAGE_REMOTE;
	lnl_md_hold(buf->md, target_release);
	lnl_msg_attach(lm, buf->md, off, mlen);
	return 0;
}

static struct lnl_buf *traffic_buf(u64 mb, u32 off)
{
	u32 len = FIELD_GET(LNL_MB_LEN, mb);
	u32 shape = FIELD_GET(LNL_MB_SHAPE, mb);
	enum lnet_lite_memory memory = mb & LNL_MB_MIXED ? LNET_LITE_MIXED :
				       mb & LNL_MB_GPU ? LNET_LITE_GPU : LNET_LITE_HOST;

	if (!(mb & LNL_MB_MAGIC) || (mb & LNL_MB_NOMATCH) || shape >= LNET_LITE_NSHAPES ||
	    len > LNL_MAX_LEN || off > LNL_MAX_LEN - len)
		return NULL;
	return lnl_buf_get(memory, shape, off + len);
}

/* @may_delay: the first look; the knobs may say that the match comes later */
enum lnl_match lnl_target_put(struct lnl_msg *lm, bool may_delay)
{
	const struct lnet_put *put = &lm->msg.msg_hdr.msg.put;
	u64 mb = put->match_bits;
	u32 room = FIELD_GET(LNL_MB_LEN, mb), off = put->offset;
	enum lnet_lite_verify verify = FIELD_GET(LNL_MB_VERIFY, mb);
	u32 mlen = min(lm->msg.msg_len, room);
	struct lnl_buf *buf;

	if (put->ptl_index != LNL_PORTAL_TRAFFIC ||
	    (mlen < lm->msg.msg_len && !(mb & LNL_MB_TRUNC)))
		return LNL_MATCH_DROP;
	if (may_delay && !(mb & LNL_MB_NOMATCH) && (lnl_knob(lazy) || lnl_knob(recv_delay_ms)))
		return LNL_MATCH_NONE;
	buf = traffic_buf(mb, off);
	if (IS_ERR_OR_NULL(buf))
		return LNL_MATCH_DROP;
	if (verify == LNET_LITE_VERIFY_FULL)
		lnl_buf_poison(buf);
	if (target_attach(lm, buf, put->hdr_data, off, mlen, verify, put_event)) {
		lnl_buf_put(buf);
		return LNL_MATCH_DROP;
	}
	return LNL_MATCH_OK;
}

static void write_page(struct lnl_buf *buf, const void *data, u32 len)
{
	memcpy_to_page(buf->md->md_kiov[0].bv_page, buf->md->md_kiov[0].bv_offset, data, len);
}

static struct lnl_buf *ping_buf(u32 *len)
{
	struct lnet_ping_info *info;
	struct lnl_buf *buf;

	info = kzalloc(struct_size(info, pi_ni, LNL_PING_NNIS), GFP_NOFS);
	if (!info)
		return NULL;
	*len = lnl_ping_fill(info, LNL_PING_NNIS);
	buf = lnl_buf_get(LNET_LITE_HOST, LNET_LITE_ALIGNED, *len);
	if (!IS_ERR(buf))
		write_page(buf, info, *len);
	kfree(info);
	return buf;
}

static struct lnl_buf *report_buf(struct lnet_peer_ni *peer, u32 *len)
{
	struct lnl_report r = {
		.puts = cpu_to_le64(atomic64_read(&peer->puts)),
		.verified_bytes = cpu_to_le64(atomic64_read(&peer->verified_bytes)),
		.verify_errors = cpu_to_le64(atomic64_read(&peer->verify_errors)),
	};
	struct lnl_buf *buf = lnl_buf_get(LNET_LITE_HOST, LNET_LITE_ALIGNED, sizeof(r));

	*len = sizeof(r);
	if (!IS_ERR(buf))
		write_page(buf, &r, sizeof(r));
	return buf;
}

enum lnl_match lnl_target_get(struct lnl_msg *lm)
{
	const struct lnet_get *get = &lm->msg.msg_hdr.msg.get;
	u64 mb = get->match_bits, key = FIELD_GET(LNL_MB_SEQ, mb);
	u32 off = 0, have, mlen;
	bool fill = false, trunc = true;
	struct lnl_buf *buf;

	switch (get->ptl_index) {
	case LNET_RESERVED_PORTAL:
		if (mb != LNET_PROTO_PING_MATCHBITS)
			return LNL_MATCH_DROP;
		buf = ping_buf(&have);
		break;
	case LNL_PORTAL_REPORT:
		buf = report_buf(lm->rxpeer, &have);
		break;
	case LNL_PORTAL_TRAFFIC:
		off = get->src_offset;
		have = FIELD_GET(LNL_MB_LEN, mb);
		trunc = mb & LNL_MB_TRUNC;
		fill = FIELD_GET(LNL_MB_VERIFY, mb) != LNET_LITE_VERIFY_OFF;
		buf = traffic_buf(mb, off);
		break;
	default:
		return LNL_MATCH_DROP;
	}
	if (IS_ERR_OR_NULL(buf))
		return LNL_MATCH_DROP;

	/* LNet: a GET of more than there is needs an MD that may truncate */
	mlen = min3(get->sink_length, have, LNET_MTU);
	if ((get->sink_length > have && !trunc) ||
	    target_attach(lm, buf, key, off, mlen, 0, get_event)) {
		lnl_buf_put(buf);
		return LNL_MATCH_DROP;
	}
	if (fill)
		lnl_buf_fill(buf, key, off, mlen, 0);
	return LNL_MATCH_OK;
}
