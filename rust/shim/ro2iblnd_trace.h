/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace points of the driver, for perf, trace-cmd and bpftrace.
 * Documentation/tracing.md describes them. The kernel's headers read this file
 * several times to generate code.
 *
 * All text is in arrays of one size, because __string() and __assign_str() are
 * not the same in all kernels, and because every tool can show such an array.
 * No event contains an address of memory.
 *
 * Enabling or disabling an event sets or clears its bit in ro2ib_trace_on
 * (trace.c). The Rust side reads only that word while no event is enabled.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ro2iblnd

#if !defined(RO2IBLND_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define RO2IBLND_TRACE_H

#include <linux/tracepoint.h>

#include "ro2iblnd_shim.h"

#ifndef RO2IB_TRACE_SWITCHES
#define RO2IB_TRACE_SWITCHES
/* trace.c */
int ro2ib_trace_conn_state_begin(void);
void ro2ib_trace_conn_state_end(void);
int ro2ib_trace_stall_begin(void);
void ro2ib_trace_stall_end(void);
int ro2ib_trace_stall_over_begin(void);
void ro2ib_trace_stall_over_end(void);
int ro2ib_trace_post_begin(void);
void ro2ib_trace_post_end(void);
int ro2ib_trace_complete_begin(void);
void ro2ib_trace_complete_end(void);
int ro2ib_trace_receive_begin(void);
void ro2ib_trace_receive_end(void);
int ro2ib_trace_stage_begin(void);
void ro2ib_trace_stage_end(void);
int ro2ib_trace_close_begin(void);
void ro2ib_trace_close_end(void);
int ro2ib_trace_refuse_begin(void);
void ro2ib_trace_refuse_end(void);
#endif

/* Fields of the connection: first in every event except those of rejects. */
#define RO2IB_CONN_FIELDS					\
	__array(char, ni, RO2IB_TRACE_NID)			\
	__array(char, peer, RO2IB_TRACE_NID)			\
	__field(u32, conn)					\
	__field(u32, qpn)

#define RO2IB_CONN_ASSIGN					\
	memcpy(__entry->ni, c->ni, RO2IB_TRACE_NID);		\
	memcpy(__entry->peer, c->peer, RO2IB_TRACE_NID);	\
	__entry->conn = c->number;				\
	__entry->qpn = c->qpn;

#define RO2IB_CONN_FORMAT "ni=%s peer=%s conn=%u qpn=%u"
#define RO2IB_CONN_ARGS \
	__entry->ni, __entry->peer, __entry->conn, __entry->qpn

TRACE_EVENT_FN(ro2ib_conn_state,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *from,
		 const char *to, const char *why),
	TP_ARGS(c, from, to, why),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__field(bool, active)
		__array(char, from, RO2IB_TRACE_WORD)
		__array(char, to, RO2IB_TRACE_WORD)
		__array(char, why, RO2IB_TRACE_WORD)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		__entry->active = c->active;
		memcpy(__entry->from, from, RO2IB_TRACE_WORD);
		memcpy(__entry->to, to, RO2IB_TRACE_WORD);
		memcpy(__entry->why, why, RO2IB_TRACE_WORD);
	),
	TP_printk(RO2IB_CONN_FORMAT " active=%d from=%s to=%s why=%s",
		  RO2IB_CONN_ARGS, __entry->active, __entry->from, __entry->to,
		  __entry->why),
	ro2ib_trace_conn_state_begin, ro2ib_trace_conn_state_end
);

TRACE_EVENT_FN(ro2ib_stall,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *want,
		 u32 queued, u32 credits),
	TP_ARGS(c, want, queued, credits),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, want, RO2IB_TRACE_WORD)
		__field(u32, queued)
		__field(u32, credits)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->want, want, RO2IB_TRACE_WORD);
		__entry->queued = queued;
		__entry->credits = credits;
	),
	TP_printk(RO2IB_CONN_FORMAT " want=%s queued=%u credits=%u",
		  RO2IB_CONN_ARGS, __entry->want, __entry->queued,
		  __entry->credits),
	ro2ib_trace_stall_begin, ro2ib_trace_stall_end
);

TRACE_EVENT_FN(ro2ib_stall_over,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *want, u64 ns),
	TP_ARGS(c, want, ns),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, want, RO2IB_TRACE_WORD)
		__field(u64, ns)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->want, want, RO2IB_TRACE_WORD);
		__entry->ns = ns;
	),
	TP_printk(RO2IB_CONN_FORMAT " want=%s ns=%llu",
		  RO2IB_CONN_ARGS, __entry->want, __entry->ns),
	ro2ib_trace_stall_over_begin, ro2ib_trace_stall_over_end
);

