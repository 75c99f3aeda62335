// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: LNDs and the life of NIs.
 */
#include <linux/delay.h>
#include <linux/export.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#include "internal.h"

#define LNL_MAX_LNDS	8

static const struct lnet_lnd *lnds[LNL_MAX_LNDS];
/* startup, shutdown and registration, as LNet's ln_lnd_mutex */
static DEFINE_MUTEX(lnd_mutex);
/* one configuration change at a time, as LNet's ln_api_mutex */
static DEFINE_MUTEX(api_mutex);
static LIST_HEAD(nis);
static cpumask_var_t cpt_mask;

void lnet_register_lnd(const struct lnet_lnd *lnd)
{
	unsigned int i;

	mutex_lock(&lnd_mutex);
	for (i = 0; i < LNL_MAX_LNDS; i++)
		if (lnds[i] && lnds[i]->lnd_type == lnd->lnd_type)
			break;
	if (WARN_ON(i < LNL_MAX_LNDS))
		goto out;
	for (i = 0; i < LNL_MAX_LNDS; i++) {
		if (!lnds[i]) {
			lnds[i] = lnd;
			break;
		}
	}
	WARN_ON(i == LNL_MAX_LNDS);
out:
	mutex_unlock(&lnd_mutex);
}
EXPORT_SYMBOL_GPL(lnet_register_lnd);

void lnet_unregister_lnd(const struct lnet_lnd *lnd)
{
	struct lnl_ni *ni;
	unsigned int i;

	mutex_lock(&lnd_mutex);
	spin_lock(&lnl_lock);
	list_for_each_entry(ni, &nis, list)
		WARN(ni->net.net_lnd == lnd, "lnet_lite: LND leaves while %s exists\n",
		     libcfs_nidstr(&ni->ni.ni_nid));
	spin_unlock(&lnl_lock);
	for (i = 0; i < LNL_MAX_LNDS; i++)
		if (lnds[i] == lnd)
			lnds[i] = NULL;
	mutex_unlock(&lnd_mutex);
}
EXPORT_SYMBOL_GPL(lnet_unregister_lnd);

static const struct lnet_lnd *lnd_find(u32 type)
{
	unsigned int i;

	for (i = 0; i < LNL_MAX_LNDS; i++)
		if (lnds[i] && lnds[i]->lnd_type == type)
			return lnds[i];
	return NULL;
}

struct lnl_ni *lnl_ni_find_locked(const struct lnet_nid *nid)
{
	struct lnl_ni *ni;

	list_for_each_entry(ni, &nis, list)
		if (ni->ni.ni_state == LNET_NI_STATE_ACTIVE && nid_same(&ni->ni.ni_nid, nid))
			return ni;
	return NULL;
}

struct lnl_ni *lnl_ni_by_net_locked(u32 net)
{
	struct lnl_ni *ni;

	list_for_each_entry(ni, &nis, list)
		if (ni->ni.ni_state == LNET_NI_STATE_ACTIVE && ni->net.net_id == net)
			return ni;
	return NULL;
}

/* By pointer: true also while it starts or stops */
bool lnl_ni_known_locked(const struct lnet_ni *wanted)
{
	struct lnl_ni *ni;

	list_for_each_entry(ni, &nis, list)
		if (&ni->ni == wanted)
			return true;
	return false;
}

struct lnl_ni *lnl_ni_nth_locked(unsigned int n)
{
	struct lnl_ni *ni;

	list_for_each_entry(ni, &nis, list)
		if (!n--)
			return ni;
	return NULL;
}

void lnl_ni_get_locked(struct lnl_ni *ni)
{
	lockdep_assert_held(&lnl_lock);
	ni->refs++;
}

void lnl_ni_put_locked(struct lnl_ni *ni)
{
	lockdep_assert_held(&lnl_lock);
	if (WARN_ON_ONCE(ni->refs <= 0)) {
		lnl_count(leaked_ni_refs);
		return;
	}
	if (!--ni->refs)
		wake_up_all(&ni->wait);
}

void lnl_ni_put(struct lnl_ni *ni)
{
	spin_lock(&lnl_lock);
	lnl_ni_put_locked(ni);
	spin_unlock(&lnl_lock);
}

struct lnet_ni *lnet_nid_to_ni_addref(struct lnet_nid *nid)
{
	struct lnl_ni *ni;

