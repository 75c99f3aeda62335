// SPDX-License-Identifier: GPL-2.0
/*
 * Driver as LNet sees it: struct lnet_lnd and its trampolines, and the LNet
 * functions as the Rust driver sees them.
 *
 * The functions here convert between LNet's structures and the flat ones of
 * ro2iblnd_shim.h. The Rust side takes all decisions.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bug.h>
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/list.h>
#include <linux/preempt.h>
#include <linux/spinlock.h>
#include <linux/uio.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>

#include "ro2iblnd_helpers.h"
#include "internal.h"

/* Set by ro2ib_shim_register(), before LNet can call a function here. */
const struct ro2ib_lnd_ops *ro2ib_ops;
static void *ro2ib_driver;

static const struct lnet_lnd ro2ib_lnd;

static_assert(sizeof(struct lnet_hdr_nid4) == RO2IB_LNET_HDR_SIZE);

static struct ro2ib_ni *ro2ib_of(struct lnet_ni *lni)
{
	return lni->ni_data;
}

/*
 * Messages that the caller cannot finalize, because it may hold a lock. A work
 * item finalizes them later, so that no message is lost: LNet has the credit of
 * each and waits for it when the NI is deleted.
 */
static LIST_HEAD(ro2ib_late);
static DEFINE_SPINLOCK(ro2ib_late_lock);

static void ro2ib_finalize_all_late(struct work_struct *work)
{
	struct lnet_msg *msg, *next;
	LIST_HEAD(late);

	spin_lock_irq(&ro2ib_late_lock);
	list_splice_init(&ro2ib_late, &late);
	spin_unlock_irq(&ro2ib_late_lock);
	list_for_each_entry_safe(msg, next, &late, msg_list) {
		list_del_init(&msg->msg_list);
		lnet_finalize(msg, msg->msg_ev.status);
	}
}

static DECLARE_WORK(ro2ib_late_work, ro2ib_finalize_all_late);

static int ro2ib_send(struct lnet_ni *lni, void *private, struct lnet_msg *msg)
{
	struct ro2ib_ni *ni = ro2ib_of(lni);
	struct ro2ib_send_req req;

	if (!nid_is_nid4(&msg->msg_target.nid)) {
		pr_err_ratelimited("%s: next hop is not an IPv4 NID: o2ib supports IPv4 NIDs only\n",
				   ni->name);
		return -EAFNOSUPPORT;
	}
	/* The NIDs of a routed message need not be of this net. */
	if (!nid_is_nid4(&msg->msg_hdr.src_nid) ||
	    !nid_is_nid4(&msg->msg_hdr.dest_nid)) {
		pr_err_ratelimited("%s: a message from or to an IPv6 NID: o2ib supports IPv4 NIDs only\n",
				   ni->name);
		return -EAFNOSUPPORT;
	}

	ro2ib_send_req_fill(&req, msg);
	return ro2ib_ops->send(ni->priv, &req);
}

static int ro2ib_eager_recv(struct lnet_ni *lni, void *private,
			    struct lnet_msg *msg, void **new_private)
{
	ro2ib_ops->eager_recv(ro2ib_of(lni)->priv, private);
	*new_private = private;
	return 0;
}

static int ro2ib_recv_common(struct lnet_ni *lni, void *private,
			     struct ro2ib_recv_req *req)
{
	/* LNet describes the sink of an optimised GET in the same way. */
	if (req->msg && req->pages.nob)
		req->pages.gpu = lnet_md_is_gpu(req->msg->msg_md);
	return ro2ib_ops->recv(ro2ib_of(lni)->priv, private, req);
}

#ifdef RO2IB_HAVE_RECV_ITER
static int ro2ib_recv(struct lnet_ni *lni, void *private, struct lnet_msg *msg,
		      int delayed, struct iov_iter *to, unsigned int rlen)
{
	struct ro2ib_recv_req req = {
		.msg = msg,
	};

	/* LNet's iterator runs over the message's own array of pieces. */
	if (WARN_ON_ONCE(!iov_iter_is_bvec(to))) {
		/*
		 * The driver returns the buffer in any case; LNet finalizes the
		 * message.
		 */
		req.msg = NULL;
		ro2ib_recv_common(lni, private, &req);
		return -EINVAL;
	}

	if (iov_iter_count(to))
		req.pages = (struct ro2ib_payload) {
			.bv = to->bvec,
			.nr = to->nr_segs,
			.offset = to->iov_offset,
			.nob = iov_iter_count(to),
		};

	return ro2ib_recv_common(lni, private, &req);
}
#else
static int ro2ib_recv(struct lnet_ni *lni, void *private, struct lnet_msg *msg,
		      int delayed, unsigned int niov, struct bio_vec *kiov,
		      unsigned int offset, unsigned int mlen,
		      unsigned int rlen)
{
	struct ro2ib_recv_req req = {
		.msg = msg,
	};

	if (mlen)
		req.pages = (struct ro2ib_payload) {
			.bv = kiov,
			.nr = niov,
			.offset = offset,
			.nob = mlen,
		};

	return ro2ib_recv_common(lni, private, &req);
}
#endif

