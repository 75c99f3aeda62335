// SPDX-License-Identifier: GPL-2.0
/*
 * Tunables of an NI: defaults, and completion of the values that the user left
 * open.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/printk.h>

#include "internal.h"

/* Version of struct lnet_ioctl_config_o2iblnd_tunables that old tools know. */
#define RO2IB_TUNABLES_VERSION	1

#define RO2IB_PEER_CREDITS_MIN	8
#define RO2IB_PEER_CREDITS_MAX	255

/* Initial tunables of an NI: the module parameters, nothing derived yet. */
static void ro2ib_o2ib_defaults(struct lnet_ioctl_config_o2iblnd_tunables *t)
{
	memset(t, 0, sizeof(*t));
	t->lnd_version = RO2IB_TUNABLES_VERSION;
	t->lnd_peercredits_hiw = ro2ib_param_peer_credits_hiw();
	t->lnd_map_on_demand = ro2ib_param_map_on_demand();
	t->lnd_concurrent_sends = ro2ib_param_concurrent_sends();
	t->lnd_fmr_pool_size = ro2ib_param_fmr_pool_size();
	t->lnd_fmr_flush_trigger = ro2ib_param_fmr_flush_trigger();
	t->lnd_fmr_cache = ro2ib_param_fmr_cache();
	t->lnd_ntx = ro2ib_param_ntx();
	t->lnd_conns_per_peer = ro2ib_param_conns_per_peer();
#ifdef RO2IB_HAVE_TUN_TOS
	t->lnd_timeout = ro2ib_param_timeout();
	t->lnd_tos = ro2ib_param_tos();
#endif
}

/* Replaces values of -1 and brings the credits into range. */
static int
ro2ib_complete_cmn(struct lnet_ioctl_config_lnd_cmn_tunables *cmn)
{
	if (cmn->lct_peer_timeout == -1)
		cmn->lct_peer_timeout = ro2ib_param_peer_timeout();
	if (cmn->lct_max_tx_credits == -1)
		cmn->lct_max_tx_credits = ro2ib_param_credits();
	if (cmn->lct_peer_tx_credits == -1)
		cmn->lct_peer_tx_credits = ro2ib_param_peer_credits();
	if (cmn->lct_peer_rtr_credits == -1)
		cmn->lct_peer_rtr_credits = ro2ib_param_peer_buffer_credits();

	if (cmn->lct_max_tx_credits < 1) {
		pr_err_ratelimited("tunable credits=%d is out of range 1..%d\n",
				   cmn->lct_max_tx_credits, INT_MAX);
		return -ERANGE;
	}

	cmn->lct_peer_tx_credits = clamp(cmn->lct_peer_tx_credits,
					 RO2IB_PEER_CREDITS_MIN,
					 RO2IB_PEER_CREDITS_MAX);
	cmn->lct_peer_tx_credits = min(cmn->lct_peer_tx_credits,
				       cmn->lct_max_tx_credits);
	return 0;
}

/* Not configured, neither for this NI nor for all. */
static bool
ro2ib_peer_credits_open(const struct lnet_ioctl_config_lnd_cmn_tunables *cmn)
{
	return cmn->lct_peer_tx_credits == -1 &&
	       !ro2ib_param_peer_credits_given();
}

/* As above. These credits follow chosen peer credits, and no others. */
static bool
ro2ib_credits_open(const struct lnet_ioctl_config_lnd_cmn_tunables *cmn)
{
	return cmn->lct_max_tx_credits == -1 && !ro2ib_param_credits_given() &&
	       ro2ib_peer_credits_open(cmn);
}

/*
 * Returns the number of credits that make a NOOP return them, with @pc peer
 * credits; @hiw 0: the default.
 */
u32 ro2ib_clamp_hiw(u32 hiw, u32 pc)
{
	if (!hiw)
		hiw = ro2ib_param_peer_credits_hiw();
	return clamp(hiw, pc / 2, max(pc, 1U) - 1);
}

/*
 * Fills in the values that follow from the peer credits @pc, unless the user
 * gave them.
 */
static void ro2ib_derive(struct lnet_ioctl_config_o2iblnd_tunables *t, u32 pc)
{
	t->lnd_peercredits_hiw = ro2ib_clamp_hiw(t->lnd_peercredits_hiw, pc);

	/* Shown to the user only; the send queue counts its slots exactly. */
	if (!t->lnd_concurrent_sends)
		t->lnd_concurrent_sends = ro2ib_param_concurrent_sends() ?: pc;
	t->lnd_concurrent_sends = clamp(t->lnd_concurrent_sends, pc / 2,
					pc * 2);
}

/*
 * Replaces values of 0, and checks the values that LNet and its tools do not.
 */
