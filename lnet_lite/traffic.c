// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: runs of many operations, their verification and their figures.
 */
#include <linux/bitfield.h>
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "internal.h"

#define LNL_MAX_CONC	1024
#define HIST_SUB	32
#define HIST_SIZE	(32 * HIST_SUB)
/* where in a big MD the transfer lies */
#define LNL_BIGMD_OFFSET	(300 * 4096 + 13)
#define LNL_BIGMD_MAX		(64 * 1024)

struct lnl_run {
	struct lnet_lite_traffic t;
	struct lnl_ni		*ni;
	struct lnet_nid		hop;
	u32			base;		/* key of the first operation */
	u32			expect;		/* bytes that an operation moves */
	unsigned int		timeout;
	atomic_t		next, slots;
	atomic_t		done, errors, timeouts, stuck, verify_errors, first_error;
	atomic64_t		bytes, verified, lat_sum, lat_max;
	atomic_t		*hist;
	bool			stop;
	unsigned long		until;		/* jiffies, with t.seconds */
	struct completion	over;
};

struct lnl_slot {
	struct work_struct	work;
	struct lnl_run		*run;
};

/* Microseconds to bucket: exact below 32, then 32 buckets per power of two */
static unsigned int hist_index(u64 us)
{
	unsigned int shift;

	if (us < HIST_SUB)
		return us;
	shift = fls64(us) - 6;
	return min_t(unsigned int, (shift + 1) * HIST_SUB + (us >> shift) - HIST_SUB,
		     HIST_SIZE - 1);
}

static u64 hist_value(unsigned int i)
{
	unsigned int shift;

	if (i < HIST_SUB)
		return i;
	shift = i / HIST_SUB - 1;
	return (u64)(i % HIST_SUB + HIST_SUB) << shift;
}

static u64 percentile(const struct lnl_run *run, u32 total, unsigned int pct)
{
	u64 seen = 0, want = max_t(u64, div_u64((u64)total * pct + 99, 100), 1);
	unsigned int i;

	if (!total)
		return 0;
	for (i = 0; i < HIST_SIZE; i++) {
		seen += atomic_read(&run->hist[i]);
		if (seen >= want)
			return hist_value(i);
	}
	return hist_value(HIST_SIZE - 1);
}

static void note_latency(struct lnl_run *run, u64 nsec)
{
	u64 us = div_u64(nsec, 1000), old = atomic64_read(&run->lat_max);

	atomic64_add(us, &run->lat_sum);
	atomic_inc(&run->hist[hist_index(us)]);
	while (us > old && !atomic64_try_cmpxchg(&run->lat_max, (s64 *)&old, us))
		;
}

static void note_error(struct lnl_run *run, int rc)
{
	atomic_inc(&run->errors);
	atomic_cmpxchg(&run->first_error, 0, rc);
}

static u64 match_bits(const struct lnet_lite_traffic *t, u32 seq, u32 len)
{
	return LNL_MB_MAGIC | FIELD_PREP(LNL_MB_SEQ, seq) | FIELD_PREP(LNL_MB_SHAPE, t->tshape) |
	       FIELD_PREP(LNL_MB_LEN, len) | (t->no_trunc ? 0 : LNL_MB_TRUNC) |
	       (t->tmemory == LNET_LITE_GPU ? LNL_MB_GPU : 0) |
	       (t->tmemory == LNET_LITE_MIXED ? LNL_MB_MIXED : 0) |
	       (t->nomatch ? LNL_MB_NOMATCH : 0) | FIELD_PREP(LNL_MB_VERIFY, t->verify);
}

/* The @n-th address from @nid on */
static struct lnet_nid nid_at(struct lnet_nid nid, u32 n)
{
	nid.nid_addr[0] = cpu_to_be32(be32_to_cpu(nid.nid_addr[0]) + n);
	return nid;
}

