// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: the command language of ctl.
 */
#include <linux/export.h>
#include <linux/slab.h>

#include "internal.h"

#define MAX_WORDS	40
#define MAX_LINE	1024

static const char * const op_names[] = { "put", "put-ack", "get", "mix" };
static const char * const verify_names[] = { "off", "data", "full" };
static const char * const shape_names[LNET_LITE_NSHAPES] = {
	[LNET_LITE_ALIGNED]	= "aligned",
	[LNET_LITE_CONTIG]	= "contig",
	[LNET_LITE_SCATTER]	= "scatter",
	[LNET_LITE_UNALIGNED]	= "unaligned",
	[LNET_LITE_GAPS]	= "gaps",
	[LNET_LITE_VMALLOC]	= "vmalloc",
	[LNET_LITE_BIGMD]	= "bigmd",
};

static const char * const memory_names[LNET_LITE_NMEMORIES] = { "host", "gpu", "mixed" };

static int nid_arg(const char *s, struct lnet_nid *nid)
{
	if (!strcmp(s, "any")) {
		*nid = LNET_ANY_NID;
		return 0;
	}
	return libcfs_strnid(nid, s);
}

/* Numbers take the usual suffixes: 4k, 1m */
static int u32_arg(const char *s, u32 *v)
{
	char *end;
	u64 n = memparse(s, &end);

	if (end == s || *end || n > U32_MAX)
		return -EINVAL;
	*v = n;
	return 0;
}

static int name_arg(const char * const *names, size_t n, const char *s, unsigned int *v)
{
	int i = match_string(names, n, s);

	if (i < 0)
		return -EINVAL;
	*v = i;
	return 0;
}

static int bool_arg(const char *s, bool *v)
{
	return kstrtobool(s, v);
}

static int traffic_word(struct lnet_lite_traffic *t, const char *key, const char *val,
			bool *tshape)
{
	unsigned int i = 0;
	int rc;

	if (!strcmp(key, "size"))
		return u32_arg(val, &t->size);
	if (!strcmp(key, "sink"))
		return u32_arg(val, &t->sink);
	if (!strcmp(key, "toff"))
		return u32_arg(val, &t->toff);
	if (!strcmp(key, "count"))
		return u32_arg(val, &t->count);
	if (!strcmp(key, "conc"))
		return u32_arg(val, &t->conc);
	if (!strcmp(key, "peers"))
		return u32_arg(val, &t->peers);
	if (!strcmp(key, "timeout"))
		return u32_arg(val, &t->timeout);
	if (!strcmp(key, "seconds"))
		return u32_arg(val, &t->seconds);
	if (!strcmp(key, "pause_ms"))
		return u32_arg(val, &t->pause_ms);
	if (!strcmp(key, "to"))
		return nid_arg(val, &t->to);
	if (!strcmp(key, "from"))
		return nid_arg(val, &t->from);
	if (!strcmp(key, "via"))
		return nid_arg(val, &t->via);
	if (!strcmp(key, "nomatch"))
		return bool_arg(val, &t->nomatch);
	if (!strcmp(key, "route"))
		return bool_arg(val, &t->route);
	if (!strcmp(key, "trunc")) {
		bool trunc;

		rc = bool_arg(val, &trunc);
		t->no_trunc = !trunc;
		return rc;
	}
	if (!strcmp(key, "ask")) {
		bool ask;

		rc = bool_arg(val, &ask);
		t->no_ask = !ask;
		return rc;
	}
	if (!strcmp(key, "op")) {
		rc = name_arg(op_names, ARRAY_SIZE(op_names), val, &i);
		t->op = i;
		return rc;
	}
	if (!strcmp(key, "verify")) {
		rc = name_arg(verify_names, ARRAY_SIZE(verify_names), val, &i);
		t->verify = i;
		return rc;
	}
	if (!strcmp(key, "shape")) {
		rc = name_arg(shape_names, LNET_LITE_NSHAPES, val, &i);
		t->shape = i;
		return rc;
	}
	if (!strcmp(key, "mem")) {
		rc = name_arg(memory_names, LNET_LITE_NMEMORIES, val, &i);
		t->memory = i;
		return rc;
	}
	if (!strcmp(key, "tmem")) {
		rc = name_arg(memory_names, LNET_LITE_NMEMORIES, val, &i);
		t->tmemory = i;
		return rc;
	}
	if (!strcmp(key, "tshape")) {
		rc = name_arg(shape_names, LNET_LITE_NSHAPES, val, &i);
		t->tshape = i;
		*tshape = true;
		return rc;
	}
	return -ENOENT;
}