static int ro2ib_ctl(struct lnet_ni *lni, unsigned int cmd, void *arg)
{
	struct libcfs_ioctl_data *data = arg;
	void *priv = ro2ib_of(lni)->priv;
	u64 nid = 0;
	u32 val = 0;
	int rc;

	switch (cmd) {
	case IOC_LIBCFS_GET_PEER:
		/*
		 * "lnetctl debug peer" names a peer, "lctl peer_list" does not.
		 */
		if (data->ioc_nid && data->ioc_nid != RO2IB_NID_ANY)
			return ro2ib_ops->debug_peer(priv, data->ioc_nid);
		rc = ro2ib_ops->get_peer(priv, data->ioc_count, &nid, &val);
		if (!rc) {
			data->ioc_nid = nid;
			data->ioc_count = val;
		}
		return rc;
	case IOC_LIBCFS_DEL_PEER:
		return ro2ib_ops->del_peer(priv, data->ioc_nid);
	case IOC_LIBCFS_GET_CONN:
		rc = ro2ib_ops->get_conn(priv, data->ioc_count, &nid, &val);
		if (!rc) {
			data->ioc_nid = nid;
			data->ioc_u32[0] = val;
		}
		return rc;
	case IOC_LIBCFS_CLOSE_CONNECTION:
		return ro2ib_ops->close_conns(priv, data->ioc_nid);
	default:
		return -EINVAL;
	}
}

/*
 * Returns the error of a start for LNet. LNet 2.16 and later take some errors
 * for their own: lnetctl then explains another fault, or the NI is freed twice
 * (EEXIST). The driver has logged the reason.
 */
static int ro2ib_start_error(int rc)
{
	switch (rc) {
	case -EEXIST:
	case -ENOENT:
	case -ENODEV:
	case -ERANGE:
	case -ENOSPC:
	case -EBUSY:
		return -ENETDOWN;
	default:
		return rc;
	}
}

static int ro2ib_startup(struct lnet_ni *lni)
{
	struct ro2ib_ni_cfg cfg = {};
	struct ro2ib_ni *ni;
	void *priv = NULL;
	int rc;

	/* An NI pins the module; LNet holds no reference of its own. */
	if (!try_module_get(THIS_MODULE))
		return -ENETDOWN;

	rc = ro2ib_ni_select(lni, &cfg);
	if (rc)
		goto out_module;
	rc = ro2ib_tunables_startup(lni, &cfg);
	if (rc)
		goto out_module;
	ro2ib_params_fill(&cfg);

	ni = ro2ib_ni_alloc(lni, &cfg);
	if (!ni) {
		rc = -ENOMEM;
		goto out_module;
	}
	lni->ni_data = ni;

	ro2ib_ni_get(ni);
	rc = ro2ib_ops->startup(&cfg, ni, ro2ib_driver, &priv);
	if (rc)
		goto out_ni;

	ro2ib_tunables_derive(ni);
	/* Pairs with the load in ro2ib_lnet_find_ni(). */
	smp_store_release(&ni->priv, priv);
	ro2ib_ni_publish(ni);
	return 0;

out_ni:
	lni->ni_data = NULL;
	ro2ib_ni_release(ni);
out_module:
	module_put(THIS_MODULE);
	return ro2ib_start_error(rc);
}

static void ro2ib_shutdown(struct lnet_ni *lni)
{
	struct ro2ib_ni *ni = ro2ib_of(lni);

	/* LNet may shut down an NI whose startup failed in LNet. */
	if (!ni)
		return;

	ro2ib_ni_unpublish(ni);
	ro2ib_ops->shutdown(ni->priv);
	lni->ni_data = NULL;
	ro2ib_ni_release(ni);
	module_put(THIS_MODULE);
}

#ifdef RO2IB_HAVE_GET_TIMEOUT
static int ro2ib_get_timeout(void)
{
	return ro2ib_param_timeout();
}
#endif

#if defined(RO2IB_HAVE_LND_NL) && !defined(RO2IB_HAVE_EXPORT_BACKUP)
static int ro2ib_nl_get(int cmd, struct sk_buff *skb, int type, void *data)
{
	return ro2ib_nl_get_all(cmd, skb, type, data, false);
}
#endif

