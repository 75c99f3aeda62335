// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: module, counters and knobs.
 */
#include <linux/libcfs/libcfs_debug.h>
#include <linux/module.h>
#include <linux/preempt.h>

#include "../include/ro2iblnd_version.h"
#include "internal.h"

atomic64_t lnl_counters[LNL_NCOUNTERS];
atomic64_t lnl_health[LNET_MSG_STATUS_END];
struct lnet_nid lnl_slow_peer = { .nid_type = 0xFF };
DEFINE_SPINLOCK(lnl_lock);

#define LNL_NAME(name) #name,
static const char * const counter_names[] = {
	LNL_STATS(LNL_NAME)
	LNL_FAULTS(LNL_NAME)
};

static const char * const knob_names[] = { LNL_KNOBS(LNL_NAME) };

static const char * const health_names[LNET_MSG_STATUS_END] = {
	[LNET_MSG_STATUS_OK]			= "ok",
	[LNET_MSG_STATUS_LOCAL_INTERRUPT]	= "local_interrupt",
	[LNET_MSG_STATUS_LOCAL_DROPPED]		= "local_dropped",
	[LNET_MSG_STATUS_LOCAL_ABORTED]		= "local_aborted",
	[LNET_MSG_STATUS_LOCAL_NO_ROUTE]	= "local_no_route",
	[LNET_MSG_STATUS_LOCAL_ERROR]		= "local_error",
	[LNET_MSG_STATUS_LOCAL_TIMEOUT]		= "local_timeout",
	[LNET_MSG_STATUS_REMOTE_ERROR]		= "remote_error",
	[LNET_MSG_STATUS_REMOTE_DROPPED]	= "remote_dropped",
	[LNET_MSG_STATUS_REMOTE_TIMEOUT]	= "remote_timeout",
	[LNET_MSG_STATUS_NETWORK_TIMEOUT]	= "network_timeout",
};

long lnl_knobs[LNL_NKNOBS] = {
	[LNL_K_parse_err]		= -EPROTO,
	[LNL_K_retry_ms]		= 100,
	[LNL_K_transaction_timeout]	= 150,
	[LNL_K_debug]			= D_NETERROR,
	[LNL_K_subsystem_debug]		= INT_MAX,
};

/*
 * LNet asserts !in_interrupt() at these entries; that includes a section with
 * bottom halves off. It may sleep and call lnd_send() there, so that a spin
 * lock held by the caller is an error too, where the kernel lets us see it.
 */
void lnl_check_context(const char *what)
{
	bool bad = in_interrupt() || irqs_disabled();

	if (IS_ENABLED(CONFIG_PREEMPT_COUNT) && !preemptible())
		bad = true;
	if (bad)
		lnl_fault(context_violations, "%s, preempt_count %#x\n", what, preempt_count());
}

/* True on every n-th call, n being the value of the knob; never when it is 0 */
bool lnl_every(enum lnl_knob knob, atomic_t *counter)
{
	long n = READ_ONCE(lnl_knobs[knob]);

	return n > 0 && atomic_inc_return(counter) % n == 0;
}

int lnl_knob_set(const char *name, long value)
{
	int i;

	i = match_string(knob_names, LNL_NKNOBS, name);
	if (i < 0)
		return -ENOENT;
	if (i == LNL_K_parse_err) {
		if (value >= 0 || value < -MAX_ERRNO)
			return -ERANGE;
	} else if (value < 0 || value > INT_MAX) {
		return -ERANGE;
	}
	WRITE_ONCE(lnl_knobs[i], value);
	if (i == LNL_K_lazy || i == LNL_K_recv_delay_ms)
		lnl_delayed_run(NULL, false);
	if (i == LNL_K_debug)
		WRITE_ONCE(libcfs_debug, value);
	if (i == LNL_K_subsystem_debug)
		WRITE_ONCE(libcfs_subsystem_debug, value);
	return 0;
}

void lnl_stats_reset(void)
{
	int i;

	for (i = 0; i < LNL_NCOUNTERS; i++)
		atomic64_set(&lnl_counters[i], 0);
	for (i = 0; i < LNET_MSG_STATUS_END; i++)
		atomic64_set(&lnl_health[i], 0);
}

static u64 lnl_faults(void)
{
	u64 sum = 0;
	int i;

	for (i = LNL_NSTATS; i < LNL_NCOUNTERS; i++)
		sum += atomic64_read(&lnl_counters[i]);
	return sum;
}