	spin_lock(&lnl_lock);
	ni = lnl_ni_find_locked(nid);
	if (ni)
		ni->refs++;
	spin_unlock(&lnl_lock);
	return ni ? &ni->ni : NULL;
}
EXPORT_SYMBOL_GPL(lnet_nid_to_ni_addref);

void lnet_ni_decref(struct lnet_ni *ni)
{
	lnl_ni_put(lnl_ni(ni));
}
EXPORT_SYMBOL_GPL(lnet_ni_decref);

/* One partition spans the machine */
int lnet_nid2cpt(struct lnet_nid *nid, struct lnet_ni *ni)
{
	return 0;
}
EXPORT_SYMBOL_GPL(lnet_nid2cpt);

cpumask_var_t *cfs_cpt_cpumask(struct cfs_cpt_table *cptab, int cpt)
{
	return &cpt_mask;
}
EXPORT_SYMBOL_GPL(cfs_cpt_cpumask);

int cfs_cpt_of_node(struct cfs_cpt_table *cptab, int node)
{
	return node < 0 ? CFS_CPT_ANY : 0;
}
EXPORT_SYMBOL_GPL(cfs_cpt_of_node);

int lnet_ni_set_default_cpts(struct lnet_ni *ni)
{
	ni->ni_ncpts = 1;
	return 0;
}
EXPORT_SYMBOL_GPL(lnet_ni_set_default_cpts);

int lnet_ni_add_interface(struct lnet_ni *ni, char *iface)
{
	if (!iface || !iface[0] || (ni->ni_interface && ni->ni_interface[0]))
		return -EINVAL;
	ni->ni_interface = kstrdup(iface, GFP_KERNEL);
	return ni->ni_interface ? 0 : -ENOMEM;
}
EXPORT_SYMBOL_GPL(lnet_ni_add_interface);

/* The state before */
__u32 lnet_set_link_fatal_state(struct lnet_ni *ni, unsigned int link_state)
{
	if (link_state)
		lnl_count(link_fatal);
	return atomic_xchg(&ni->ni_fatal_error_on, link_state);
}
EXPORT_SYMBOL_GPL(lnet_set_link_fatal_state);

/* A ping is answered from the state of the moment, there is nothing to mark */
void lnet_mark_ping_buffer_for_update(void)
{
}
EXPORT_SYMBOL_GPL(lnet_mark_ping_buffer_for_update);

/* Seconds the LND may take for a message */
unsigned int lnl_lnd_timeout(const struct lnl_ni *ni)
{
	int t = ni->net.net_lnd->lnd_get_timeout ? ni->net.net_lnd->lnd_get_timeout() : 0;

	return t > 0 ? t : lnet_get_lnd_timeout();
}

/* How far the device of an NI is from a GPU, if there is one. LNet asks under its net lock */
static unsigned int dev_prio_locked(struct lnl_ni *ni, unsigned int gpu)
{
	lockdep_assert_held(&lnl_lock);
	if (gpu == UINT_MAX || !ni->net.net_lnd->lnd_get_dev_prio)
		return UINT_MAX;
	return ni->net.net_lnd->lnd_get_dev_prio(&ni->ni, gpu);
}

unsigned int lnl_ni_dev_prio(struct lnl_ni *ni, unsigned int gpu)
{
	unsigned int prio;

	spin_lock(&lnl_lock);
	prio = dev_prio_locked(ni, gpu);
	spin_unlock(&lnl_lock);
	return prio;
}

/* An NI on that net, the nearest to the GPU; the first of several */
static struct lnl_ni *nearest_locked(u32 net, unsigned int gpu)
{
	struct lnl_ni *ni, *best = NULL;
	unsigned int prio, least = UINT_MAX;

	list_for_each_entry(ni, &nis, list) {
		if (ni->ni.ni_state != LNET_NI_STATE_ACTIVE || ni->net.net_id != net)
			continue;
		prio = dev_prio_locked(ni, gpu);
		if (!best || prio < least) {
			best = ni;
			least = prio;
		}
	}
	return best;
}

/*
 * With a reference. @from any: an NI on the net of the next hop, for memory of
 * that GPU, or UINT_MAX
 */
