// SPDX-License-Identifier: GPL-2.0
/* struct rdma_cm_id and its events. */
#include <linux/error-injection.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/preempt.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>
#include <net/route.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"
#include "ro2iblnd_netdev_carrier.h"

#ifndef RO2IB_HAVE_SYSTEM_DFL_WQ
#define system_dfl_wq system_unbound_wq
#endif

/* Source ports below this need a privilege on the other side (o2iblnd). */
#define RO2IB_PRIVILEGED_PORTS 1024

static bool from_sockaddr(const struct sockaddr_storage *ss,
			  struct ro2ib_addr *out)
{
	*out = (struct ro2ib_addr){};
	if (ss->ss_family == AF_INET) {
		const struct sockaddr_in *s = (const void *)ss;

		memcpy(out->ip, &s->sin_addr, sizeof(s->sin_addr));
		out->port = be16_to_cpu(s->sin_port);
		return true;
	}
	if (ss->ss_family == AF_INET6) {
		const struct sockaddr_in6 *s = (const void *)ss;

		memcpy(out->ip, &s->sin6_addr, sizeof(s->sin6_addr));
		out->port = be16_to_cpu(s->sin6_port);
		out->scope_id = s->sin6_scope_id;
		out->v6 = true;
		return true;
	}
	return false;
}

static void to_sockaddr(const struct ro2ib_addr *a, u16 port,
			struct sockaddr_storage *ss)
{
	memset(ss, 0, sizeof(*ss));
	if (a->v6) {
		struct sockaddr_in6 *s = (void *)ss;

		s->sin6_family = AF_INET6;
		s->sin6_port = cpu_to_be16(port);
		s->sin6_scope_id = a->scope_id;
		memcpy(&s->sin6_addr, a->ip, sizeof(s->sin6_addr));
	} else {
		struct sockaddr_in *s = (void *)ss;

		s->sin_family = AF_INET;
		s->sin_port = cpu_to_be16(port);
		memcpy(&s->sin_addr, a->ip, sizeof(s->sin_addr));
	}
}

struct rdma_cm_id *ro2ib_cm_create(struct net *net, ro2ib_cm_handler handler,
				   void *context)
{
	return rdma_create_id(net, handler, context, RDMA_PS_TCP, IB_QPT_RC);
}

void *ro2ib_cm_context(struct rdma_cm_id *id)
{
	return id->context;
}

/* Only inside the CONNECT_REQUEST event of @id, which holds its mutex. */
void ro2ib_cm_adopt(struct rdma_cm_id *id, ro2ib_cm_handler handler,
		    void *context)
{
	id->context = context;
	id->event_handler = handler;
}

struct ib_device *ro2ib_cm_device(struct rdma_cm_id *id)
{
	return id->device;
}

u32 ro2ib_cm_port(struct rdma_cm_id *id)
{
	return id->port_num;
}

bool ro2ib_cm_dst_addr(struct rdma_cm_id *id, struct ro2ib_addr *out)
{
	return from_sockaddr(&id->route.addr.dst_addr, out);
}

void ro2ib_cm_event_get(struct rdma_cm_id *id, struct rdma_cm_event *ev,
			struct ro2ib_cm_event *out)
{
	*out = (struct ro2ib_cm_event){
		.event = ev->event,
		.status = ev->status,
	};
	switch (ev->event) {
	case RDMA_CM_EVENT_REJECTED:
		/*
		 * On iWARP the core expects -ECONNREFUSED for the private data
		 * of the listener, but siw passes -ECONNRESET.
		 */
		if (ev->status < 0) {
			out->private_data = ev->param.conn.private_data;
			out->private_data_len = ev->param.conn.private_data_len;
			break;
		}
		out->private_data = rdma_consumer_reject_data(id, ev,
						&out->private_data_len);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
		out->private_data = ev->param.conn.private_data;
		out->private_data_len = ev->param.conn.private_data_len;
		out->qpn = ev->param.conn.qp_num;
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST &&
		    id->route.path_rec)
			out->packet_life_time =
				id->route.path_rec->packet_life_time;
		break;
	default:
		break;
	}
	if (!out->private_data)
		out->private_data_len = 0;
}

int ro2ib_cm_bind(struct rdma_cm_id *id, const struct ro2ib_addr *addr)
{
	struct sockaddr_storage ss;

	to_sockaddr(addr, addr->port, &ss);
	return rdma_bind_addr(id, (struct sockaddr *)&ss);
}

