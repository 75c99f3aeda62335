// SPDX-License-Identifier: GPL-2.0
/*
 * Tunables of a running NI: the values in force, by whom each was set last
 * (LNet's tools or the parameter ni_tune), and one line in the log for each
 * change.
 *
 * LNet stores the tunables that its structures have (connections per peer,
 * ToS), so that its tools show and set them; the shim's NI stores the rest. All
 * of them are single words, read at any time.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/minmax.h>
#include <linux/printk.h>

#include "internal.h"

static struct lnet_ioctl_config_o2iblnd_tunables *
ro2ib_o2ib_of(const struct ro2ib_ni *ni)
{
	return &ni->ni->ni_lnd_tunables.lnd_tun_u.lnd_o2ib;
}

static bool ro2ib_is_set(s32 v)
{
	return v != RO2IB_TUNE_UNSET;
}

/* The value in force. LNet's old ioctl writes any value. */

u32 ro2ib_ni_conns_per_peer(const struct ro2ib_ni *ni)
{
	return clamp_t(u32, READ_ONCE(ro2ib_o2ib_of(ni)->lnd_conns_per_peer), 1,
		       RO2IB_CONNS_PER_PEER_MAX);
}

s32 ro2ib_ni_tos(const struct ro2ib_ni *ni)
{
#ifdef RO2IB_HAVE_TUN_TOS
	s32 tos = READ_ONCE(ro2ib_o2ib_of(ni)->lnd_tos);
#else
	/* LNet has no field for it. */
	s32 tos = READ_ONCE(ni->tune.tos);

	if (!ro2ib_is_set(tos))
		tos = ro2ib_param_tos();
#endif

	return tos >= 0 && tos <= 255 ? tos : -1;
}

u32 ro2ib_ni_peer_credits(const struct ro2ib_ni *ni)
{
	s32 v = READ_ONCE(ni->tune.peer_credits);

	return ro2ib_is_set(v) ? v : READ_ONCE(ni->peer_credits);
}

enum ro2ib_depth_by ro2ib_ni_depth_by(const struct ro2ib_ni *ni)
{
	if (ro2ib_is_set(READ_ONCE(ni->tune.peer_credits)))
		return RO2IB_DEPTH_TUNED;
	return ni->peer_credits_open ? RO2IB_DEPTH_CHOSEN : RO2IB_DEPTH_GIVEN;
}

u32 ro2ib_ni_peer_credits_hiw(const struct ro2ib_ni *ni)
{
	return READ_ONCE(ro2ib_o2ib_of(ni)->lnd_peercredits_hiw);
}

u32 ro2ib_ni_lnet_credits(const struct ro2ib_ni *ni)
{
	s32 v = READ_ONCE(ni->ni->ni_net->net_tunables.lct_peer_tx_credits);

	return clamp(v, 1, 255);
}

#define RO2IB_TUNABLE(name, type, conns)				\
	type ro2ib_ni_##name(const struct ro2ib_ni *ni)			\
	{								\
		s32 v = READ_ONCE(ni->tune.name);			\
									\
		return ro2ib_is_set(v) ? v : ro2ib_param_##name();	\
	}
RO2IB_PARAM_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE

/* Changes */

enum ro2ib_conns { RO2IB_ALL_CONNS, RO2IB_NEW_CONNS };

static void ro2ib_log_change(const struct ro2ib_ni *ni, const char *key,
			     s32 was, s32 is, enum ro2ib_conns conns)
{
	if (was == is)
		return;
	pr_info("%s: %s is %d now, was %d%s\n", ni->name, key, is, was,
		conns == RO2IB_NEW_CONNS ? "; for new connections" : "");
}

/* A new NI has no earlier values, so all that ni_tune sets now is a change. */
void ro2ib_tune_init(struct ro2ib_ni *ni)
{
	ni->tune = (struct ro2ib_tuning){
#define RO2IB_TUNABLE(name, type, conns)	.name = RO2IB_TUNE_UNSET,
		RO2IB_RUNNING_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE
	};
	ro2ib_tune_apply(ni, false);
}

static struct ro2ib_tuning ro2ib_in_force(const struct ro2ib_ni *ni)
{
	return (struct ro2ib_tuning){
#define RO2IB_TUNABLE(name, type, conns)	.name = ro2ib_ni_##name(ni),
		RO2IB_RUNNING_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE
	};
}

/*
 * Writes the values of ni_tune, and logs the changes if @tell. A value that
 * ni_tune does not set any more falls back to the parameter, or stays as LNet
 * has it. The caller serialises calls for an NI.
 */
void ro2ib_tune_apply(struct ro2ib_ni *ni, bool tell)
{
	struct lnet_ioctl_config_o2iblnd_tunables *t = ro2ib_o2ib_of(ni);
	struct ro2ib_tuning was = ro2ib_in_force(ni);
	struct ro2ib_tuning next, is;

	ro2ib_tuning_of(ni->nid, &next);
	/* Only if it changes: LNet's tools may have set another value since. */
	if (ro2ib_is_set(next.conns_per_peer) &&
	    next.conns_per_peer != ni->tune.conns_per_peer)
		WRITE_ONCE(t->lnd_conns_per_peer, next.conns_per_peer);
#ifdef RO2IB_HAVE_TUN_TOS
	if (ro2ib_is_set(next.tos) && next.tos != ni->tune.tos)
		WRITE_ONCE(t->lnd_tos, next.tos);
#endif
#define RO2IB_TUNABLE(name, type, conns)	WRITE_ONCE(ni->tune.name, next.name);
	RO2IB_RUNNING_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE
	if (!tell)
		return;

	is = ro2ib_in_force(ni);
#define RO2IB_TUNABLE(name, type, conns)	\
	ro2ib_log_change(ni, #name, was.name, is.name, conns);
	RO2IB_RUNNING_TUNABLES(RO2IB_TUNABLE)
#undef RO2IB_TUNABLE
}

/*
 * Called when the depth that fits the link changed, or is known for the first
 * time.
 */
void ro2ib_set_chosen_depth(struct ro2ib_ni *ni, u32 depth)
{
	u32 was = ro2ib_ni_peer_credits(ni);

	WRITE_ONCE(ni->peer_credits, depth);
	/* The startup of an NI logs more than that. */
	if (ni->priv)
		ro2ib_log_change(ni, "peer_credits", was,
				 ro2ib_ni_peer_credits(ni), RO2IB_NEW_CONNS);
}

/*
 * Called when LNet set a tunable of a running NI, maybe to its old value.
 * Atomic.
 */
void ro2ib_log_tunable(const struct ro2ib_ni *ni, const char *key, s32 was,
		       s32 is)
{
	ro2ib_log_change(ni, key, was, is, RO2IB_NEW_CONNS);
}
