// SPDX-License-Identifier: GPL-2.0
/*
 * Trace points: perf, trace-cmd and bpftrace find them as ro2iblnd:*. The Rust
 * side reads one word to know which are enabled; it calls these functions only
 * then.
 */
#include <linux/compiler.h>
#include <linux/module.h>
#include <linux/string.h>

#include "ro2iblnd_shim.h"

#define CREATE_TRACE_POINTS
#include "ro2iblnd_trace.h"

u32 ro2ib_trace_on;

/*
 * Called by the kernel when the first user enables the trace point and when the
 * last disables it, under the kernel's mutex for trace points.
 */
#define RO2IB_TRACE_SWITCH(name, bit)					\
int ro2ib_trace_##name##_begin(void)					\
{									\
	WRITE_ONCE(ro2ib_trace_on, ro2ib_trace_on | (bit));		\
	return 0;							\
}									\
void ro2ib_trace_##name##_end(void)					\
{									\
	WRITE_ONCE(ro2ib_trace_on, ro2ib_trace_on & ~(u32)(bit));	\
}

RO2IB_TRACE_SWITCH(conn_state, RO2IB_TRACE_CONN_STATE)
RO2IB_TRACE_SWITCH(stall, RO2IB_TRACE_STALL)
RO2IB_TRACE_SWITCH(stall_over, RO2IB_TRACE_STALL_OVER)
RO2IB_TRACE_SWITCH(post, RO2IB_TRACE_POST)
RO2IB_TRACE_SWITCH(complete, RO2IB_TRACE_COMPLETE)
RO2IB_TRACE_SWITCH(receive, RO2IB_TRACE_RECEIVE)
RO2IB_TRACE_SWITCH(stage, RO2IB_TRACE_STAGE)
RO2IB_TRACE_SWITCH(close, RO2IB_TRACE_CLOSE)
RO2IB_TRACE_SWITCH(refuse, RO2IB_TRACE_REFUSE)

void ro2ib_trace_conn_state(const struct ro2ib_trace_conn *c, const char *from,
			    const char *to, const char *why)
{
	trace_ro2ib_conn_state(c, from, to, why);
}

void ro2ib_trace_stall(const struct ro2ib_trace_conn *c, const char *want,
		       u32 queued, u32 credits)
{
	trace_ro2ib_stall(c, want, queued, credits);
}

void ro2ib_trace_stall_over(const struct ro2ib_trace_conn *c, const char *want,
			    u64 ns)
{
	trace_ro2ib_stall_over(c, want, ns);
}

void ro2ib_trace_post(const struct ro2ib_trace_conn *c, const char *op, u32 tx,
		      u32 bytes, u32 credits)
{
	trace_ro2ib_post(c, op, tx, bytes, credits);
}

void ro2ib_trace_complete(const struct ro2ib_trace_conn *c, const char *op,
			  u32 tx, const char *result)
{
	trace_ro2ib_complete(c, op, tx, result);
}

void ro2ib_trace_receive(const struct ro2ib_trace_conn *c, const char *op,
			 u32 bytes, u32 credits)
{
	trace_ro2ib_receive(c, op, bytes, credits);
}

void ro2ib_trace_stage(const struct ro2ib_trace_conn *c, const char *op,
		       const char *stage, u64 ns)
{
	trace_ro2ib_stage(c, op, stage, ns);
}

void ro2ib_trace_close(const struct ro2ib_trace_conn *c, bool up,
		       const char *by, const char *cause, const char *detail)
{
	trace_ro2ib_close(c, up, by, cause, detail);
}

void ro2ib_trace_refuse(const char *ni, const char *peer, const char *cause)
{
	trace_ro2ib_refuse(ni, peer, cause);
}