int ro2ib_cm_listen(struct rdma_cm_id *id, int backlog)
{
	return rdma_listen(id, backlog);
}

/*
 * Resolving an address, and destroying an id whose address is being resolved,
 * wait for a work item on a queue of the core without WQ_MEM_RECLAIM. A worker
 * of a queue with WQ_MEM_RECLAIM must not do that: older kernels warn of it
 * (check_flush_dependency), although no work item of that queue has to run. So
 * a worker of another queue does it, and the caller sleeps.
 *
 * While memory is short, that worker may not exist yet. A queue of the driver
 * with a rescuer would not help: each connect also needs the core's own queues
 * ib_addr and ib_cm, which have none.
 */
struct elsewhere {
	struct work_struct work;
	struct completion done;
	struct rdma_cm_id *id;
	struct sockaddr *dst;	/* NULL: destroy the id */
	u32 timeout_ms;
	int rc;
};

static void do_elsewhere(struct work_struct *work)
{
	struct elsewhere *e = container_of(work, struct elsewhere, work);
	unsigned int nofs = memalloc_nofs_save();

	if (e->dst) {
		e->rc = rdma_resolve_addr(e->id, NULL, e->dst, e->timeout_ms);
	} else {
		/*
		 * The core cancels a request only if the id waits for it. If the
		 * device was removed before the request was queued, the id does
		 * not, and the request would use it when it is freed.
		 */
		rdma_addr_cancel(&e->id->route.addr.dev_addr);
		rdma_destroy_id(e->id);
	}
	memalloc_nofs_restore(nofs);
	complete(&e->done);
}

static int elsewhere(struct rdma_cm_id *id, struct sockaddr *dst,
		     u32 timeout_ms)
{
	struct elsewhere e = {
		.id = id,
		.dst = dst,
		.timeout_ms = timeout_ms,
	};

	init_completion(&e.done);
	INIT_WORK_ONSTACK(&e.work, do_elsewhere);
	queue_work(system_dfl_wq, &e.work);
	wait_for_completion(&e.done);
	destroy_work_on_stack(&e.work);
	return e.rc;
}

/*
 * Binds an id to the device of @src, and begins to resolve @dst. Under the
 * handler mutex, because the core warns if the device is removed between both.
 * Not for a second call, which waits for a handler.
 */
static int bind_and_resolve(struct rdma_cm_id *id, struct sockaddr_storage *src,
			    struct sockaddr_storage *dst, u32 timeout_ms)
{
	int rc;

	rdma_lock_handler(id);
	rc = rdma_resolve_addr(id, (struct sockaddr *)src,
			       (struct sockaddr *)dst, timeout_ms);
	rdma_unlock_handler(id);
	return rc;
}

noinline int ro2ib_cm_resolve_addr(struct rdma_cm_id *id,
				   const struct ro2ib_addr *src,
				   const struct ro2ib_addr *dst,
				   u32 timeout_ms)
{
	struct sockaddr_storage s, d;

	to_sockaddr(dst, dst->port, &d);
	/* That cancels the first query, which may not have returned yet. */
	if (!src)
		return elsewhere(id, (struct sockaddr *)&d, timeout_ms);
	to_sockaddr(src, src->port, &s);
	return bind_and_resolve(id, &s, &d, timeout_ms);
}
ALLOW_ERROR_INJECTION(ro2ib_cm_resolve_addr, ERRNO);

/* Spreads the ports of connections that cannot share one. */
static atomic_t ro2ib_next_port = ATOMIC_INIT(0);

/*
 * Resolves from a privileged source port. For a worker: the caller of the
 * driver need not have the privilege.
 *
 * With @share connections may share a port. The first candidate is the port of
 * @src, then the next lower ones: the port selects the path of a RoCE v2
 * connection. Over TCP (iWARP) connections cannot share a port, and a port that
 * was used a moment ago is not free yet, which only the connect reports. So
 * each connection begins with the next port.
 */