struct lnl_ni *lnl_ni_pick_near(const struct lnet_nid *from, const struct lnet_nid *hop,
				unsigned int gpu)
{
	struct lnl_ni *ni;

	spin_lock(&lnl_lock);
	ni = LNET_NID_IS_ANY(from) ? nearest_locked(LNET_NID_NET(hop), gpu) :
				     lnl_ni_find_locked(from);
	if (ni)
		ni->refs++;
	spin_unlock(&lnl_lock);
	return ni;
}

struct lnl_ni *lnl_ni_pick(const struct lnet_nid *from, const struct lnet_nid *hop)
{
	return lnl_ni_pick_near(from, hop, UINT_MAX);
}

static void ni_free(struct lnl_ni *ni)
{
	struct lnet_peer_ni *peer, *next;

	list_for_each_entry_safe(peer, next, &ni->peers, list) {
		WARN_ON(!list_empty(&peer->txq));
		kfree(peer);
	}
	if (ni->ni.ni_net_ns)
		put_net(ni->ni.ni_net_ns);
	kfree(ni->ni.ni_interface);
	kfree(ni);
}

static void ni_shutdown(struct lnl_ni *ni)
{
	mutex_lock(&lnd_mutex);
	ni->net.net_lnd->lnd_shutdown(&ni->ni);
	mutex_unlock(&lnd_mutex);
	if (ni->ni.ni_data)
		lnl_fault(ni_data_left, "%s\n", libcfs_nidstr(&ni->ni.ni_nid));
}

static void ni_unlist(struct lnl_ni *ni)
{
	bool left;

	/* what came in meanwhile is with the LND no more, and may be completed elsewhere */
	wait_event_timeout(ni->wait, !READ_ONCE(ni->refs), 10 * HZ);
	spin_lock(&lnl_lock);
	list_del(&ni->list);
	left = ni->refs;
	spin_unlock(&lnl_lock);
	if (WARN_ON_ONCE(left))
		lnl_count(leaked_ni_refs);
	else
		ni_free(ni);
}

/* Checks an NI as LNet does after the LND has started it */
static int ni_accept(struct lnl_ni *ni)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *t = &ni->net.net_tunables;
	int credits;

	lnet_ni_set_default_cpts(&ni->ni);
	if (t->lct_peer_tx_credits <= 0 || t->lct_max_tx_credits <= 0) {
		pr_err("lnet_lite: %s has no credits\n", libcfs_nidstr(&ni->ni.ni_nid));
		return -EINVAL;
	}
	credits = min(max(t->lct_max_tx_credits / ni->ni.ni_ncpts,
			  8 * t->lct_peer_tx_credits), t->lct_max_tx_credits);

	spin_lock(&lnl_lock);
	if (lnl_ni_find_locked(&ni->ni.ni_nid)) {
		spin_unlock(&lnl_lock);
		return -EEXIST;
	}
	ni->tq_credits = credits;
	ni->tq_credits_min = credits;
	ni->tq_credits_max = credits;
	atomic_set(&ni->ni.ni_healthv, LNET_MAX_HEALTH_VALUE);
	ni->ni.ni_state = LNET_NI_STATE_ACTIVE;
	spin_unlock(&lnl_lock);
	return 0;
}

static struct lnl_ni *ni_alloc(u32 net, const char *iface, const struct lnet_nid *addr)
{
	struct lnl_ni *ni = kzalloc_obj(*ni, GFP_KERNEL);

	if (!ni)
		return NULL;
	INIT_LIST_HEAD(&ni->list);
	INIT_LIST_HEAD(&ni->peers);
	INIT_LIST_HEAD(&ni->tq_delayed);
	init_waitqueue_head(&ni->wait);
	ni->net.net_id = net;
	memset(&ni->net.net_tunables, 0xff, sizeof(ni->net.net_tunables));
	ni->net.net_tunables.lct_version = 0;
	ni->ni.ni_net = &ni->net;
	ni->ni.ni_dev_cpt = CFS_CPT_ANY;
	ni->ni.ni_nid.nid_type = LNET_NETTYP(net);
	ni->ni.ni_nid.nid_num = cpu_to_be16(LNET_NETNUM(net));
	if (addr)
		ni->ni.ni_nid.nid_addr[0] = addr->nid_addr[0];
	ni->ni.ni_net_ns = get_net(current->nsproxy->net_ns);
	if (iface && lnet_ni_add_interface(&ni->ni, (char *)iface)) {
		ni_free(ni);
		return NULL;
	}
	return ni;
}