TRACE_EVENT_FN(ro2ib_post,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *op, u32 tx,
		 u32 bytes, u32 credits),
	TP_ARGS(c, op, tx, bytes, credits),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, op, RO2IB_TRACE_WORD)
		__field(u32, tx)
		__field(u32, bytes)
		__field(u32, credits)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->op, op, RO2IB_TRACE_WORD);
		__entry->tx = tx;
		__entry->bytes = bytes;
		__entry->credits = credits;
	),
	TP_printk(RO2IB_CONN_FORMAT " op=%s tx=%u bytes=%u credits=%u",
		  RO2IB_CONN_ARGS, __entry->op, __entry->tx, __entry->bytes,
		  __entry->credits),
	ro2ib_trace_post_begin, ro2ib_trace_post_end
);

TRACE_EVENT_FN(ro2ib_complete,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *op, u32 tx,
		 const char *result),
	TP_ARGS(c, op, tx, result),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, op, RO2IB_TRACE_WORD)
		__field(u32, tx)
		__array(char, result, RO2IB_TRACE_WORD)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->op, op, RO2IB_TRACE_WORD);
		__entry->tx = tx;
		memcpy(__entry->result, result, RO2IB_TRACE_WORD);
	),
	TP_printk(RO2IB_CONN_FORMAT " op=%s tx=%u result=%s",
		  RO2IB_CONN_ARGS, __entry->op, __entry->tx, __entry->result),
	ro2ib_trace_complete_begin, ro2ib_trace_complete_end
);

TRACE_EVENT_FN(ro2ib_receive,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *op, u32 bytes,
		 u32 credits),
	TP_ARGS(c, op, bytes, credits),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, op, RO2IB_TRACE_WORD)
		__field(u32, bytes)
		__field(u32, credits)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->op, op, RO2IB_TRACE_WORD);
		__entry->bytes = bytes;
		__entry->credits = credits;
	),
	TP_printk(RO2IB_CONN_FORMAT " op=%s bytes=%u credits=%u",
		  RO2IB_CONN_ARGS, __entry->op, __entry->bytes,
		  __entry->credits),
	ro2ib_trace_receive_begin, ro2ib_trace_receive_end
);

TRACE_EVENT_FN(ro2ib_stage,
	TP_PROTO(const struct ro2ib_trace_conn *c, const char *op,
		 const char *stage, u64 ns),
	TP_ARGS(c, op, stage, ns),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__array(char, op, RO2IB_TRACE_WORD)
		__array(char, stage, RO2IB_TRACE_WORD)
		__field(u64, ns)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		memcpy(__entry->op, op, RO2IB_TRACE_WORD);
		memcpy(__entry->stage, stage, RO2IB_TRACE_WORD);
		__entry->ns = ns;
	),
	TP_printk(RO2IB_CONN_FORMAT " op=%s stage=%s ns=%llu",
		  RO2IB_CONN_ARGS, __entry->op, __entry->stage, __entry->ns),
	ro2ib_trace_stage_begin, ro2ib_trace_stage_end
);

TRACE_EVENT_FN(ro2ib_close,
	TP_PROTO(const struct ro2ib_trace_conn *c, bool up, const char *by,
		 const char *cause, const char *detail),
	TP_ARGS(c, up, by, cause, detail),
	TP_STRUCT__entry(
		RO2IB_CONN_FIELDS
		__field(bool, active)
		__field(bool, up)
		__array(char, by, RO2IB_TRACE_WORD)
		__array(char, cause, RO2IB_TRACE_WORD)
		__array(char, detail, RO2IB_TRACE_WORD)
	),
	TP_fast_assign(
		RO2IB_CONN_ASSIGN
		__entry->active = c->active;
		__entry->up = up;
		memcpy(__entry->by, by, RO2IB_TRACE_WORD);
		memcpy(__entry->cause, cause, RO2IB_TRACE_WORD);
		memcpy(__entry->detail, detail, RO2IB_TRACE_WORD);
	),
	TP_printk(RO2IB_CONN_FORMAT " active=%d up=%d by=%s cause=%s detail=%s",
		  RO2IB_CONN_ARGS, __entry->active, __entry->up, __entry->by,
		  __entry->cause, __entry->detail),
	ro2ib_trace_close_begin, ro2ib_trace_close_end
);

TRACE_EVENT_FN(ro2ib_refuse,
	TP_PROTO(const char *ni, const char *peer, const char *cause),
	TP_ARGS(ni, peer, cause),
	TP_STRUCT__entry(
		__array(char, ni, RO2IB_TRACE_NID)
		__array(char, peer, RO2IB_TRACE_NID)
		__array(char, cause, RO2IB_TRACE_WORD)
	),
	TP_fast_assign(
		memcpy(__entry->ni, ni, RO2IB_TRACE_NID);
		memcpy(__entry->peer, peer, RO2IB_TRACE_NID);
		memcpy(__entry->cause, cause, RO2IB_TRACE_WORD);
	),
	TP_printk("ni=%s peer=%s cause=%s",
		  __entry->ni, __entry->peer, __entry->cause),
	ro2ib_trace_refuse_begin, ro2ib_trace_refuse_end
);

#endif /* RO2IBLND_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE ro2iblnd_trace
#include <trace/define_trace.h>
