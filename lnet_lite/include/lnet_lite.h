/* SPDX-License-Identifier: GPL-2.0 */
/*
 * lnet_lite from inside the kernel, for test suites.
 *
 * All functions sleep and want thread context with nothing held. Errors are
 * negative errnos.
 */
#ifndef _LNET_LITE_H
#define _LNET_LITE_H

#include <linux/types.h>
#include <uapi/linux/lnet/lnet-types.h>
#include <uapi/linux/lnet/nidstr.h>

struct module;
struct page;

/* -1 = not given, the LND decides */
struct lnet_lite_ni_opts {
	int		peer_credits;
	int		credits;
	int		peer_timeout;
	int		peer_buffer_credits;
	int		conns_per_peer;
};

#define LNET_LITE_NI_OPTS_DEFAULT \
	((struct lnet_lite_ni_opts) { -1, -1, -1, -1, -1 })

enum lnet_lite_op {
	LNET_LITE_PUT,
	LNET_LITE_PUT_ACK,
	LNET_LITE_GET,
	LNET_LITE_MIX,		/* PUT_ACK and GET in turn */
};

/* How the memory of an MD is laid out; see README.md */
enum lnet_lite_shape {
	LNET_LITE_ALIGNED,
	LNET_LITE_CONTIG,
	LNET_LITE_SCATTER,
	LNET_LITE_UNALIGNED,
	LNET_LITE_GAPS,
	LNET_LITE_VMALLOC,
	LNET_LITE_BIGMD,
	LNET_LITE_NSHAPES,
};

/* Where it is */
enum lnet_lite_memory {
	LNET_LITE_HOST,
	LNET_LITE_GPU,
	LNET_LITE_MIXED,	/* of a GPU, but for the last page */
	LNET_LITE_NMEMORIES,
};

enum lnet_lite_verify {
	LNET_LITE_VERIFY_OFF,	/* nobody looks at the content */
	LNET_LITE_VERIFY_DATA,	/* payload only */
	LNET_LITE_VERIFY_FULL,	/* payload, and that nothing else was touched */
};

struct lnet_lite_traffic {
	enum lnet_lite_op	op;
	enum lnet_lite_shape	shape;		/* memory of the initiator */
	enum lnet_lite_shape	tshape;		/* memory of the target */
	enum lnet_lite_memory	memory;		/* of the initiator */
	enum lnet_lite_memory	tmemory;	/* of the target */
	enum lnet_lite_verify	verify;
	u32			size;		/* bytes offered by the source */
	u32			sink;		/* bytes the sink can take; U32_MAX = size */
	u32			toff;		/* offset into the target's MD */
	u32			count;
	u32			conc;		/* operations in flight, 1..1024 */
	u32			peers;		/* that many targets in turn, by address */
	u32			timeout;	/* seconds per operation, 0 = from the LND */
	u32			seconds;	/* start nothing new after that; 0 = no limit */
	u32			pause_ms;	/* pause after each operation, milliseconds */
	bool			no_trunc;	/* target refuses what does not fit */
	bool			no_ask;		/* the target is not asked what it has verified */
	bool			nomatch;	/* target has no match */
	bool			route;		/* mark the next hop as a router */
	struct lnet_nid		from;		/* any = first NI on the net of the next hop */
	struct lnet_nid		to;
	struct lnet_nid		via;		/* any = direct */
};

struct lnet_lite_result {
	struct lnet_nid from;		/* our NI */
	u32	issued;
	u32	done;			/* completed without error */
	u32	errors;			/* completed with an error, or wrong in any way */
	u32	timeouts;
	u32	stuck;			/* memory the LND never gave back */
	int	first_error;
	u64	bytes;			/* payload moved by the operations done */
	u64	usec;
	u64	rate;			/* operations per second */
	u64	lat_avg, lat_p50, lat_p99, lat_max;	/* microseconds */
	u64	verified_bytes;		/* here */
	u32	verify_errors;		/* here */
	u64	peer_verified_bytes;	/* at the target, for PUTs */
	u32	peer_verify_errors;
	u32	peer_puts;
};

/*
 * Memory of a GPU for the traffic. Each of @pages stands for a page of that
 * memory, and only its provider may use it; @data are pages where the
 * test finds what is in the memory. Called with nothing held.
 */
struct lnet_lite_gpu {
	struct module	*owner;
	int		(*alloc)(unsigned int n, struct page **pages, struct page **data);
	void		(*free)(unsigned int n, struct page **pages);
};

/* One at a time */
int lnet_lite_gpu_add(const struct lnet_lite_gpu *gpu);
void lnet_lite_gpu_del(void);

int lnet_lite_ni_add(const char *net, const char *iface,
		     const struct lnet_lite_ni_opts *opts, struct lnet_nid *nid);
int lnet_lite_ni_del(const struct lnet_nid *nid);
/* Defaults: 100 put-acks of 4096 bytes, aligned, 8 at a time, fully verified */
void lnet_lite_traffic_init(struct lnet_lite_traffic *t);
int lnet_lite_traffic(const struct lnet_lite_traffic *t, struct lnet_lite_result *r);
/* Round trip in microseconds, or -errno */
s64 lnet_lite_ping(const struct lnet_nid *from, const struct lnet_nid *to,
		   unsigned int timeout);
/* One line of the ctl language; the answer goes to @result as key=value lines */
int lnet_lite_cmd(const char *line, char *result, size_t size);
/* A counter or knob by the name it has in stats and knobs; U64_MAX if unknown */
u64 lnet_lite_stat(const char *name);
int lnet_lite_set(const char *knob, long value);

#endif