int lnl_ni_add_line(const char *netname, const char *iface, const struct lnet_nid *addr,
		    char *opts, struct lnet_nid *out)
{
	u32 net = libcfs_str2net(netname);
	const struct lnet_lnd *lnd;
	struct lnl_ni *ni;
	int rc;

	if (net == LNET_NIDNET(LNET_NID_ANY) || (addr && LNET_NID_NET(addr) != net))
		return -EINVAL;
	mutex_lock(&api_mutex);
	ni = ni_alloc(net, iface, addr);
	if (!ni) {
		rc = -ENOMEM;
		goto out;
	}

	mutex_lock(&lnd_mutex);
	lnd = lnd_find(LNET_NETTYP(net));
	if (!lnd) {
		pr_err("lnet_lite: no LND is registered for net %s\n", netname);
		rc = -EPROTONOSUPPORT;
		goto out_lnd;
	}
	ni->net.net_lnd = lnd;
	rc = lnl_tunables_parse(ni, lnd, opts);
	if (rc)
		goto out_lnd;
	/* listed from here on: the LND may already parse messages */
	spin_lock(&lnl_lock);
	list_add_tail(&ni->list, &nis);
	spin_unlock(&lnl_lock);
	rc = lnd->lnd_startup(&ni->ni);
	if (rc > 0) {
		lnl_fault(bad_return, "lnd_startup returned %d\n", rc);
		rc = -EINVAL;
	}
out_lnd:
	mutex_unlock(&lnd_mutex);
	if (rc) {
		if (!list_empty(&ni->list))
			ni_unlist(ni);
		else
			ni_free(ni);
		goto out;
	}

	/* LNet has more to do with other NIs, too, before one is in service */
	msleep(lnl_knob(start_delay_ms));
	rc = ni_accept(ni);
	if (rc) {
		ni_shutdown(ni);
		ni_unlist(ni);
	} else if (out) {
		*out = ni->ni.ni_nid;
	}
out:
	mutex_unlock(&api_mutex);
	return rc;
}

/*
 * Deletes an NI as LNet does. No new message starts. Messages that wait for a
 * match are finished here, and messages that wait for credits are still sent.
 * The LND returns all of them before it has to shut down. It receives the
 * messages that it parses meanwhile.
 * -EINTR leaves the NI stopping; the call may be repeated.
 */
int lnet_lite_ni_del(const struct lnet_nid *nid)
{
	struct lnl_ni *ni = NULL, *it;
	unsigned int rounds = 0;
	long left;

	if (mutex_lock_interruptible(&api_mutex))
		return -EINTR;
	spin_lock(&lnl_lock);
	list_for_each_entry(it, &nis, list) {
		if (nid_same(&it->ni.ni_nid, nid)) {
			it->ni.ni_state = LNET_NI_STATE_DELETING;
			ni = it;
			break;
		}
	}
	spin_unlock(&lnl_lock);
	if (!ni) {
		mutex_unlock(&api_mutex);
		return -ENOENT;
	}

	do {
		/* again each time: a parse that was under way may have added one */
		lnl_resend_flush();
		lnl_delayed_run(ni, true);
		left = wait_event_interruptible_timeout(ni->wait, !READ_ONCE(ni->refs), 2 * HZ);
		if (left < 0) {
			mutex_unlock(&api_mutex);
			return -EINTR;
		}
		if (!left && !(++rounds % 5))
			pr_warn("lnet_lite: %s waits for %d references, %u messages at the LND\n",
				libcfs_nidstr(nid), READ_ONCE(ni->refs), lnl_msgs_at_lnd(ni));
	} while (!left);

	ni_shutdown(ni);
	ni_unlist(ni);
	mutex_unlock(&api_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(lnet_lite_ni_del);

int lnl_ni_init(void)
{
	if (!alloc_cpumask_var(&cpt_mask, GFP_KERNEL))
		return -ENOMEM;
	cpumask_copy(cpt_mask, cpu_possible_mask);
	return 0;
}

/* Every NI holds its LND's module, and that one holds us: nothing can be left */
void lnl_ni_fini(void)
{
	WARN_ON(!list_empty(&nis));
	free_cpumask_var(cpt_mask);
}