/* One operation in *@buf, which is left alone for good if the LND keeps it */
static void one_op(struct lnl_run *run, u32 seq, bool get, struct lnl_buf **buf)
{
	const struct lnet_lite_traffic *t = &run->t;
	u32 off = !get && t->shape == LNET_LITE_BIGMD ? LNL_BIGMD_OFFSET : 0;
	bool ack = t->op != LNET_LITE_PUT && !get;
	struct lnet_nid to = nid_at(t->to, seq % t->peers);
	struct lnl_op_args a = {
		.ni = run->ni,
		.target = { .nid = to, .pid = LNET_PID_LUSTRE },
		.hop = LNET_NID_IS_ANY(&t->via) ? to : run->hop,
		.match_bits = match_bits(t, seq, get ? t->size : t->sink),
		.hdr_data = seq,
		.portal = LNL_PORTAL_TRAFFIC,
		.offset = off,
		.remote_offset = t->toff,
		.len = get ? t->sink : t->size,
		.get = get,
		.ack = ack,
		.route = t->route,
		.timeout = run->timeout,
	};
	struct lnl_op_result res;
	int rc;

	if (!*buf)
		*buf = lnl_buf_get(t->memory, t->shape, off + a.len);
	if (IS_ERR(*buf)) {
		note_error(run, PTR_ERR(*buf));
		*buf = NULL;
		return;
	}
	a.buf = *buf;
	if (get && t->verify == LNET_LITE_VERIFY_FULL)
		lnl_buf_poison(*buf);
	else if (!get && t->verify != LNET_LITE_VERIFY_OFF)
		lnl_buf_fill(*buf, seq, off, t->size, 0);

	lnl_op_run(&a, &res);
	rc = res.status;
	if (res.in_vain)
		atomic_inc(&run->timeouts);
	if (res.stuck) {
		atomic_inc(&run->stuck);
		*buf = NULL;
	}
	if (!rc && res.mlength != (ack || get ? run->expect : t->size))
		rc = -EMSGSIZE;
	if (!rc && get && *buf && t->verify != LNET_LITE_VERIFY_OFF) {
		rc = lnl_buf_check(*buf, seq, 0, res.mlength, 0,
				   t->verify == LNET_LITE_VERIFY_FULL);
		if (rc) {
			pr_err_ratelimited("lnet_lite: GET from %s, key %#x, %u bytes: %d\n",
					   libcfs_nidstr(&to), seq, res.mlength, rc);
			lnl_count(verify_errors);
			atomic_inc(&run->verify_errors);
		} else {
			lnl_add(verified_bytes, res.mlength);
			atomic64_add(res.mlength, &run->verified);
		}
	}
	if (*buf && ((*buf)->md->md_flags & LNET_MD_FLAG_SPOILED)) {
		lnl_buf_put(*buf);
		*buf = NULL;
	}
	if (rc) {
		note_error(run, rc);
		return;
	}
	atomic_inc(&run->done);
	atomic64_add(res.mlength, &run->bytes);
	note_latency(run, res.nsec);
}

static void slot_work(struct work_struct *work)
{
	struct lnl_slot *slot = container_of(work, struct lnl_slot, work);
	struct lnl_run *run = slot->run;
	struct lnl_buf *buf[2] = {};	/* for PUTs, for GETs */
	u32 i;

	while (!READ_ONCE(run->stop) &&
	       READ_ONCE(run->ni->ni.ni_state) == LNET_NI_STATE_ACTIVE &&
	       !(run->t.seconds && time_after(jiffies, run->until)) &&
	       (i = atomic_inc_return(&run->next) - 1) < run->t.count) {
		bool get = run->t.op == LNET_LITE_GET || (run->t.op == LNET_LITE_MIX && i % 2);

		one_op(run, run->base + i, get, &buf[get]);
		if (run->t.pause_ms)
			msleep(run->t.pause_ms);
		cond_resched();
	}
	for (i = 0; i < ARRAY_SIZE(buf); i++)
		if (buf[i])
			lnl_buf_put(buf[i]);
	if (atomic_dec_and_test(&run->slots))
		complete(&run->over);
}

/* A GET of a few bytes from a service portal; number of bytes or -errno */
static int small_get(struct lnl_ni *ni, const struct lnet_nid *hop, const struct lnet_nid *to,
		     u32 portal, u64 mb, unsigned int timeout, void *data, u32 len, u64 *nsec)
{
	struct lnl_buf *buf = lnl_buf_get(LNET_LITE_HOST, LNET_LITE_ALIGNED, len);
	struct lnl_op_args a = {
		.ni = ni,
		.target = { .nid = *to, .pid = LNET_PID_LUSTRE },
		.hop = *hop,
		.buf = buf,
		.match_bits = mb,
		.portal = portal,
		.len = len,
		.get = true,
		.timeout = timeout,
	};
	struct lnl_op_result res;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	lnl_op_run(&a, &res);
	if (res.stuck)
		return -EBUSY;
	if (!res.status)
		memcpy_from_page(data, buf->md->md_kiov[0].bv_page, 0, res.mlength);
	lnl_buf_put(buf);
	if (nsec)
		*nsec = res.nsec;
	return res.status ? res.status : res.mlength;
}

