/* SPDX-License-Identifier: GPL-2.0 */
/*
 * lnet_lite: what its own files share.
 *
 * One spin lock, lnl_lock, protects the lists of LNDs, nets and NIs, peers and
 * their credits, and the table of live messages. It is taken in thread context
 * only, and never held across a call into an LND, except for the two calls that
 * LNet itself makes under its net lock: lnd_get_timeout and lnd_get_dev_prio
 * (and lnd_nl_get).
 */
#ifndef _LNL_INTERNAL_H
#define _LNL_INTERNAL_H

#include <linux/atomic.h>
#include <linux/hashtable.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/lnet/lib-lnet.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <lnet_lite.h>

#include "ro2iblnd_compat.h"

#define LNL_PORTAL_TRAFFIC	50
#define LNL_PORTAL_REPORT	51

/* Counters; the names are the lines of the stats file */
#define LNL_STATS(X)							\
	X(parsed) X(parse_refused) X(parse_dropped)			\
	X(sent_put) X(sent_get) X(sent_reply) X(sent_ack)		\
	X(recv_put) X(recv_get) X(recv_reply) X(recv_ack)		\
	X(send_refused) X(recv_refused) X(eager_recvs) X(delayed_recvs)	\
	X(forwarded)							\
	X(finalized) X(finalized_error)					\
	X(opt_get_replies) X(opt_get_again) X(truncated) X(discarded)	\
	X(target_puts) X(target_gets) X(target_verified_bytes)		\
	X(target_verify_errors) X(verified_bytes) X(verify_errors)	\
	X(notify_down) X(notify_up) X(tx_queued_peer) X(tx_queued_ni)	\
	X(resent) X(link_fatal) X(stuck_mds) X(health_ignored)		\
	X(gpu_maps) X(gpu_unmaps) X(gpu_map_errors)

/* Violations of LNet's contract; each is a WARN_ONCE and a counter */
#define LNL_FAULTS(X)							\
	X(double_finalize) X(unknown_finalize) X(context_violations)	\
	X(finalize_then_error) X(bad_return) X(parse_unknown_ni)	\
	X(reply_len_overflow) X(reply_misuse) X(notify_future)		\
	X(notify_other_net) X(kiov_modified) X(ni_data_left)		\
	X(health_misuse) X(leaked_messages) X(leaked_mds)		\
	X(leaked_ni_refs) X(gpu_unmap_misuse)

#define LNL_ENUM(name) LNL_C_##name,
enum lnl_counter {
	LNL_STATS(LNL_ENUM)
	LNL_NSTATS,
	LNL_FAULT_BASE = LNL_NSTATS - 1,
	LNL_FAULTS(LNL_ENUM)
	LNL_NCOUNTERS,
};

#define LNL_KNOBS(X)							\
	X(slow_ms) X(match_fail_every) X(parse_err_every) X(parse_err)	\
	X(recv_delay_ms) X(lazy) X(start_delay_ms) X(finalize_delay_ms) X(routing)	\
	X(retries) X(retry_ms) X(transaction_timeout)			\
	X(debug) X(subsystem_debug)

#define LNL_KNOB_ENUM(name) LNL_K_##name,
enum lnl_knob {
	LNL_KNOBS(LNL_KNOB_ENUM)
	LNL_NKNOBS,
};

extern atomic64_t lnl_counters[LNL_NCOUNTERS];
extern atomic64_t lnl_health[LNET_MSG_STATUS_END];
extern long lnl_knobs[LNL_NKNOBS];
extern struct lnet_nid lnl_slow_peer;
extern spinlock_t lnl_lock;

