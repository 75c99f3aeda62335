/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interface between the C shim (which knows LNet's structures) and the Rust
 * driver (which does not). Read by the C compiler and by bindgen, so it must
 * not include any header of LNet: flat structures and opaque pointers only.
 *
 * Ownership in one place:
 *
 * - An lnet_msg handed over in a request belongs to the driver when the
 *   operation returns 0; it must then reach ro2ib_lnet_finalize() exactly once.
 *   When the operation returns a negative errno LNet keeps the message.
 * - The "rx" given to ro2ib_lnet_parse() belongs to LNet when that returns 0
 *   and comes back exactly once through ro2ib_lnd_ops.recv.
 * - A struct ro2ib_ni reference keeps the lnet_ni usable: NI shutdown waits
 *   until the last one is dropped.
 *
 * "Process context" below means: no spinlock held, interrupts and softirqs on;
 * the call may sleep.
 */
#ifndef RO2IBLND_SHIM_H
#define RO2IBLND_SHIM_H

#include <linux/types.h>

struct bio_vec;
struct device;
struct lnet_msg;
struct net;
struct scatterlist;

/* NI as the driver sees it: opaque, reference counted. */
struct ro2ib_ni;

/* Bytes of an LNet header in its nid4 wire form. */
#define RO2IB_LNET_HDR_SIZE	72

/* The NID that stands for "any" in control operations. */
#define RO2IB_NID_ANY		(~0ULL)

/*
 * Run of payload bytes: @nob bytes starting @offset bytes into @nr pieces. All
 * fields are 0/NULL when there is no payload. The array is LNet's: it must not
 * be written, and is valid until the message it came with is finalized.
 */
struct ro2ib_payload {
	const struct bio_vec *bv;
	u32 nr;
	u32 offset;
	u32 nob;
	bool gpu;
};

/* Argument of ro2ib_lnd_ops.send. */
struct ro2ib_send_req {
	struct lnet_msg *msg;
	/* NID of the next hop, 64-bit form */
	u64 target;
	/* LNET_MSG_ACK 0, PUT 1, GET 2, REPLY 3 */
	u32 type;
	bool to_router;
	bool routing;
	u8 hdr[RO2IB_LNET_HDR_SIZE];
	/*
	 * payload of a PUT or REPLY; for a GET its sink, the whole attached MD
	 */
	struct ro2ib_payload pages;
};

/* Argument of ro2ib_lnd_ops.recv. */
struct ro2ib_recv_req {
	/* NULL: discard, or "nothing matched" for a GET_REQ */
	struct lnet_msg *msg;
	/*
	 * sink of the wanted bytes (maybe 0, never more than received); for an
	 * optimised GET the data to deliver
	 */
	struct ro2ib_payload pages;
};

/* Configuration of an NI, after defaulting and clamping. */
struct ro2ib_ni_cfg {
	/* 64-bit form */
	u64 nid;
	/* network order */
	u32 ip;
	/* referenced by LNet for the life of the NI */
	struct net *net;
	int ifindex;
	/* name of the NI for log lines, e.g. "10.0.0.1@o2ib" */
	char name[32];

	/* per-NI tunables that do not change */
	u32 peer_credits;		/* 1..255: offered queue depth */
	u32 max_tx_credits;		/* >= peer_credits */
	/* Not configured: the driver chooses for the link. */
	bool peer_credits_open;
	bool max_tx_credits_open;

	/* module parameters that are fixed at load time */
	u32 service;			/* 1..65535 */
	u32 ib_mtu;			/* bytes; 0: leave alone */
	u32 wrq_sge;			/* >= 1 */
	bool wrq_sge_given;
};

/* Change of the link of an NI. */
enum ro2ib_link_event {
	/* Carrier and address are there. */
	RO2IB_LINK_UP,
	/*
	 * The address is missing, or messages need the carrier, which is
	 * missing.
	 */
	RO2IB_LINK_DOWN,
	/* The link is about to go; until then there is a route. */
	RO2IB_LINK_LEAVING,
	/* The interface may be on another RDMA device now. */
	RO2IB_LINK_MOVED,
	/*
	 * IPoIB has the address and no carrier: no address of a peer can be
	 * resolved, and connections, which do not go through IPoIB, go on.
	 */
	RO2IB_LINK_NO_CARRIER,
	/* The interface has another MTU, without other changes. */
	RO2IB_LINK_MTU,
};

/*
 * Operations of the driver for the shim. @priv is the value that startup
 * stored. All functions run in process context, older_conns() without sleeping.
 */
struct ro2ib_lnd_ops {
	/*
	 * Brings an NI up. The caller's reference on @ni passes to the driver;
	 * @driver is the pointer given to ro2ib_shim_register(). Returns 0 and
	 * sets *@priv, or a negative errno with everything undone.
	 */
	int (*startup)(const struct ro2ib_ni_cfg *cfg, struct ro2ib_ni *ni,
		       void *driver, void **priv);
	/* Consumes @priv; every message and rx is gone when it returns. */
	void (*shutdown)(void *priv);
	/* Re-entrant: LNet calls it from inside finalize and parse too. */
	int (*send)(void *priv, const struct ro2ib_send_req *req);
	/* LNet keeps @rx for a while; recv() follows. May sleep. */
	void (*eager_recv)(void *priv, void *rx);
	/* Consumes @rx, whatever it returns. */
	int (*recv)(void *priv, void *rx, const struct ro2ib_recv_req *req);
	/*
	 * The interface of the NI went up or down (address and carrier), or is
	 * about to. rtnl and the shim's NI mutex are held: must not call
	 * ro2ib_lnet_set_fatal() or wait for a thread that does.
	 */
	void (*link_event)(void *priv, enum ro2ib_link_event event);
	/*
	 * After RO2IB_LINK_LEAVING: returns whether a connection has not sent
	 * its DREQ yet or got no answer, or a peer requests a new connection.
	 * Locks as above.
	 */
	bool (*link_busy)(void *priv);
	/*
	 * Returns whether its device has a GID for its address, as over RoCE.
	 * Locks as above.
	 */
	bool (*has_gid)(void *priv);
	/* -ENOENT past the last peer. */
	int (*get_peer)(void *priv, u32 index, u64 *nid, u32 *refs);
	/* Prints the state of a peer to the console. -ENOENT: no such peer. */
	int (*debug_peer)(void *priv, u64 nid);
	int (*del_peer)(void *priv, u64 nid);
	/*
	 * *@mtu: path MTU in bytes, 0 if unknown; -ENOENT past the last
	 * connection.
	 */
	int (*get_conn)(void *priv, u32 index, u64 *nid, u32 *mtu);
	int (*close_conns)(void *priv, u64 nid);
	/*
	 * The administrator changed the access list, the tunables of the NI, or
	 * the time after which a silent peer is probed. The shim's NI mutex is
	 * held, as for link_event().
	 */
	void (*settings_changed)(void *priv);
	/*
	 * Returns the number of connections that were created with other values
	 * of the tunables than new connections get. A spinlock of LNet's is
	 * held: must not sleep.
	 */
	u32 (*older_conns)(void *priv);
};

/*
 * Registers the driver with LNet; process context. -EBUSY: LNet has a driver
 * for this network type already. @ops and @driver must live until
 * ro2ib_shim_unregister().
 */
int ro2ib_shim_register(const struct ro2ib_lnd_ops *ops, void *driver);
void ro2ib_shim_unregister(void);

/* NI references; any context. */
void ro2ib_ni_get(struct ro2ib_ni *ni);
void ro2ib_ni_put(struct ro2ib_ni *ni);

/* Returns true once LNet has declared the NI active; any context. */
bool ro2ib_ni_active(const struct ro2ib_ni *ni);

/* Returns an online CPU of the peer's CPT, spread by @salt; any context. */
int ro2ib_lnet_peer_cpu(struct ro2ib_ni *ni, u64 nid, u32 salt);

/*
 * Gives a received LNet header to LNet; process context. @hdr:
 * RO2IB_LNET_HDR_SIZE bytes in wire form; @from: NID of the sender of the o2ib
 * message; @rdma: header came in a PUT_REQ or GET_REQ. @hdr may be part of @rx:
 * it is read before LNet gets @rx. < 0: LNet has taken nothing, the caller
 * still owns @rx. 1: LNet has taken it, but deletes the NI, and waits for a
 * moment in which it has no message of the NI.
 */
int ro2ib_lnet_parse(struct ro2ib_ni *ni, const u8 *hdr, u64 from, void *rx,
		     bool rdma);

/*
 * Completes a message; process context, may call ro2ib_lnd_ops.send. @health:
 * an enum lnet_msg_hstatus value, ignored by LNet when it contradicts @status.
 */
void ro2ib_lnet_finalize(struct lnet_msg *msg, int status, u32 health);
/* Completes a message by a work item: from any context, with any lock held. */
void ro2ib_lnet_finalize_late(struct lnet_msg *msg, int status, u32 health);

/*
 * Prepares to resend a message that failed with @health: fills the request of
 * ro2ib_lnd_ops.send, for another connection. False: LNet resends it itself,
 * because it has another path, or does not want it any more; the caller must
 * finalize it with @health. Process context.
 */
bool ro2ib_lnet_prepare_resend(struct lnet_msg *msg, u32 health,
			       struct ro2ib_send_req *req);

/*
 * Optimised GET: returns the synthetic REPLY of @get, or NULL; must be created
 * before @get is finalized, and be finalized after it. Process context.
 */
struct lnet_msg *ro2ib_lnet_create_reply(struct ro2ib_ni *ni,
					 struct lnet_msg *get);
/* -EPROTO: @len is more than the GET asked for (LNet would panic). */
int ro2ib_lnet_set_reply_len(struct ro2ib_ni *ni, struct lnet_msg *reply,
			     u32 len);

/*
 * Fault injection: returns true if LNet wants this send to fail, with the
 * health for it in *@health. Process context (takes LNet's locks).
 */
bool ro2ib_lnet_send_error(struct lnet_msg *msg, u32 *health);

/*
 * Reports that the peer is gone, and was last heard @age seconds ago; process
 * context.
 */
void ro2ib_lnet_notify_down(struct ro2ib_ni *ni, u64 nid, u64 age);

/*
 * Reports that the HCA port of the NI failed or came back; @told: the driver
 * has logged why, so the shim does not. Process context.
 */
void ro2ib_lnet_set_fatal(struct ro2ib_ni *ni, bool fatal, bool told);

/*
 * Returns whether the interface is a bond, or a VLAN on a bond, at the moment.
 * Any context.
 */
bool ro2ib_ni_is_bonded(const struct ro2ib_ni *ni);

/*
 * Returns the NI of this driver (never of another driver) with that NID, or
 * NULL. The caller owns a reference on it. *@priv is the driver's NI, valid as
 * long as the reference is held. Process context.
 */
struct ro2ib_ni *ro2ib_lnet_find_ni(u64 nid, void **priv);
void ro2ib_lnet_put_found(struct ro2ib_ni *ni);

/*
 * Tells LNet which device the NI's DMA goes through (GPU affinity); NULL before
 * the device goes away. Process context, waits for RCU.
 */
void ro2ib_lnet_set_dma_device(struct ro2ib_ni *ni, struct device *dev);

/*
 * Sets the depth that fits the link of an NI, which runs at @mbps Mb/s (0:
 * unknown), and the matching credits of the NI. Does nothing if a depth is
 * configured. While the NI starts, LNet gets both; later the depth applies to
 * new connections, and LNet's credits stay. Process context.
 */
void ro2ib_ni_choose(struct ro2ib_ni *ni, u32 depth, u32 credits, u32 mbps);

/* Source of the queue depth. */
enum ro2ib_depth_by {
	/* A tunable of the NI, or the parameter. */
	RO2IB_DEPTH_GIVEN,
	/* The parameter "ni_tune". */
	RO2IB_DEPTH_TUNED,
	/* ro2ib_ni_choose(). */
	RO2IB_DEPTH_CHOSEN,
};

enum ro2ib_depth_by ro2ib_ni_depth_by(const struct ro2ib_ni *ni);

/*
 * Memory of a GPU, through the provider that is registered with LNet. @dev is
 * the device that the DMA goes through, or NULL; @write: the device writes into
 * the memory.
 *
 * Mapping returns the number of elements with DMA addresses, 0 if the pages have
 * no provider, or a negative errno; process context. A mapping is unmapped once,
 * with the same arguments; any context except hard interrupts.
 */
int ro2ib_lnet_gpu_map_sg(struct device *dev, struct scatterlist *sg, u32 n,
			  bool write);
void ro2ib_lnet_gpu_unmap_sg(struct device *dev, struct scatterlist *sg, u32 n,
			     bool write);
/* Returns whether a page stands for such memory; any context. */
bool ro2ib_lnet_gpu_has(struct page *page);

/*
 * Parameter "access": returns whether this peer may connect with the NI. Any
 * context.
 */
bool ro2ib_access_allows(const struct ro2ib_ni *ni, u64 peer);

/* Tunables of a running NI as they are in force; any context. */
u32 ro2ib_ni_conns_per_peer(const struct ro2ib_ni *ni);		/* 1..127 */
s32 ro2ib_ni_tos(const struct ro2ib_ni *ni);			/* -1..255 */
u32 ro2ib_ni_peer_credits(const struct ro2ib_ni *ni);		/* 1..255 */
u32 ro2ib_ni_peer_credits_hiw(const struct ro2ib_ni *ni);
/*
 * Number of messages that LNet hands over for one peer at a time, an upper
 * limit of the mark above. 1..255
 */
u32 ro2ib_ni_lnet_credits(const struct ro2ib_ni *ni);

/*
 * Tunables of a running NI that fall back to the module parameter of the same
 * name: the type of the value, and the connections that a change has effect on.
 * ro2ib_param_<name>() is in params.c.
 */
#define RO2IB_PARAM_TUNABLES(X)					\
	X(retry_count, u8, RO2IB_NEW_CONNS)	/* 0..7 */	\
	X(rnr_retry_count, u8, RO2IB_NEW_CONNS)	/* 0..7 */	\
	X(timeout, u32, RO2IB_ALL_CONNS)	/* s, > 0 */	\
	X(keepalive, u32, RO2IB_ALL_CONNS)	/* s; 0: off */	\
	X(probe, u32, RO2IB_ALL_CONNS)		/* ms; 0: off */

/* Not by the macro: bindgen 0.69.4 does not see functions that it declares. */
u8 ro2ib_param_retry_count(void);
u8 ro2ib_param_rnr_retry_count(void);
u32 ro2ib_param_timeout(void);
u32 ro2ib_param_keepalive(void);
u32 ro2ib_param_probe(void);
u8 ro2ib_ni_retry_count(const struct ro2ib_ni *ni);
u8 ro2ib_ni_rnr_retry_count(const struct ro2ib_ni *ni);
u32 ro2ib_ni_timeout(const struct ro2ib_ni *ni);
u32 ro2ib_ni_keepalive(const struct ro2ib_ni *ni);
u32 ro2ib_ni_probe(const struct ro2ib_ni *ni);

/* Values of the parameter "ni_tune" for an NI. */
enum ro2ib_tune {
	/* Not set. */
	RO2IB_TUNE_UNSET = -2,
};

/* All tunables that may change while an NI runs: the keys of "ni_tune". */
#define RO2IB_RUNNING_TUNABLES(X)			\
	X(conns_per_peer, u32, RO2IB_NEW_CONNS)		\
	X(tos, s32, RO2IB_NEW_CONNS)			\
	X(peer_credits, u32, RO2IB_NEW_CONNS)		\
	RO2IB_PARAM_TUNABLES(X)

struct ro2ib_tuning {
#define RO2IB_TUNABLE(name, type, conns)	s32 name;
	RO2IB_RUNNING_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE
};

/*
 * Parsers of the administrator's texts on the Rust side; the texts are not
 * terminated. The checks return the number of clauses; or log the error, and
 * return -EINVAL. Any context, also before the module is initialised.
 */
int ro2ib_rs_check_access(const char *text, size_t len);
int ro2ib_rs_check_tune(const char *text, size_t len);
bool ro2ib_rs_access_allows(const char *text, size_t len, u64 ni, u64 peer);
void ro2ib_rs_tuning(const char *text, size_t len, u64 ni,
		     struct ro2ib_tuning *out);

/* Network namespace references; any context. */
void ro2ib_net_get(struct net *net);
void ro2ib_net_put(struct net *net);

/* Parameters that may change at run time; any context. */
bool ro2ib_param_cksum(void);
bool ro2ib_param_require_privileged_port(void);
bool ro2ib_param_use_privileged_port(void);

/*
 * LNet's debug log; the values are libcfs's. The words select the enabled
 * lines: read them at any time.
 */
enum ro2ib_dk_mask {
	RO2IB_DK_NETERROR	= 0x00000100,
	RO2IB_DK_NET		= 0x00000200,
	/* Always shown, and on the console. */
	RO2IB_DK_CONSOLE	= 0x02000000,
	/* The bit of this driver in the subsystems. */
	RO2IB_DK_LND		= 0x00000800,
};

extern const unsigned int *const ro2ib_dk_debug;
extern const unsigned int *const ro2ib_dk_subsystems;

/*
 * Writes one line of @len bytes without a newline; @file and @fn name the place
 * in the source. Any context except NMI.
 */
void ro2ib_dk_line(u32 mask, const char *file, const char *fn, u32 line,
		   const char *text, u32 len);

/*
 * Trace points, one bit each, set while the event is enabled. Read the word at
 * any time; call a function if its bit is set. Any context except NMI.
 */
enum ro2ib_trace_bit {
	RO2IB_TRACE_CONN_STATE	= 0x001,
	RO2IB_TRACE_STALL	= 0x002,
	RO2IB_TRACE_STALL_OVER	= 0x004,
	RO2IB_TRACE_POST	= 0x008,
	RO2IB_TRACE_COMPLETE	= 0x010,
	RO2IB_TRACE_RECEIVE	= 0x020,
	RO2IB_TRACE_STAGE	= 0x040,
	RO2IB_TRACE_CLOSE	= 0x080,
	RO2IB_TRACE_REFUSE	= 0x100,
};

extern u32 ro2ib_trace_on;

/* Bytes of a NID as text, and of a word, filled up with NUL: at least one. */
#define RO2IB_TRACE_NID		32
#define RO2IB_TRACE_WORD	24

/* Connection that an event belongs to. */
struct ro2ib_trace_conn {
	char ni[RO2IB_TRACE_NID];
	char peer[RO2IB_TRACE_NID];
	/* of this NI; 0: there was no connection object */
	u32 number;
	/* of the queue pair here; 0: there is none */
	u32 qpn;
	/* this side requested it */
	bool active;
};

/* Each text has the length given above. */
void ro2ib_trace_conn_state(const struct ro2ib_trace_conn *c, const char *from,
			    const char *to, const char *why);
void ro2ib_trace_stall(const struct ro2ib_trace_conn *c, const char *want,
		       u32 queued, u32 credits);
void ro2ib_trace_stall_over(const struct ro2ib_trace_conn *c, const char *want,
			    u64 ns);
void ro2ib_trace_post(const struct ro2ib_trace_conn *c, const char *op, u32 tx,
		      u32 bytes, u32 credits);
void ro2ib_trace_complete(const struct ro2ib_trace_conn *c, const char *op,
			  u32 tx, const char *result);
void ro2ib_trace_receive(const struct ro2ib_trace_conn *c, const char *op,
			 u32 bytes, u32 credits);
void ro2ib_trace_stage(const struct ro2ib_trace_conn *c, const char *op,
		       const char *stage, u64 ns);
void ro2ib_trace_close(const struct ro2ib_trace_conn *c, bool up,
		       const char *by, const char *cause, const char *detail);
void ro2ib_trace_refuse(const char *ni, const char *peer, const char *cause);

/*
 * Sends a uevent for a change of the device of an NI, for programs that watch
 * it (udev). Process context, may sleep.
 */
void ro2ib_uevent(const char *what, const char *ni, const char *device);

#endif /* RO2IBLND_SHIM_H */