noinline int ro2ib_cm_resolve_addr_privileged(struct rdma_cm_id *id,
					      const struct ro2ib_addr *src,
					      const struct ro2ib_addr *dst,
					      u32 timeout_ms, bool share)
{
	struct sockaddr_storage s, d;
	unsigned int i, first = 0;
	u16 port;
	int rc;

	if (share) {
		rc = rdma_set_reuseaddr(id, 1);
		if (rc)
			return rc;
		if (src->port && src->port < RO2IB_PRIVILEGED_PORTS)
			first = RO2IB_PRIVILEGED_PORTS - 1 - src->port;
	} else {
		first = (unsigned int)atomic_inc_return(&ro2ib_next_port) %
			(RO2IB_PRIVILEGED_PORTS / 2);
	}
	to_sockaddr(dst, dst->port, &d);
	rc = -EADDRINUSE;
	for (i = 0; i < RO2IB_PRIVILEGED_PORTS - 1; i++) {
		port = RO2IB_PRIVILEGED_PORTS - 1 -
		       (first + i) % (RO2IB_PRIVILEGED_PORTS - 1);
		to_sockaddr(src, port, &s);
		rc = bind_and_resolve(id, &s, &d, timeout_ms);
		if (rc != -EADDRINUSE && rc != -EADDRNOTAVAIL)
			break;
	}
	return rc;
}
ALLOW_ERROR_INJECTION(ro2ib_cm_resolve_addr_privileged, ERRNO);

noinline int ro2ib_cm_resolve_route(struct rdma_cm_id *id, u32 timeout_ms)
{
	return rdma_resolve_route(id, timeout_ms);
}
ALLOW_ERROR_INJECTION(ro2ib_cm_resolve_route, ERRNO);

/* Without it the other side waits for the time of the core: 655 ms. */
int ro2ib_cm_set_min_rnr_timer(struct rdma_cm_id *id, u8 timer)
{
#ifdef RO2IB_HAVE_RDMA_SET_MIN_RNR_TIMER
	return rdma_set_min_rnr_timer(id, timer);
#else
	return -EOPNOTSUPP;
#endif
}

/*
 * Sets the path MTU between route resolution and connect, also above the path
 * MTU of the path record; to no more than @most, the current limit of the port,
 * because the queue pair would not connect otherwise. Under the handler mutex:
 * resolving a route again frees the record.
 */
int ro2ib_cm_set_path_mtu(struct rdma_cm_id *id, u32 bytes, u32 most)
{
	int mtu = ib_mtu_int_to_enum(bytes);

	if (ib_mtu_enum_to_int(mtu) != bytes || !id->route.path_rec)
		return -EINVAL;
	id->route.path_rec->mtu = min(mtu, (int)ib_mtu_int_to_enum(most));
	return 0;
}

/*
 * Returns the GID that a request over RoCE came from: the GID that the peer's
 * CM wrote into it, to which the answer goes. The address beside it is only the
 * content of the CM's header. Only inside the CONNECT_REQUEST event of @id.
 */
bool ro2ib_cm_roce_gid(struct rdma_cm_id *id, u8 *gid)
{
	const struct sa_path_rec *rec = id->route.path_rec;

	if (!rec || !rdma_protocol_roce(id->device, id->port_num))
		return false;
	memcpy(gid, rec->dgid.raw, sizeof(rec->dgid.raw));
	return true;
}

/*
 * Returns the path, and the retry counts that the CM gave the queue pair, so
 * that no device is queried. Both sides negotiate these, so they are known
 * after the handshake. iWARP has no path record, and TCP retransmits.
 */
void ro2ib_cm_path(struct rdma_cm_id *id, struct ro2ib_cm_path *out)
{
	const struct sa_path_rec *rec = id->route.path_rec;
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RTS };
	int mask = 0;

	*out = (struct ro2ib_cm_path){
		.port = id->port_num,
		.tos = -1,
		.sl = -1,
		.retry_count = -1,
		.rnr_retry_count = -1,
		.ack_timeout = -1,
	};
	if (rec) {
		memcpy(out->sgid, rec->sgid.raw, sizeof(out->sgid));
		memcpy(out->dgid, rec->dgid.raw, sizeof(out->dgid));
		out->mtu = max(ib_mtu_enum_to_int(rec->mtu), 0);
		out->tos = rec->traffic_class;
		out->sl = rec->sl;
	}
	if (!id->device || rdma_init_qp_attr(id, &attr, &mask))
		return;
	if (mask & IB_QP_RETRY_CNT)
		out->retry_count = attr.retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		out->rnr_retry_count = attr.rnr_retry;
	if (mask & IB_QP_TIMEOUT)
		out->ack_timeout = attr.timeout;
}

/*
 * Returns whether the address of the id has left its device, as when a bond
 * fails over to another device, or gets another hardware address. Objects of a
 * removed GID do not work again if the GID returns. RoCE only: otherwise a GID
 * belongs to the port, not to the address.
 */