static int result_print(const struct lnet_lite_result *r, char *res, size_t size)
{
	u64 ms = div_u64(r->usec, 1000);

	return scnprintf(res, size,
		"from=%s\nissued=%u\ncount=%u\nerrors=%u\ntimeouts=%u\nstuck=%u\nfirst_error=%d\nbytes=%llu\nseconds=%llu.%03u\nusec=%llu\nrate=%llu\nbytes_per_sec=%llu\nlat_avg_us=%llu\nlat_p50_us=%llu\nlat_p99_us=%llu\nlat_max_us=%llu\nverified=%llu\nverify_errors=%u\npeer_puts=%u\npeer_verified=%llu\npeer_verify_errors=%u\n",
		libcfs_nidstr(&r->from), r->issued, r->done, r->errors, r->timeouts, r->stuck, r->first_error, r->bytes,
		div_u64(ms, 1000), (u32)(ms - div_u64(ms, 1000) * 1000), r->usec, r->rate,
		div64_u64(r->bytes * USEC_PER_SEC, max(r->usec, 1ULL)), r->lat_avg, r->lat_p50,
		r->lat_p99, r->lat_max, r->verified_bytes, r->verify_errors, r->peer_puts,
		r->peer_verified_bytes, r->peer_verify_errors);
}

static int cmd_traffic(char **w, int n, char *res, size_t size)
{
	struct lnet_lite_traffic t;
	struct lnet_lite_result r;
	bool tshape = false;
	int i, rc;

	lnet_lite_traffic_init(&t);
	for (i = 1; i < n; i++) {
		char *val = strchr(w[i], '=');

		rc = -EINVAL;
		if (val) {
			*val++ = 0;
			rc = traffic_word(&t, w[i], val, &tshape);
		}
		if (rc) {
			scnprintf(res, size, "error=bad argument %s\n", w[i]);
			return -EINVAL;
		}
	}
	if (!tshape)
		t.tshape = t.shape;
	rc = lnet_lite_traffic(&t, &r);
	if (!rc || rc == -EINTR)
		result_print(&r, res, size);
	return rc;
}

/* ping <nid> [from=<nid>] [timeout=<seconds>] */
static int cmd_ping(char **w, int n, char *res, size_t size)
{
	struct lnet_nid to, from = LNET_ANY_NID;
	u32 timeout = 0;
	s64 us;
	int i;

	if (n < 2 || libcfs_strnid(&to, w[1]))
		return -EINVAL;
	for (i = 2; i < n; i++) {
		if (!strncmp(w[i], "from=", 5) ? nid_arg(w[i] + 5, &from) :
		    !strncmp(w[i], "timeout=", 8) ? u32_arg(w[i] + 8, &timeout) : -EINVAL)
			return -EINVAL;
	}
	us = lnet_lite_ping(&from, &to, timeout);
	if (us < 0)
		return us;
	scnprintf(res, size, "usec=%lld\n", us);
	return 0;
}

