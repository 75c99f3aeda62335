// SPDX-License-Identifier: GPL-2.0
/*
 * Text parameters that may change at any time: the access list ("access"), and
 * the tunables of NIs ("ni_tune"). The Rust side parses them
 * (rust/policy/text_params.rs); this file stores them, and writes the values of
 * ni_tune to the NIs.
 *
 * A text is replaced as a whole and read under RCU.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ctype.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "internal.h"

/*
 * A file of sysfs has room for this many bytes with a newline, and the kernel's
 * formats take this precision at most: pages of 64 KiB are larger.
 */
#define RO2IB_TEXT_MAX	(PAGE_SIZE - 2 < S16_MAX ? PAGE_SIZE - 2 : 0UL + S16_MAX)

struct ro2ib_text {
	size_t len;
	char text[];
};

/* Text parameter. The kernel serialises writes, per module. */
struct ro2ib_text_param {
	struct ro2ib_text __rcu *now;
	int (*check)(const char *text, size_t len);	/* number of clauses */
	void (*changed)(void);
};

static bool ro2ib_text_same(const struct ro2ib_text *a,
			    const struct ro2ib_text *b)
{
	if (!a || !b)
		return a == b;
	return a->len == b->len && !memcmp(a->text, b->text, a->len);
}

/* Returns whether the text changed. */
static bool ro2ib_text_put(struct ro2ib_text_param *p, struct ro2ib_text *next)
{
	struct ro2ib_text *old = rcu_replace_pointer(p->now, next, true);
	bool differs = !ro2ib_text_same(old, next);

	if (old) {
		synchronize_rcu();
		kfree(old);
	}
	return differs;
}

static int ro2ib_text_set(const char *val, const struct kernel_param *kp)
{
	struct ro2ib_text_param *p = kp->arg;
	struct ro2ib_text *next = NULL;
	int clauses = 0;
	size_t len;

	val = skip_spaces(val ?: "");
	len = strlen(val);
	while (len && isspace(val[len - 1]))
		len--;
	if (len > RO2IB_TEXT_MAX) {
		pr_err("parameter %s is longer than %lu characters\n", kp->name,
		       RO2IB_TEXT_MAX);
		return -E2BIG;
	}
	if (len) {
		clauses = p->check(val, len);
		if (clauses < 0)
			return clauses;
		next = kmalloc(struct_size(next, text, len), GFP_KERNEL);
		if (!next)
			return -ENOMEM;
		next->len = len;
		memcpy(next->text, val, len);
	}
	if (ro2ib_text_put(p, next) && ro2ib_params_logged())
		pr_info("parameter %s has %d clause%s now\n", kp->name,
			clauses, clauses == 1 ? "" : "s");
	p->changed();
	return 0;
}

static int ro2ib_text_get(char *buf, const struct kernel_param *kp)
{
	const struct ro2ib_text_param *p = kp->arg;
	const struct ro2ib_text *t;
	int n;

	rcu_read_lock();
	t = rcu_dereference(p->now);
	n = sysfs_emit(buf, "%.*s\n", t ? (int)t->len : 0, t ? t->text : "");
	rcu_read_unlock();
	return n;
}

/* Called when the module is unloaded: there are no readers any more. */
static void ro2ib_text_free(void *arg)
{
	struct ro2ib_text_param *p = arg;

	kfree(rcu_replace_pointer(p->now, NULL, true));
}

static const struct kernel_param_ops ro2ib_text_ops = {
	.set = ro2ib_text_set,
	.get = ro2ib_text_get,
	.free = ro2ib_text_free,
};

/* access */

static void ro2ib_access_changed(void)
{
	ro2ib_ni_settings_changed();
}

static struct ro2ib_text_param p_access = {
	.check = ro2ib_rs_check_access,
	.changed = ro2ib_access_changed,
};
module_param_cb(access, &ro2ib_text_ops, &p_access, 0644);
__MODULE_PARM_TYPE(access, "charp");
MODULE_PARM_DESC(access, "peers that may connect: [on <own NIDs>] allow|deny <NIDs>; ... (empty: all)");

bool ro2ib_access_allows(const struct ro2ib_ni *ni, u64 peer)
{
	const struct ro2ib_text *t;
	bool yes = true;

	rcu_read_lock();
	t = rcu_dereference(p_access.now);
	if (t)
		yes = ro2ib_rs_access_allows(t->text, t->len, ni->nid, peer);
	rcu_read_unlock();
	return yes;
}

/* ni_tune */

static void ro2ib_tune_changed(void)
{
	ro2ib_ni_retune();
	ro2ib_ni_settings_changed();
}

static struct ro2ib_text_param p_ni_tune = {
	.check = ro2ib_rs_check_tune,
	.changed = ro2ib_tune_changed,
};
module_param_cb(ni_tune, &ro2ib_text_ops, &p_ni_tune, 0644);
__MODULE_PARM_TYPE(ni_tune, "charp");
MODULE_PARM_DESC(ni_tune, "tunables of NIs, also while they run: <own NIDs> <key>=<value> ...; ...");

void ro2ib_tuning_of(u64 nid, struct ro2ib_tuning *out)
{
	const struct ro2ib_text *t;

	memset(out, 0, sizeof(*out));
	rcu_read_lock();
	t = rcu_dereference(p_ni_tune.now);
	ro2ib_rs_tuning(t ? t->text : "", t ? t->len : 0, nid, out);
	rcu_read_unlock();
}
