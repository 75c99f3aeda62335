// SPDX-License-Identifier: GPL-2.0
/*
 * Module parameters: every parameter of ko2iblnd, with the same name, type,
 * default and permission, so that existing modprobe configuration and tools
 * that read /sys/module/.../parameters keep working; and "probe".
 *
 * A parameter rejects a value outside its range, with one log line that names
 * the parameter, the value and the range: the module does not load, or the
 * write to sysfs fails. Values that ko2iblnd clamps are clamped here too
 * (tunable_defaults.c).
 *
 * No function of LNet is used here.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/sysfs.h>

#include "params.h"
#include "ro2iblnd_shim.h"

struct ro2ib_param {
	int value;
	int min;
	int max;
	bool given;	/* set by the administrator, maybe to the default */
};

static int ro2ib_param_parse(const char *val, const struct kernel_param *kp,
			     int *v)
{
	int rc = val ? kstrtoint(val, 0, v) : -EINVAL;

	if (rc)
		pr_err_ratelimited("parameter %s is not an integer\n",
				   kp->name);
	return rc;
}

/*
 * Stores a valid value. @late: what the value applies to, if not to all at
 * once.
 */
static void ro2ib_param_take(const struct kernel_param *kp, int v,
			     const char *late)
{
	struct ro2ib_param *p = kp->arg;
	int was = p->value;

	WRITE_ONCE(p->value, v);
	p->given = true;
	if (v != was && ro2ib_params_logged())
		pr_info("parameter %s is %d now, was %d%s\n", kp->name, v, was,
			late);
}

static int ro2ib_param_set_late(const char *val, const struct kernel_param *kp,
				const char *late)
{
	const struct ro2ib_param *p = kp->arg;
	int v;
	int rc;

	rc = ro2ib_param_parse(val, kp, &v);
	if (rc)
		return rc;
	if (v < p->min || v > p->max) {
		pr_err_ratelimited("parameter %s=%d is out of range %d..%d\n",
				   kp->name, v, p->min, p->max);
		return -ERANGE;
	}
	ro2ib_param_take(kp, v, late);
	return 0;
}

static int ro2ib_param_set(const char *val, const struct kernel_param *kp)
{
	return ro2ib_param_set_late(val, kp, "");
}

static int ro2ib_param_get(char *buf, const struct kernel_param *kp)
{
	const struct ro2ib_param *p = kp->arg;

	return sysfs_emit(buf, "%d\n", READ_ONCE(p->value));
}

static const struct kernel_param_ops ro2ib_param_ops = {
	.set = ro2ib_param_set,
	.get = ro2ib_param_get,
};

/* Existing connections keep the value they were created with. */
static int ro2ib_conn_param_set(const char *val, const struct kernel_param *kp)
{
	return ro2ib_param_set_late(val, kp, "; for new connections");
}

static const struct kernel_param_ops ro2ib_conn_param_ops = {
	.set = ro2ib_conn_param_set,
	.get = ro2ib_param_get,
};

/* ib_mtu has a set of values, not a range. */
static int ro2ib_mtu_set(const char *val, const struct kernel_param *kp)
{
	struct ro2ib_param *p = kp->arg;
	int v;
	int rc;

	rc = val ? kstrtoint(val, 0, &v) : -EINVAL;
	if (rc) {
		pr_err("parameter %s is not an integer\n", kp->name);
		return rc;
	}
	switch (v) {
	case 0:
	case 256:
	case 512:
	case 1024:
	case 2048:
	case 4096:
		WRITE_ONCE(p->value, v);
		return 0;
	default:
		pr_err("parameter %s=%d is out of range: 0 or 256/512/1024/2048/4096\n",
		       kp->name, v);
		return -EINVAL;
	}
}

static const struct kernel_param_ops ro2ib_mtu_ops = {
	.set = ro2ib_mtu_set,
	.get = ro2ib_param_get,
};

/* probe is 0 or in a range; waits of the old length must get the new length. */
static int ro2ib_probe_set(const char *val, const struct kernel_param *kp)
{
	const struct ro2ib_param *p = kp->arg;
	int v;
	int rc;

	rc = ro2ib_param_parse(val, kp, &v);
	if (rc)
		return rc;
	if (v && (v < p->min || v > p->max)) {
		pr_err_ratelimited("parameter %s=%d is out of range: 0 or %d..%d\n",
				   kp->name, v, p->min, p->max);
		return -ERANGE;
	}
	ro2ib_param_take(kp, v, "");
	ro2ib_ni_settings_changed();
	return 0;
}

static const struct kernel_param_ops ro2ib_probe_ops = {
	.set = ro2ib_probe_set,
	.get = ro2ib_param_get,
};