/* ni add <net> [<interface>|-] [nid=<nid>] [tunable=value]... */
static int cmd_ni_add(char **w, int n, char *res, size_t size)
{
	const char *iface = NULL;
	struct lnet_nid addr, out;
	bool has_addr = false;
	char *opts;
	int i, rc, len = 0;

	if (n < 3)
		return -EINVAL;
	opts = kzalloc(MAX_LINE, GFP_KERNEL);
	if (!opts)
		return -ENOMEM;
	for (i = 3; i < n; i++) {
		if (!strchr(w[i], '=')) {
			iface = strcmp(w[i], "-") ? w[i] : NULL;
		} else if (!strncmp(w[i], "nid=", 4)) {
			rc = libcfs_strnid(&addr, w[i] + 4);
			if (rc)
				goto out;
			has_addr = true;
		} else {
			len += scnprintf(opts + len, MAX_LINE - len, "%s ", w[i]);
		}
	}
	rc = lnl_ni_add_line(w[2], iface, has_addr ? &addr : NULL, opts, &out);
	if (!rc)
		scnprintf(res, size, "nid=%s\n", libcfs_nidstr(&out));
	else if (rc == -EPROTONOSUPPORT)
		scnprintf(res, size, "error=no LND is registered for net %s\n", w[2]);
out:
	kfree(opts);
	return rc;
}

static int cmd_ni(char **w, int n, char *res, size_t size)
{
	struct lnet_nid nid;
	char *value;
	long v;
	int rc;

	if (n == 2 && !strcmp(w[1], "list")) {
		lnl_nis_print(res, size);
		return 0;
	}
	if (n >= 3 && !strcmp(w[1], "add"))
		return cmd_ni_add(w, n, res, size);
	if (n == 4 && !strcmp(w[1], "set") && !libcfs_strnid(&nid, w[2])) {
		value = strchr(w[3], '=');
		if (!value)
			return -EINVAL;
		*value++ = 0;
		return kstrtol(value, 0, &v) ?: lnl_ni_set(&nid, w[3], v);
	}
	if (n != 3 || libcfs_strnid(&nid, w[2]))
		return -EINVAL;
	if (!strcmp(w[1], "del"))
		return lnet_lite_ni_del(&nid);
	if (!strcmp(w[1], "show")) {
		rc = lnl_ni_show(&nid, res, size);
		return min(rc, 0);
	}
	return -EINVAL;
}

/* The legacy calls: on every NI of the peer's net, or on that of from= */
static int ctl_call(unsigned int cmd, const struct lnet_nid *nid, const struct lnet_nid *from,
		    u32 index, struct libcfs_ioctl_data *data)
{
	struct lnl_ni *ni = lnl_ni_pick(from, nid);
	int rc;

	if (!ni)
		return -ENETUNREACH;
	memset(data, 0, sizeof(*data));
	data->ioc_nid = lnet_nid_to_nid4(nid);
	data->ioc_net = LNET_NID_NET(nid);
	data->ioc_count = index;
	rc = ni->net.net_lnd->lnd_ctl ?
	     ni->net.net_lnd->lnd_ctl(&ni->ni, cmd, data) : -EOPNOTSUPP;
	lnl_ni_put(ni);
	return rc;
}

static int list_call(unsigned int cmd, const char *what, const char *of, char *res, size_t size)
{
	struct libcfs_ioctl_data data;
	struct lnet_nid from, any = LNET_ANY_NID;
	int n = 0, rc;
	u32 i;

	if (libcfs_strnid(&from, of))
		return -EINVAL;
	for (i = 0; i < 1024; i++) {
		rc = ctl_call(cmd, &any, &from, i, &data);
		if (rc)
			break;
		n += scnprintf(res + n, size - n, "%s%u=%s %s=%u\n", what, i,
			       libcfs_nid2str(data.ioc_nid),
			       cmd == IOC_LIBCFS_GET_CONN ? "mtu" : "refs",
			       cmd == IOC_LIBCFS_GET_CONN ? data.ioc_u32[0] : data.ioc_count);
	}
	scnprintf(res + n, size - n, "%ss=%u\n", what, i);
	return rc == -ENOENT ? 0 : rc;
}