static bool lost_address(const struct rdma_cm_id *id)
{
	const struct ib_gid_attr *attr = id->route.addr.dev_addr.sgid_attr;
	bool lost;

	if (!attr)
		return false;
	rcu_read_lock();
	lost = IS_ERR(rdma_read_gid_attr_ndev_rcu(attr));
	rcu_read_unlock();
	return lost;
}

/*
 * Returns whether a message of the CM can leave for the other side. rxe looks
 * up a route for each packet, as below (rxe_find_route4()); if there is no
 * route, or if its device does not take the packet, as without a carrier, rxe
 * puts its queue pair for such messages into the error state, where it stays.
 * Other providers of RoCE drop the packet, so that not sending it loses
 * nothing. On InfiniBand the subnet manager's routes are not the node's.
 *
 * A message without a GID cannot leave either, and rxe would do the same. But
 * with RoCE v2 and a flow label, which rdma_cm always sets, no address handle
 * is created then (rdma_lag_get_ah_roce_slave()): no new message reaches the
 * provider. Messages that the CM resends do.
 *
 * The addresses do not change once they are resolved. The caller has the
 * handler mutex: the CM replaces the path, and the GID, under it.
 */
enum ro2ib_cm_reachability ro2ib_cm_reachability(struct rdma_cm_id *id)
{
	const struct rdma_addr *addr = &id->route.addr;
	const struct sockaddr_in *src = (const void *)&addr->src_addr;
	const struct sockaddr_in *dst = (const void *)&addr->dst_addr;
	struct flowi4 fl = {};
	struct rtable *rt;
	bool carries;

	if (!id->device || !rdma_protocol_roce(id->device, id->port_num) ||
	    src->sin_family != AF_INET || dst->sin_family != AF_INET)
		return RO2IB_CM_REACHABLE;
	if (lost_address(id))
		return id->route.path_rec && !id->route.path_rec->flow_label ?
			RO2IB_CM_NO_ROUTE : RO2IB_CM_NO_ADDRESS;

	fl.flowi4_oif = addr->dev_addr.bound_dev_if;
	fl.flowi4_proto = IPPROTO_UDP;
	fl.saddr = src->sin_addr.s_addr;
	fl.daddr = dst->sin_addr.s_addr;
	rt = ip_route_output_key(addr->dev_addr.net, &fl);
	if (IS_ERR(rt))
		return RO2IB_CM_NO_ROUTE;
	/* The route does not keep the interface from being unregistered. */
	rcu_read_lock();
	carries = ro2ib_netdev_carries(READ_ONCE(rt->dst.dev));
	rcu_read_unlock();
	ip_rt_put(rt);
	return carries ? RO2IB_CM_REACHABLE : RO2IB_CM_NO_ROUTE;
}

static struct rdma_conn_param conn_param(const struct ro2ib_conn_param *p)
{
	return (struct rdma_conn_param){
		.private_data = p->private_data,
		.private_data_len = p->private_data_len,
		.flow_control = 1,
		.retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
#ifdef RO2IB_HAVE_CONN_PARAM_MIN_RNR_TIMER
		.min_rnr_timer = p->min_rnr_timer,
#endif
	};
}

noinline int ro2ib_cm_connect_locked(struct rdma_cm_id *id,
				     const struct ro2ib_conn_param *param)
{
	struct rdma_conn_param p = conn_param(param);

	return rdma_connect_locked(id, &p);
}
ALLOW_ERROR_INJECTION(ro2ib_cm_connect_locked, ERRNO);

noinline int ro2ib_cm_accept_locked(struct rdma_cm_id *id,
				    const struct ro2ib_conn_param *param)
{
	struct rdma_conn_param p = conn_param(param);

	return rdma_accept(id, &p);
}
ALLOW_ERROR_INJECTION(ro2ib_cm_accept_locked, ERRNO);

int ro2ib_cm_reject(struct rdma_cm_id *id, const void *data, u8 len)
{
	return rdma_reject(id, data, len, IB_CM_REJ_CONSUMER_DEFINED);
}

/*
 * Destroys an id; sleeps, also without CONFIG_DEBUG_ATOMIC_SLEEP. @unresolved: its
 * address is not resolved, and a request of the core for it may be queued.
 */
void ro2ib_cm_destroy(struct rdma_cm_id *id, bool unresolved)
{
	WARN_ON_ONCE(in_interrupt());
	if (unresolved)
		elsewhere(id, NULL, 0);
	else
		rdma_destroy_id(id);
}