/* PUTs of this node that the target has counted */
static int get_report(struct lnl_run *run, struct lnl_report *r)
{
	int rc = -EIO, try;

	for (try = 0; try < 3; try++) {
		rc = small_get(run->ni, &run->hop, &run->t.to, LNL_PORTAL_REPORT, 0,
			       run->timeout, r, sizeof(*r), NULL);
		if (rc == sizeof(*r))
			return 0;
	}
	return rc < 0 ? rc : -EPROTO;
}

static void compare_reports(struct lnl_run *run, const struct lnl_report *before,
			    struct lnet_lite_result *r)
{
	unsigned long end = jiffies + 5 * HZ;
	struct lnl_report after;
	u32 known = 0;

	for (;;) {
		if (get_report(run, &after))
			return;
		r->peer_puts = le64_to_cpu(after.puts) - le64_to_cpu(before->puts);
		r->peer_verified_bytes = le64_to_cpu(after.verified_bytes) -
					 le64_to_cpu(before->verified_bytes);
		r->peer_verify_errors = le64_to_cpu(after.verify_errors) -
					le64_to_cpu(before->verify_errors);
		if (r->peer_puts != known)
			end = jiffies + 5 * HZ;
		known = r->peer_puts;
		/* without ACKs the last ones may still be under way, also after a stop */
		if (run->t.op != LNET_LITE_PUT || r->peer_puts >= r->done ||
		    time_after(jiffies, end))
			return;
		msleep(20);
	}
}

static int run_check(struct lnet_lite_traffic *t)
{
	if (t->sink == U32_MAX)
		t->sink = t->size;
	if (t->shape >= LNET_LITE_NSHAPES || t->tshape >= LNET_LITE_NSHAPES ||
	    t->memory >= LNET_LITE_NMEMORIES || t->tmemory >= LNET_LITE_NMEMORIES ||
	    t->op > LNET_LITE_MIX || t->verify > LNET_LITE_VERIFY_FULL)
		return -EINVAL;
	if (!t->count || !t->conc || !t->peers || t->conc > LNL_MAX_CONC || t->size > LNET_MTU ||
	    t->sink > LNET_MTU || t->toff > LNL_MAX_LEN - max(t->size, t->sink) ||
	    LNET_NID_IS_ANY(&t->to))
		return -EINVAL;
	/* a sink beyond the MTU is not LNet's way: big MDs are for sources and targets */
	if (t->shape == LNET_LITE_BIGMD &&
	    (t->op == LNET_LITE_GET || t->op == LNET_LITE_MIX || t->size > LNL_BIGMD_MAX))
		return -EINVAL;
	if (t->tshape == LNET_LITE_BIGMD && !t->toff && max(t->size, t->sink) <= LNL_BIGMD_MAX)
		t->toff = LNL_BIGMD_OFFSET;
	return 0;
}

static void run_result(struct lnl_run *run, ktime_t start, ktime_t end,
		       struct lnet_lite_result *r)
{
	r->issued = min_t(u32, atomic_read(&run->next), run->t.count);
	r->done = atomic_read(&run->done);
	r->errors = atomic_read(&run->errors);
	r->timeouts = atomic_read(&run->timeouts);
	r->stuck = atomic_read(&run->stuck);
	r->first_error = atomic_read(&run->first_error);
	r->bytes = atomic64_read(&run->bytes);
	r->usec = max_t(s64, ktime_us_delta(end, start), 1);
	r->rate = div64_u64((u64)r->done * USEC_PER_SEC, r->usec);
	r->lat_avg = r->done ? div_u64(atomic64_read(&run->lat_sum), r->done) : 0;
	r->lat_p50 = percentile(run, r->done, 50);
	r->lat_p99 = percentile(run, r->done, 99);
	r->lat_max = atomic64_read(&run->lat_max);
	r->verified_bytes = atomic64_read(&run->verified);
	r->verify_errors = atomic_read(&run->verify_errors);
}

void lnet_lite_traffic_init(struct lnet_lite_traffic *t)
{
	*t = (struct lnet_lite_traffic) {
		.op = LNET_LITE_PUT_ACK,
		.verify = LNET_LITE_VERIFY_FULL,
		.size = 4096,
		.sink = U32_MAX,
		.count = 100,
		.conc = 8,
		.peers = 1,
		.from = LNET_ANY_NID,
		.to = LNET_ANY_NID,
		.via = LNET_ANY_NID,
	};
}
EXPORT_SYMBOL_GPL(lnet_lite_traffic_init);