#define RO2IB_PARAM_OPS(name, type, ops, def, lo, hi, perm)		\
	static struct ro2ib_param p_##name = {				\
		.value = (def), .min = (lo), .max = (hi),		\
	};								\
	module_param_cb(name, ops, &p_##name, perm);			\
	__MODULE_PARM_TYPE(name, #type)

#define RO2IB_PARAM(name, type, def, lo, hi, perm)			\
	RO2IB_PARAM_OPS(name, type, &ro2ib_param_ops, def, lo, hi, perm)

RO2IB_PARAM(service, int, 987, 1, 65535, 0444);
MODULE_PARM_DESC(service, "RDMA service (port) number, the same on all nodes");

RO2IB_PARAM(cksum, int, 0, INT_MIN, INT_MAX, 0644);
MODULE_PARM_DESC(cksum, "non-zero: checksum outgoing messages (not RDMA data)");

/*
 * LNet gives each message a deadline. From 2.17 on LNet computes it from the
 * driver's timeout. Older versions have a deadline of their own (50 s with
 * 2.15), and do not resend a message that fails later; LNet's own timeout for a
 * driver fits that deadline.
 */
#ifdef RO2IB_HAVE_GET_TIMEOUT
#define RO2IB_TIMEOUT_DEFAULT	50
#else
#define RO2IB_TIMEOUT_DEFAULT	0
#endif

RO2IB_PARAM(timeout, int, RO2IB_TIMEOUT_DEFAULT, 0, 86400, 0644);
MODULE_PARM_DESC(timeout, "seconds until a transfer without progress closes its connection (0: LNet's value)");

RO2IB_PARAM(nscheds, int, 0, 0, INT_MAX, 0444);
MODULE_PARM_DESC(nscheds, "accepted for compatibility, without effect: there are no scheduler threads");

RO2IB_PARAM(conns_per_peer, uint, 1, 0, 127, 0444);
MODULE_PARM_DESC(conns_per_peer, "connections opened to each peer (0: 1)");

RO2IB_PARAM(ntx, int, 512, 0, U16_MAX, 0444);
MODULE_PARM_DESC(ntx, "accepted for compatibility (checked against fmr_pool_size); transmits are allocated on demand");

RO2IB_PARAM(credits, int, 256, 1, INT_MAX, 0444);
MODULE_PARM_DESC(credits, "concurrent sends per NI (not given: 32 times peer_credits, if these are not given either)");

RO2IB_PARAM(peer_credits, int, 8, 0, INT_MAX, 0444);
MODULE_PARM_DESC(peer_credits, "concurrent sends per peer and offered queue depth (clamped to 8..255, then to credits; not given: by link speed)");

RO2IB_PARAM(peer_credits_hiw, int, 0, 0, INT_MAX, 0444);
MODULE_PARM_DESC(peer_credits_hiw, "return credits by NOOP from this number on (clamped to half of peer_credits .. peer_credits - 1)");

RO2IB_PARAM(peer_buffer_credits, int, 0, INT_MIN, INT_MAX, 0444);
MODULE_PARM_DESC(peer_buffer_credits, "router buffer credits per peer (<= 0: LNet's value)");

RO2IB_PARAM(peer_timeout, int, 180, INT_MIN, INT_MAX, 0444);
MODULE_PARM_DESC(peer_timeout, "seconds without a message until LNet regards a peer as down (<= 0: never)");

static char *ipif_name = "ib0";
module_param(ipif_name, charp, 0444);
MODULE_PARM_DESC(ipif_name, "interface of an NI that names neither interface nor address");

RO2IB_PARAM_OPS(retry_count, int, &ro2ib_conn_param_ops, 5, 0, INT_MAX, 0644);
MODULE_PARM_DESC(retry_count, "transport retries of a queue pair (above 7: 7)");

RO2IB_PARAM_OPS(rnr_retry_count, int, &ro2ib_conn_param_ops, 6, 0, INT_MAX, 0644);
MODULE_PARM_DESC(rnr_retry_count, "receiver-not-ready retries of a queue pair (7 and above: unlimited)");

RO2IB_PARAM(keepalive, int, 100, INT_MIN, INT_MAX, 0644);
MODULE_PARM_DESC(keepalive, "idle seconds until an empty message is sent (<= 0: never)");

RO2IB_PARAM_OPS(probe, int, &ro2ib_probe_ops, 1000, 250, 60000, 0644);
MODULE_PARM_DESC(probe, "milliseconds of silence until a peer that owes an answer is probed: 250..60000 (0: never)");

RO2IB_PARAM_OPS(ib_mtu, int, &ro2ib_mtu_ops, 0, 0, 4096, 0444);
MODULE_PARM_DESC(ib_mtu, "path MTU: 256/512/1024/2048/4096 (0: that of the path)");

RO2IB_PARAM(concurrent_sends, int, 0, 0, INT_MAX, 0444);
MODULE_PARM_DESC(concurrent_sends, "accepted for compatibility, without effect: send queue slots are counted exactly");

RO2IB_PARAM(use_fastreg_gaps, int, 0, INT_MIN, INT_MAX, 0444);
MODULE_PARM_DESC(use_fastreg_gaps, "accepted for compatibility, without effect: sinks with gaps are copied");

RO2IB_PARAM(map_on_demand, int, 1, 0, INT_MAX, 0444);
MODULE_PARM_DESC(map_on_demand, "accepted for compatibility, without effect: always 1");

RO2IB_PARAM(fmr_pool_size, int, 512, 1, INT_MAX, 0444);
MODULE_PARM_DESC(fmr_pool_size, "accepted for compatibility, without effect (must be >= ntx / 4)");

RO2IB_PARAM(fmr_flush_trigger, int, 384, 1, INT_MAX, 0444);
MODULE_PARM_DESC(fmr_flush_trigger, "accepted for compatibility, without effect");

RO2IB_PARAM(fmr_cache, int, 1, INT_MIN, INT_MAX, 0444);
MODULE_PARM_DESC(fmr_cache, "accepted for compatibility, without effect");

RO2IB_PARAM(dev_failover, int, 0, 0, INT_MAX, 0444);
MODULE_PARM_DESC(dev_failover, "accepted for compatibility, without effect: an NI always follows its interface to another device");

RO2IB_PARAM_OPS(require_privileged_port, int, &ro2ib_conn_param_ops, 0, INT_MIN, INT_MAX, 0644);
MODULE_PARM_DESC(require_privileged_port, "non-zero: reject peers that connect from ports 1024 and above");

RO2IB_PARAM_OPS(use_privileged_port, int, &ro2ib_conn_param_ops, 1, INT_MIN, INT_MAX, 0644);
MODULE_PARM_DESC(use_privileged_port, "non-zero: connect from a port below 1024");

RO2IB_PARAM(wrq_sge, uint, 2, 1, 256, 0444);
MODULE_PARM_DESC(wrq_sge, "scatter/gather elements per work request, at least; 16 are used where the device can (not given: 30)");

RO2IB_PARAM(tos, int, -1, -1, 255, 0444);
MODULE_PARM_DESC(tos, "IP type of service of connections (-1: not set)");

#define RO2IB_PARAM_READER(name)					\
	int ro2ib_param_##name(void)					\
	{								\
		return READ_ONCE(p_##name.value);			\
	}

RO2IB_PARAM_READER(credits)
RO2IB_PARAM_READER(peer_credits)
RO2IB_PARAM_READER(peer_credits_hiw)
RO2IB_PARAM_READER(peer_buffer_credits)
RO2IB_PARAM_READER(peer_timeout)
RO2IB_PARAM_READER(concurrent_sends)
RO2IB_PARAM_READER(ntx)
RO2IB_PARAM_READER(conns_per_peer)
RO2IB_PARAM_READER(map_on_demand)
RO2IB_PARAM_READER(fmr_pool_size)
RO2IB_PARAM_READER(fmr_flush_trigger)
RO2IB_PARAM_READER(fmr_cache)
RO2IB_PARAM_READER(tos)

bool ro2ib_param_credits_given(void)
{
	return p_credits.given;
}

bool ro2ib_param_peer_credits_given(void)
{
	return p_peer_credits.given;
}

const char *ro2ib_param_ipif_name(void)
{
	/* read-only after load */
	return ipif_name;
}

void ro2ib_params_fill(struct ro2ib_ni_cfg *cfg)
{
	cfg->service = p_service.value;
	cfg->ib_mtu = p_ib_mtu.value;
	cfg->wrq_sge = p_wrq_sge.value;
	cfg->wrq_sge_given = p_wrq_sge.given;
}

bool ro2ib_param_cksum(void)
{
	return READ_ONCE(p_cksum.value);
}

u32 ro2ib_param_timeout_raw(void)
{
	return READ_ONCE(p_timeout.value);
}

u8 ro2ib_param_retry_count(void)
{
	return min(READ_ONCE(p_retry_count.value), 7);
}

u8 ro2ib_param_rnr_retry_count(void)
{
	return min(READ_ONCE(p_rnr_retry_count.value), 7);
}

u32 ro2ib_param_keepalive(void)
{
	return max(READ_ONCE(p_keepalive.value), 0);
}

u32 ro2ib_param_probe(void)
{
	return READ_ONCE(p_probe.value);
}

bool ro2ib_param_require_privileged_port(void)
{
	return READ_ONCE(p_require_privileged_port.value);
}

bool ro2ib_param_use_privileged_port(void)
{
	return READ_ONCE(p_use_privileged_port.value);
}