#define lnl_count(name)		atomic64_inc(&lnl_counters[LNL_C_##name])
#define lnl_add(name, n)	atomic64_add((n), &lnl_counters[LNL_C_##name])
#define lnl_knob(name)		READ_ONCE(lnl_knobs[LNL_K_##name])
/* The driver (or we) broke the contract: count always, shout once per place */
#define lnl_fault(name, fmt, ...)					\
	do {								\
		lnl_count(name);					\
		WARN_ONCE(1, "lnet_lite: " #name ": " fmt, ##__VA_ARGS__); \
	} while (0)

struct lnl_ni {
	struct lnet_ni		ni;
	struct lnet_net		net;
	struct list_head	list;
	int			refs;
	bool			stopping;	/* lnd_shutdown is running */
	wait_queue_head_t	wait;
	struct list_head	peers;
	int			tq_credits, tq_credits_min, tq_credits_max;
	struct list_head	tq_delayed;
};

/* A peer lives as long as the NI that met it */
struct lnet_peer_ni {
	struct list_head	list;
	struct lnet_nid		nid;
	int			credits, credits_min;
	struct list_head	txq;
	bool			down;
	time64_t		last_alive;
	atomic64_t		puts, verified_bytes, verify_errors;
};

enum lnl_owner {
	LNL_OWN_CORE,		/* ours: being built, queued or completed */
	LNL_OWN_LND,		/* the driver's until it finalizes */
	LNL_OWN_FREE,		/* in quarantine */
};

struct lnl_msg {
	struct lnet_msg		msg;
	struct hlist_node	hash;
	struct list_head	list;
	u64			id;		/* of this life of the object */
	enum lnl_owner		owner;
	bool			reply;		/* of an optimised GET */
	bool			reply_given;	/* lnet_create_reply_msg() called for it */
	bool			tx;
	bool			rx_held;	/* lnd_recv() is still due */
	int			status;
	int			retries;
	ktime_t			due;
	struct lnl_ni		*txni, *rxni;
	struct lnet_peer_ni	*txpeer, *rxpeer;
	struct bio_vec		*router_kiov;	/* buffer of a message in transit */
	unsigned int		router_pages;
	u32			kiov_sum;
};

struct lnl_buf {
	struct list_head	list;
	enum lnet_lite_shape	shape;
	enum lnet_lite_memory	memory;
	u32			len;
	unsigned int		npages;
	struct page		**pages;
	struct page		**data;		/* where the contents of each are: itself, or a GPU */
	unsigned int		first;		/* the page of the first fragment */
	const struct lnet_lite_gpu *gpu;	/* whose the first gpu_pages are */
	unsigned int		gpu_pages;
	void			*vaddr;
	unsigned int		order;		/* of one block, for CONTIG */
	struct lnet_libmd	*md;
};

/* main.c */
void lnl_check_context(const char *what);
int lnl_knob_set(const char *name, long value);
bool lnl_every(enum lnl_knob knob, atomic_t *counter);
void lnl_stats_reset(void);
int lnl_stats_print(char *buf, size_t size);
int lnl_knobs_print(char *buf, size_t size);

/* ni.c, peer part and credits in send.c */
struct lnl_ni *lnl_ni_find_locked(const struct lnet_nid *nid);
struct lnl_ni *lnl_ni_by_net_locked(u32 net);
bool lnl_ni_known_locked(const struct lnet_ni *ni);
void lnl_ni_get_locked(struct lnl_ni *ni);
void lnl_ni_put_locked(struct lnl_ni *ni);
void lnl_ni_put(struct lnl_ni *ni);
struct lnl_ni *lnl_ni_pick(const struct lnet_nid *from, const struct lnet_nid *hop);
struct lnl_ni *lnl_ni_pick_near(const struct lnet_nid *from, const struct lnet_nid *hop,
				unsigned int gpu);
unsigned int lnl_ni_dev_prio(struct lnl_ni *ni, unsigned int gpu);
struct lnl_ni *lnl_ni_nth_locked(unsigned int n);
unsigned int lnl_lnd_timeout(const struct lnl_ni *ni);
int lnl_nis_print(char *buf, size_t size);
int lnl_ni_show(const struct lnet_nid *nid, char *buf, size_t size);
int lnl_ni_add_line(const char *net, const char *iface, const struct lnet_nid *addr,
		    char *opts, struct lnet_nid *out);
int lnl_ni_init(void);
void lnl_ni_fini(void);

/* tunables.c */
int lnl_ni_set(const struct lnet_nid *nid, const char *key, long value);
int lnl_tunables_parse(struct lnl_ni *ni, const struct lnet_lnd *lnd, char *opts);

/* ni_show.c */
int lnl_ping_fill(struct lnet_ping_info *info, unsigned int max_nnis);

static inline struct lnl_ni *lnl_ni(struct lnet_ni *ni)
{
	return container_of(ni, struct lnl_ni, ni);
}

/* msg.c */
int lnl_msg_init(void);
void lnl_msg_fini(void);
struct lnl_msg *lnl_msg_alloc(void);
void lnl_msg_free(struct lnl_msg *lm);
void lnl_msg_give(struct lnl_msg *lm);
bool lnl_msg_take_back(struct lnl_msg *lm, u64 id);
void lnl_msg_attach(struct lnl_msg *lm, struct lnet_libmd *md, unsigned int offset,
		    unsigned int mlen);
void lnl_msg_payload(struct lnl_msg *lm);
void lnl_finish(struct lnl_msg *lm, int status);
unsigned int lnl_msgs_live(void);
unsigned int lnl_rx_held(void);
void lnl_rx_hold(int delta);
unsigned int lnl_msgs_at_lnd(struct lnl_ni *ni);
int lnl_msgs_print(char *buf, size_t size);

static inline struct lnl_msg *lnl_msg(struct lnet_msg *msg)
{
	return container_of(msg, struct lnl_msg, msg);
}

/* send.c */
struct lnet_peer_ni *lnl_peer_get(struct lnl_ni *ni, const struct lnet_nid *nid);
struct lnet_peer_ni *lnl_peer_find_locked(struct lnl_ni *ni, const struct lnet_nid *nid);
void lnl_prep_send(struct lnl_msg *lm, int type, const struct lnet_processid *target,
		   unsigned int offset, unsigned int len);
int lnl_send(struct lnl_msg *lm, struct lnl_ni *ni, const struct lnet_nid *next_hop,
	     bool as_router);
void lnl_return_credits(struct lnl_msg *lm);
bool lnl_try_resend(struct lnl_msg *lm, int status);
void lnl_resend_flush(void);
void lnl_send_fini(void);
int lnl_peers_print(char *buf, size_t size);

/* parse.c */
void lnl_ni_recv(struct lnl_ni *ni, void *private, struct lnl_msg *lm, int delayed,
		 unsigned int offset, unsigned int mlen, unsigned int rlen);
void lnl_delayed_run(struct lnl_ni *ni, bool all);
void lnl_parse_fini(void);
unsigned int lnl_delayed_count(void);

/* forward.c */
int lnl_forward_recv(struct lnl_ni *ni, struct lnl_msg *lm);
int lnl_forward_send(struct lnl_msg *lm);
void lnl_forward_free(struct lnl_msg *lm);

/* md.c */
int lnl_md_link(struct lnet_libmd *md);
void lnl_md_hold(struct lnet_libmd *md, void (*release)(struct lnet_libmd *md));
bool lnl_md_unlink(struct lnet_libmd *md, unsigned long timeout);
struct lnet_libmd *lnl_md_lookup(const struct lnet_handle_wire *wh);
void lnl_md_put(struct lnet_libmd *md);
void lnl_md_wire(const struct lnet_libmd *md, struct lnet_handle_wire *wh);
void lnl_md_init(void);
void lnl_md_fini(void);
unsigned int lnl_mds_live(void);

/* buf.c */
struct lnl_buf *lnl_buf_alloc(enum lnet_lite_memory memory, enum lnet_lite_shape shape, u32 len);
void lnl_buf_free(struct lnl_buf *buf);
struct lnl_buf *lnl_buf_get(enum lnet_lite_memory memory, enum lnet_lite_shape shape, u32 len);
void lnl_buf_put(struct lnl_buf *buf);
void lnl_buf_fini(void);
unsigned int lnl_bufs_live(void);

/* gpu.c */
const struct lnet_lite_gpu *lnl_gpu_alloc(unsigned int n, struct page **pages,
					  struct page **data);
void lnl_gpu_free(const struct lnet_lite_gpu *gpu, unsigned int n, struct page **pages);
unsigned int lnl_gpu_index(void);

/* pattern.c */
void lnl_buf_fill(struct lnl_buf *buf, u64 key, u32 off, u32 len, u32 pattern_off);
void lnl_buf_poison(struct lnl_buf *buf);
int lnl_buf_check(struct lnl_buf *buf, u64 key, u32 off, u32 len, u32 pattern_off,
		  bool full);
u32 lnl_kiov_sum(const struct bio_vec *kiov, unsigned int niov);

/* target.c */
enum lnl_match { LNL_MATCH_OK, LNL_MATCH_NONE, LNL_MATCH_DROP };
enum lnl_match lnl_target_put(struct lnl_msg *lm, bool may_delay);
enum lnl_match lnl_target_get(struct lnl_msg *lm);

/* match bits of our own traffic: the target needs no set-up */
#define LNL_MB_SEQ		GENMASK_ULL(31, 0)
#define LNL_MB_SHAPE		GENMASK_ULL(34, 32)
#define LNL_MB_GPU		BIT_ULL(35)
#define LNL_MB_LEN		GENMASK_ULL(57, 36)
#define LNL_MB_TRUNC		BIT_ULL(58)
#define LNL_MB_NOMATCH		BIT_ULL(59)
#define LNL_MB_VERIFY		GENMASK_ULL(61, 60)
#define LNL_MB_MAGIC		BIT_ULL(62)
#define LNL_MB_MIXED		BIT_ULL(63)
#define LNL_MAX_LEN		(2u << 20)

/* Answer of portal LNL_PORTAL_REPORT about the NID that asks */
struct lnl_report {
	__le64	puts;
	__le64	verified_bytes;
	__le64	verify_errors;
};

/* op.c */
struct lnl_op_args {
	struct lnl_ni	*ni;
	struct lnet_processid target;
	struct lnet_nid	hop;
	struct lnl_buf	*buf;		/* source of a PUT, sink of a GET */
	u64		match_bits;
	u64		hdr_data;
	u32		portal;
	u32		offset;		/* into the buffer; 0 for a GET */
	u32		remote_offset;	/* into the MD of the target */
	u32		len;		/* bytes of the buffer to use */
	bool		get, ack, route;
	unsigned int	timeout;	/* seconds */
};

struct lnl_op_result {
	int	status;
	u32	mlength;
	u64	nsec;
	bool	in_vain;	/* no end within the operation's time limit */
	bool	stuck;		/* the buffer must not be touched any more */
};

void lnl_op_run(const struct lnl_op_args *args, struct lnl_op_result *res);

/* debug.c */
#define LNL_DK_SIZE	(256 * 1024)
size_t lnl_dk_read(char *buf);
void lnl_dk_clear(void);

/* ctl.c */
int lnl_ctl_init(void);
void lnl_ctl_fini(void);

/* cmd.c */
int lnl_cmd(char *line, char *res, size_t size);

#endif