int lnl_stats_print(char *buf, size_t size)
{
	int i, n = 0;

	for (i = 0; i < LNL_NCOUNTERS; i++)
		n += scnprintf(buf + n, size - n, "%s=%lld\n", counter_names[i],
			       atomic64_read(&lnl_counters[i]));
	for (i = 0; i < LNET_MSG_STATUS_END; i++)
		n += scnprintf(buf + n, size - n, "health_%s=%lld\n", health_names[i],
			       atomic64_read(&lnl_health[i]));
	n += scnprintf(buf + n, size - n,
		       "outstanding=%u\nrx_held=%u\ndelayed=%u\nmds=%u\nbufs=%u\nviolations=%llu\n",
		       lnl_msgs_live(), lnl_rx_held(), lnl_delayed_count(), lnl_mds_live(),
		       lnl_bufs_live(), lnl_faults());
	return n;
}

int lnl_knobs_print(char *buf, size_t size)
{
	int i, n = 0;

	for (i = 0; i < LNL_NKNOBS; i++)
		n += scnprintf(buf + n, size - n, "%s=%ld\n", knob_names[i],
			       READ_ONCE(lnl_knobs[i]));
	n += scnprintf(buf + n, size - n, "slow_peer=%s\n",
		       LNET_NID_IS_ANY(&lnl_slow_peer) ? "any" : libcfs_nidstr(&lnl_slow_peer));
	return n;
}

u64 lnet_lite_stat(const char *name)
{
	int i;

	i = match_string(counter_names, ARRAY_SIZE(counter_names), name);
	if (i >= 0)
		return atomic64_read(&lnl_counters[i]);
	if (!strncmp(name, "health_", 7)) {
		i = match_string(health_names, LNET_MSG_STATUS_END, name + 7);
		if (i >= 0)
			return atomic64_read(&lnl_health[i]);
	}
	i = match_string(knob_names, LNL_NKNOBS, name);
	if (i >= 0)
		return READ_ONCE(lnl_knobs[i]);
	if (!strcmp(name, "outstanding"))
		return lnl_msgs_live();
	if (!strcmp(name, "rx_held"))
		return lnl_rx_held();
	if (!strcmp(name, "delayed"))
		return lnl_delayed_count();
	if (!strcmp(name, "mds"))
		return lnl_mds_live();
	if (!strcmp(name, "violations"))
		return lnl_faults();
	return U64_MAX;
}
EXPORT_SYMBOL_GPL(lnet_lite_stat);

int lnet_lite_set(const char *knob, long value)
{
	return lnl_knob_set(knob, value);
}
EXPORT_SYMBOL_GPL(lnet_lite_set);

/* LNet's arithmetic: what remains of the transaction for one try, in seconds */
unsigned int lnet_get_lnd_timeout(void)
{
	long t = lnl_knob(transaction_timeout), n = lnl_knob(retries) + 1;

	return t > n ? (t - 1) / n : 1;
}
EXPORT_SYMBOL_GPL(lnet_get_lnd_timeout);

static int __init lnl_init(void)
{
	int rc;

	BUILD_BUG_ON(sizeof(struct lnet_hdr_nid4) != 72);
	BUILD_BUG_ON(offsetof(struct _lnet_hdr_nid4, msg) != 32);
	BUILD_BUG_ON(sizeof(union lnet_cmd_hdr) != 40);
	BUILD_BUG_ON(ARRAY_SIZE(counter_names) != LNL_NCOUNTERS);

	lnl_md_init();
	rc = lnl_ni_init();
	if (rc)
		return rc;
	rc = lnl_msg_init();
	if (rc)
		goto out_ni;
	rc = lnl_ctl_init();
	if (rc)
		goto out_msg;
	return 0;
out_msg:
	lnl_msg_fini();
out_ni:
	lnl_ni_fini();
	return rc;
}

/*
 * An LND that is loaded holds a reference on us through the symbols it uses, so
 * that no NI can be left, and no work of ours that an NI could start.
 */
static void __exit lnl_exit(void)
{
	lnl_ctl_fini();
	lnl_ni_fini();
	lnl_parse_fini();
	lnl_send_fini();
	lnl_buf_fini();
	lnl_md_fini();
	lnl_msg_fini();
}

module_init(lnl_init);
module_exit(lnl_exit);
MODULE_AUTHOR("The ro2iblnd authors");
MODULE_DESCRIPTION("Stand-in for LNet, for tests and demonstrations of an LND");
MODULE_VERSION(RO2IBLND_VERSION);
MODULE_LICENSE("GPL");