static int run_slots(struct lnl_run *run, struct lnet_lite_result *r)
{
	u32 n = min(run->t.conc, run->t.count), i;
	struct workqueue_struct *wq;
	struct lnl_report before;
	struct lnl_slot *slots;
	bool report = false;
	ktime_t start, end;

	slots = kvcalloc(n, sizeof(*slots), GFP_KERNEL);
	wq = alloc_workqueue("lnet_lite_traffic", WQ_UNBOUND, LNL_MAX_CONC);
	if (!slots || !wq) {
		if (wq)
			destroy_workqueue(wq);
		kvfree(slots);
		return -ENOMEM;
	}
	if (run->t.op != LNET_LITE_GET && !run->t.no_ask && run->t.peers == 1)
		report = !get_report(run, &before);

	atomic_set(&run->slots, n);
	run->until = jiffies + (unsigned long)run->t.seconds * HZ;
	start = ktime_get();
	for (i = 0; i < n; i++) {
		slots[i].run = run;
		INIT_WORK(&slots[i].work, slot_work);
		queue_work(wq, &slots[i].work);
	}
	/* a signal ends the run after the operations that are under way */
	if (wait_for_completion_interruptible(&run->over)) {
		WRITE_ONCE(run->stop, true);
		wait_for_completion(&run->over);
	}
	end = ktime_get();
	destroy_workqueue(wq);
	kvfree(slots);
	run_result(run, start, end, r);
	if (report)
		compare_reports(run, &before, r);
	r->errors += r->peer_verify_errors;
	return READ_ONCE(run->stop) ? -EINTR : 0;
}

int lnet_lite_traffic(const struct lnet_lite_traffic *t, struct lnet_lite_result *r)
{
	unsigned int gpu = UINT_MAX;
	struct lnl_run *run;
	int rc;

	memset(r, 0, sizeof(*r));
	run = kzalloc_obj(*run, GFP_KERNEL);
	if (!run)
		return -ENOMEM;
	run->t = *t;
	rc = run_check(&run->t);
	if (rc)
		goto out;
	run->hop = LNET_NID_IS_ANY(&t->via) ? t->to : t->via;
	run->expect = min(run->t.size, run->t.sink);
	run->base = get_random_u32();
	init_completion(&run->over);
	run->hist = kvcalloc(HIST_SIZE, sizeof(*run->hist), GFP_KERNEL);
	if (!run->hist) {
		rc = -ENOMEM;
		goto out;
	}
	if (run->t.memory != LNET_LITE_HOST)
		gpu = lnl_gpu_index();
	run->ni = lnl_ni_pick_near(&t->from, &run->hop, gpu);
	if (!run->ni) {
		rc = -ENETUNREACH;
		goto out;
	}
	r->from = run->ni->ni.ni_nid;
	run->timeout = t->timeout ? t->timeout : lnl_lnd_timeout(run->ni) + 10;
	rc = run_slots(run, r);
	lnl_ni_put(run->ni);
out:
	kvfree(run->hist);
	kfree(run);
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_lite_traffic);

s64 lnet_lite_ping(const struct lnet_nid *from, const struct lnet_nid *to, unsigned int timeout)
{
	u8 *info = kzalloc(512, GFP_KERNEL);
	u64 nsec = 0;
	struct lnl_ni *ni;
	s64 rc;

	if (!info)
		return -ENOMEM;
	ni = lnl_ni_pick(from, to);
	if (!ni) {
		kfree(info);
		return -ENETUNREACH;
	}
	if (!timeout)
		timeout = lnl_lnd_timeout(ni) + 10;
	rc = small_get(ni, to, to, LNET_RESERVED_PORTAL, LNET_PROTO_PING_MATCHBITS, timeout, info,
		       272, &nsec);
	lnl_ni_put(ni);
	if (rc >= 0) {
		u32 magic = ((struct lnet_ping_info *)info)->pi_magic;

		/* in the answerer's byte order */
		if (rc < sizeof(struct lnet_ping_info) ||
		    (magic != LNET_PROTO_PING_MAGIC && magic != swab32(LNET_PROTO_PING_MAGIC)))
			rc = -EPROTO;
		else
			rc = div_u64(nsec, 1000);
	}
	kfree(info);
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_lite_ping);