static const struct lnet_lnd ro2ib_lnd = {
	.lnd_type		= O2IBLND,
	.lnd_startup		= ro2ib_startup,
	.lnd_shutdown		= ro2ib_shutdown,
	.lnd_ctl		= ro2ib_ctl,
	.lnd_send		= ro2ib_send,
	.lnd_eager_recv		= ro2ib_eager_recv,
	.lnd_recv		= ro2ib_recv,
	.lnd_get_dev_prio	= ro2ib_get_dev_prio,
#ifdef RO2IB_HAVE_GET_TIMEOUT
	.lnd_get_timeout	= ro2ib_get_timeout,
#endif
#ifdef RO2IB_HAVE_TUN_DEFAULTS
	.lnd_tun_defaults	= ro2ib_tun_defaults,
#endif
#ifdef RO2IB_HAVE_EXPORT_BACKUP
	.lnd_nl_get		= ro2ib_nl_get_all,
#elif defined(RO2IB_HAVE_LND_NL)
	.lnd_nl_get		= ro2ib_nl_get,
#endif
#ifdef RO2IB_HAVE_LND_NL
	.lnd_nl_set		= ro2ib_nl_set,
	.lnd_keys		= &ro2ib_tunables_keys,
#endif
};

int ro2ib_shim_register(const struct ro2ib_lnd_ops *ops, void *driver)
{
	int rc;

	if (ro2ib_ops)
		return -EBUSY;

	rc = libcfs_setup();
	if (rc) {
		pr_err("libcfs setup failed: %d\n", rc);
		return rc;
	}

	rc = ro2ib_notifiers_register();
	if (rc) {
		pr_err("cannot watch network interfaces: %d\n", rc);
		return rc;
	}

	/*
	 * LNet panics on a second driver of a type; refuse instead. The name of
	 * ko2iblnd is the lock: its module takes the name before it registers.
	 */
	rc = ro2ib_module_link_add();
#ifdef RO2IB_HAVE_LN_LNDS
	if (!rc && READ_ONCE(the_lnet.ln_lnds[O2IBLND])) {
		ro2ib_module_link_remove();
		rc = -EBUSY;
	}
#endif
	if (rc) {
		pr_err("another driver of network type o2ib is loaded; unload it first\n");
		ro2ib_notifiers_unregister();
		return rc;
	}

	ro2ib_ops = ops;
	ro2ib_driver = driver;
	lnet_register_lnd(&ro2ib_lnd);
	ro2ib_print_version();
	return 0;
}

void ro2ib_shim_unregister(void)
{
	lnet_unregister_lnd(&ro2ib_lnd);
	ro2ib_module_link_remove();
	/*
	 * No NI is left, so no message is queued; the last work may still run.
	 */
	flush_work(&ro2ib_late_work);
	ro2ib_notifiers_unregister();
	ro2ib_ops = NULL;
	ro2ib_driver = NULL;
}

/* Functions of LNet for the driver. */

u32 ro2ib_param_timeout(void)
{
	u32 t = ro2ib_param_timeout_raw();

	if (!t)
		t = lnet_get_lnd_timeout();
	/* LNet's own value can be rounded down to 0. */
	return t ?: 1;
}

bool ro2ib_ni_active(const struct ro2ib_ni *ni)
{
	return READ_ONCE(ni->ni->ni_state) == LNET_NI_STATE_ACTIVE;
}

int ro2ib_lnet_peer_cpu(struct ro2ib_ni *ni, u64 nid, u32 salt)
{
	const struct cpumask *mask = cpu_online_mask;
	unsigned int weight;
	struct lnet_nid n;
	int cpu;

	lnet_nid4_to_nid(nid, &n);
#ifdef RO2IB_HAVE_CPT_MASK
	mask = *cfs_cpt_cpumask(lnet_cpt_table(), lnet_nid2cpt(&n, ni->ni));
#endif
	weight = cpumask_weight_and(mask, cpu_online_mask);
	if (!weight)
		return cpumask_first(cpu_online_mask);

	cpu = cpumask_nth_and((lower_32_bits(nid) + salt) % weight, mask,
			      cpu_online_mask);
	return cpu < nr_cpu_ids ? cpu : cpumask_first(cpu_online_mask);
}

int ro2ib_lnet_parse(struct ro2ib_ni *ni, const u8 *hdr, u64 from, void *rx,
		     bool rdma)
{
	/* Large, and written in full below: do not clear it first. */
	struct lnet_nid nid __uninitialized;
	struct lnet_hdr h __uninitialized;
	int rc;

	lnet_hdr_from_nid4(&h, (const struct lnet_hdr_nid4 *)hdr);
	lnet_nid4_to_nid(from, &nid);
	rc = lnet_parse(ni->ni, &h, &nid, rx, rdma);
	if (unlikely(rc < 0))
		return rc;
	return READ_ONCE(ni->ni->ni_state) == LNET_NI_STATE_DELETING;
}