/*
 * peer list | peer del <nid>|any [from=<nid>] | peer lnd <my nid> | peer debug <nid>
 * conn close <nid>|any [from=<nid>] | conn list <my nid>
 */
static int cmd_peer_conn(char **w, int n, char *res, size_t size)
{
	bool conn = !strcmp(w[0], "conn");
	struct lnet_nid nid, from = LNET_ANY_NID;
	struct libcfs_ioctl_data data;

	if (n == 2 && !conn && !strcmp(w[1], "list")) {
		lnl_peers_print(res, size);
		return 0;
	}
	if (n < 3)
		return -EINVAL;
	if (!strcmp(w[1], conn ? "list" : "lnd"))
		return list_call(conn ? IOC_LIBCFS_GET_CONN : IOC_LIBCFS_GET_PEER, w[0], w[2],
				 res, size);
	if (!conn && n == 3 && !strcmp(w[1], "debug"))
		return nid_arg(w[2], &nid) ?: ctl_call(IOC_LIBCFS_GET_PEER, &nid, &from, 0, &data);
	if (strcmp(w[1], conn ? "close" : "del") || nid_arg(w[2], &nid))
		return -EINVAL;
	if (n == 4 && (strncmp(w[3], "from=", 5) || nid_arg(w[3] + 5, &from)))
		return -EINVAL;
	if (LNET_NID_IS_ANY(&nid) && LNET_NID_IS_ANY(&from))
		return -EINVAL;
	return ctl_call(conn ? IOC_LIBCFS_CLOSE_CONNECTION : IOC_LIBCFS_DEL_PEER, &nid, &from, 0,
			&data);
}

static int cmd_set(char **w, int n, char *res, size_t size)
{
	int i, rc;

	for (i = 1; i < n; i++) {
		char *val = strchr(w[i], '=');
		long v;

		if (!val)
			return -EINVAL;
		*val++ = 0;
		if (!strcmp(w[i], "slow_peer")) {
			rc = nid_arg(val, &lnl_slow_peer);
		} else {
			rc = kstrtol(val, 0, &v);
			if (!rc)
				rc = lnl_knob_set(w[i], v);
		}
		if (rc) {
			scnprintf(res, size, "error=%s refused\n", w[i]);
			return rc;
		}
	}
	lnl_knobs_print(res, size);
	return 0;
}

/* @line is cut into words in place; the answer is text, also with an error */
int lnl_cmd(char *line, char *res, size_t size)
{
	char *w[MAX_WORDS], *word;
	int n = 0;

	res[0] = 0;
	while ((word = strsep(&line, " \t\n"))) {
		if (!word[0])
			continue;
		if (n == MAX_WORDS)
			return -E2BIG;
		w[n++] = word;
	}
	if (!n)
		return -EINVAL;
	if (!strcmp(w[0], "ni"))
		return cmd_ni(w, n, res, size);
	if (!strcmp(w[0], "traffic"))
		return cmd_traffic(w, n, res, size);
	if (!strcmp(w[0], "ping"))
		return cmd_ping(w, n, res, size);
	if (!strcmp(w[0], "peer") || !strcmp(w[0], "conn"))
		return cmd_peer_conn(w, n, res, size);
	if (!strcmp(w[0], "set"))
		return cmd_set(w, n, res, size);
	if (!strcmp(w[0], "stats") && n == 2 && !strcmp(w[1], "reset")) {
		lnl_stats_reset();
		return 0;
	}
	if (!strcmp(w[0], "msgs")) {
		lnl_msgs_print(res, size);
		return 0;
	}
	scnprintf(res, size, "error=unknown command %s\n", w[0]);
	return -EINVAL;
}

int lnet_lite_cmd(const char *line, char *result, size_t size)
{
	char *copy = kstrdup(line, GFP_KERNEL);
	int rc;

	if (!copy)
		return -ENOMEM;
	rc = lnl_cmd(copy, result, size);
	kfree(copy);
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_lite_cmd);