static int ro2ib_complete_o2ib(struct lnet_ioctl_config_o2iblnd_tunables *t)
{
	t->lnd_version = RO2IB_TUNABLES_VERSION;

	t->lnd_map_on_demand = 1;
	if (!t->lnd_ntx)
		t->lnd_ntx = ro2ib_param_ntx();
	if (!t->lnd_fmr_pool_size)
		t->lnd_fmr_pool_size = ro2ib_param_fmr_pool_size();
	if (!t->lnd_fmr_flush_trigger)
		t->lnd_fmr_flush_trigger = ro2ib_param_fmr_flush_trigger();
	if (!t->lnd_fmr_cache)
		t->lnd_fmr_cache = ro2ib_param_fmr_cache();
	if (t->lnd_fmr_pool_size < t->lnd_ntx / 4) {
		pr_err_ratelimited("tunable fmr_pool_size=%u is below ntx / 4 = %u\n",
				   t->lnd_fmr_pool_size, t->lnd_ntx / 4);
		return -EINVAL;
	}

	if (!t->lnd_conns_per_peer)
		t->lnd_conns_per_peer = ro2ib_param_conns_per_peer() ?: 1;
	if (t->lnd_conns_per_peer > RO2IB_CONNS_PER_PEER_MAX) {
		pr_err_ratelimited("tunable conns_per_peer=%u is out of range 1..%u\n",
				   t->lnd_conns_per_peer,
				   RO2IB_CONNS_PER_PEER_MAX);
		return -ERANGE;
	}

#ifdef RO2IB_HAVE_TUN_TOS
	if (t->lnd_tos < 0)
		t->lnd_tos = ro2ib_param_tos();
	if (t->lnd_tos > 255) {
		pr_err_ratelimited("tunable tos=%d is out of range -1..255\n",
				   t->lnd_tos);
		return -ERANGE;
	}

	t->lnd_timeout = ro2ib_param_timeout();
#endif
	return 0;
}

/*
 * LNet has tunables per net: the first NI of a net has completed them, and if
 * the user gave no depth, each NI of the net has a depth of its own.
 */
static bool ro2ib_net_is_open(const struct lnet_net *net)
{
	const struct ro2ib_ni *first;
	bool open;

	rcu_read_lock();
	first = ro2ib_ni_of_net(net);
	open = first && first->peer_credits_open;
	rcu_read_unlock();
	return open;
}

int ro2ib_tunables_startup(struct lnet_ni *lni, struct ro2ib_ni_cfg *cfg)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *cmn;
	struct lnet_ioctl_config_o2iblnd_tunables *t;
	int rc;

	cmn = &lni->ni_net->net_tunables;
	t = &lni->ni_lnd_tunables.lnd_tun_u.lnd_o2ib;

	if (!lni->ni_lnd_tunables_set)
		ro2ib_o2ib_defaults(t);

	cfg->max_tx_credits_open = ro2ib_credits_open(cmn);
	cfg->peer_credits_open = ro2ib_peer_credits_open(cmn) ||
				 ro2ib_net_is_open(lni->ni_net);
	rc = ro2ib_complete_cmn(cmn);
	if (rc)
		return rc;
	rc = ro2ib_complete_o2ib(t);
	if (rc)
		return rc;

	cfg->peer_credits = cmn->lct_peer_tx_credits;
	cfg->max_tx_credits = cmn->lct_max_tx_credits;
	return 0;
}

/*
 * Gives LNet the values that fit the device, now that it is known and before
 * the NI is in use. Not for a further NI of a net, which uses the values of the
 * first.
 */
void ro2ib_tunables_derive(struct ro2ib_ni *ni)
{
	struct lnet_ioctl_config_lnd_cmn_tunables *cmn;
	struct lnet_ni *lni = ni->ni;
	u32 depth, credits;

	cmn = &lni->ni_net->net_tunables;
	if (ni->peer_credits_open && !ro2ib_net_is_open(lni->ni_net)) {
		ro2ib_ni_chosen(ni, &depth, &credits);
		if (ni->credits_open)
			cmn->lct_max_tx_credits = credits;
		cmn->lct_peer_tx_credits = min_t(s32, depth,
						 cmn->lct_max_tx_credits);
	}
	ro2ib_derive(&lni->ni_lnd_tunables.lnd_tun_u.lnd_o2ib,
		     cmn->lct_peer_tx_credits);
}

/*
 * The LND part keeps the values of the parameters: the values derived from the
 * peer credits (high-water mark, concurrent sends) can only be derived at
 * startup, once the user's own choice of these is known. The same holds for
 * credits that the user did not give: a value that the user gives later must be
 * recognised as given.
 */
int ro2ib_tun_defaults(struct lnet_lnd_tunables *tun,
		       struct lnet_ioctl_config_lnd_cmn_tunables *cmn)
{
	bool credits_open = ro2ib_credits_open(cmn);
	bool peer_credits_open = ro2ib_peer_credits_open(cmn);
	int rc;

	ro2ib_o2ib_defaults(&tun->lnd_tun_u.lnd_o2ib);
	rc = ro2ib_complete_cmn(cmn);
	if (credits_open)
		cmn->lct_max_tx_credits = -1;
	if (peer_credits_open)
		cmn->lct_peer_tx_credits = -1;
	return rc;
}