void ro2ib_lnet_finalize_late(struct lnet_msg *msg, int status, u32 health)
{
	unsigned long flags;

	if (health < LNET_MSG_STATUS_END)
		msg->msg_health_status = health;
	msg->msg_ev.status = status;
	spin_lock_irqsave(&ro2ib_late_lock, flags);
	list_add_tail(&msg->msg_list, &ro2ib_late);
	spin_unlock_irqrestore(&ro2ib_late_lock, flags);
	schedule_work(&ro2ib_late_work);
}

void ro2ib_lnet_finalize(struct lnet_msg *msg, int status, u32 health)
{
	/*
	 * LNet may send in this call. Without lockdep the check would cost each
	 * message a call.
	 */
	if (IS_ENABLED(CONFIG_PROVE_LOCKING))
		might_sleep();
	/* LNet asserts this, and an assertion stops the node. */
	if (WARN_ON_ONCE(in_interrupt() || ro2ib_as_interrupt())) {
		ro2ib_lnet_finalize_late(msg, status, health);
		return;
	}

	if (health < LNET_MSG_STATUS_END)
		msg->msg_health_status = health;
	lnet_finalize(msg, status);
}

struct lnet_msg *ro2ib_lnet_create_reply(struct ro2ib_ni *ni,
					 struct lnet_msg *get)
{
	/* LNet asserts these conditions; a GET that LNet forwards has no MD. */
	if (WARN_ON_ONCE(get->msg_type != LNET_MSG_GET || get->msg_routing ||
			 get->msg_target_is_router))
		return NULL;
	return lnet_create_reply_msg(ni->ni, get);
}

int ro2ib_lnet_set_reply_len(struct ro2ib_ni *ni, struct lnet_msg *reply,
			     u32 len)
{
	if (len > reply->msg_ev.mlength)
		return -EPROTO;

	lnet_set_reply_msg_len(ni->ni, reply, len);
	return 0;
}

bool ro2ib_lnet_send_error(struct lnet_msg *msg, u32 *health)
{
	static_assert(sizeof(enum lnet_msg_hstatus) == sizeof(*health));
	return lnet_send_error_simulation(msg, (enum lnet_msg_hstatus *)health);
}

void ro2ib_lnet_notify_down(struct ro2ib_ni *ni, u64 nid, u64 age)
{
	time64_t now = ktime_get_seconds();
	struct lnet_nid n;

	lnet_nid4_to_nid(nid, &n);
	ro2ib_notify(ni->ni, &n, false, false,
		    age < now ? now - (time64_t)age : 0);
}

struct ro2ib_ni *ro2ib_lnet_find_ni(u64 nid, void **priv)
{
	struct ro2ib_ni *ni;
	struct lnet_ni *lni;
	struct lnet_nid n;

	lnet_nid4_to_nid(nid, &n);
	lni = lnet_nid_to_ni_addref(&n);
	if (!lni)
		return NULL;

	/*
	 * The NID comes from the peer's message: it may be the NID of any NI.
	 */
	if (lni->ni_net->net_lnd != &ro2ib_lnd)
		goto out_put;
	ni = ro2ib_of(lni);
	if (!ni)
		goto out_put;
	/* Pairs with the store in ro2ib_startup(). */
	*priv = smp_load_acquire(&ni->priv);
	if (!*priv)
		goto out_put;

	return ni;

out_put:
	lnet_ni_decref(lni);
	return NULL;
}

void ro2ib_lnet_put_found(struct ro2ib_ni *ni)
{
	lnet_ni_decref(ni->ni);
}

static enum dma_data_direction ro2ib_direction(bool write)
{
	return write ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
}

int ro2ib_lnet_gpu_map_sg(struct device *dev, struct scatterlist *sg, u32 n,
			  bool write)
{
	return lnet_rdma_map_sg_attrs(dev, sg, n, ro2ib_direction(write));
}

void ro2ib_lnet_gpu_unmap_sg(struct device *dev, struct scatterlist *sg, u32 n,
			     bool write)
{
	lnet_rdma_unmap_sg(dev, sg, n, ro2ib_direction(write));
}

bool ro2ib_lnet_gpu_has(struct page *page)
{
	return lnet_is_rdma_only_page(page);
}

void ro2ib_net_get(struct net *net)
{
	get_net(net);
}

void ro2ib_net_put(struct net *net)
{
	put_net(net);
}
