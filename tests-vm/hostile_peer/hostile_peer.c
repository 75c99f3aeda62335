// SPDX-License-Identifier: GPL-2.0
/*
 * Hostile peer for the tests: it sends any bytes over RDMA, as connection
 * request, as answer to a request, or as message, and prints what comes back.
 * It does not know the protocol. wire.py makes the bytes.
 *
 *	hostile_peer serve		run as the peer, until killed
 *	hostile_peer <command>...	run a command in the serving process, print its answer
 *
 * Answers are lines of key=value. The exit status is 0 if the command was
 * carried out, whatever the victim's answer was.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SOCKET		"/tmp/hostile_peer.sock"
#define MSG_SIZE	4096
#define MAX_RECVS	600
#define MAX_SENDS	64
#define MAX_LINE	32768
#define MAX_ARGS	16
#define ANSWER		65536
#define HANDSHAKE_MS	60000

#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

struct conn {
	struct conn *next;
	char name[32];
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr, *region_mr;
	uint8_t *buf;		/* one send buffer, then the receive buffers */
	uint8_t *region;
	size_t region_size;
};

static struct conn *conns;
static char answer[ANSWER];
static size_t answer_len;

static void __attribute__((format(printf, 1, 2))) say(const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(answer + answer_len, ANSWER - answer_len, fmt, ap);
	va_end(ap);
	if (n > 0 && answer_len + n < ANSWER)
		answer_len += n;
}

static void say_hex(const char *key, const uint8_t *data, size_t len)
{
	size_t i;

	say("%s=", key);
	for (i = 0; i < len; i++)
		say("%02x", data[i]);
	say("\n");
}

static int fail(const char *what)
{
	say("error=%s: %s\n", what, strerror(errno));
	return 1;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static long from_hex(const char *s, uint8_t *out, size_t room)
{
	size_t n;
	unsigned int byte;

	if (!strcmp(s, "-"))
		return 0;
	for (n = 0; s[2 * n]; n++) {
		if (n == room || sscanf(s + 2 * n, "%2x", &byte) != 1 || !s[2 * n + 1])
			return -1;
		out[n] = byte;
	}
	return n;
}

static struct conn *find(const char *name)
{
	struct conn *c;

	for (c = conns; c; c = c->next)
		if (!strcmp(c->name, name))
			return c;
	return NULL;
}

static struct conn *add(const char *name)
{
	struct conn *c = calloc(1, sizeof(*c));

	if (!c)
		exit(1);
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->next = conns;
	conns = c;
	return c;
}

static void forget(struct conn *c)
{
	struct conn **p;

	for (p = &conns; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	if (c->id && c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->mr)
		ibv_dereg_mr(c->mr);
	if (c->region_mr)
		ibv_dereg_mr(c->region_mr);
	if (c->send_cq)
		ibv_destroy_cq(c->send_cq);
	if (c->recv_cq)
		ibv_destroy_cq(c->recv_cq);
	if (c->pd)
		ibv_dealloc_pd(c->pd);
	if (c->id)
		rdma_destroy_id(c->id);
	if (c->channel)
		rdma_destroy_event_channel(c->channel);
	free(c->buf);
	free(c->region);
	free(c);
}

/*
 * Returns the next CM event of a connection within ms, or NULL. The caller
 * acknowledges it.
 */
static struct rdma_cm_event *next_event(struct conn *c, long ms)
{
	struct pollfd p = { .fd = c->channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&p, 1, ms) != 1 || rdma_get_cm_event(c->channel, &event))
		return NULL;
	return event;
}

static void say_event(struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;

	if (!event) {
		say("event=none\n");
		return;
	}
	say("event=%s\nstatus=%d\n", rdma_event_str(event->event), event->status);
	if (param->private_data_len)
		say_hex("private", param->private_data, param->private_data_len);
	rdma_ack_cm_event(event);
}

static int post_recv(struct conn *c, uint64_t i)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)c->buf + (i + 1) * MSG_SIZE,
		.length = MSG_SIZE,
		.lkey = c->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(c->id->qp, &wr, &bad);
}

static int make_qp(struct conn *c, int recvs)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	size_t size;
	int i;

	if (recvs < 0 || recvs > MAX_RECVS)
		return fail("arguments");
	size = (recvs + 1) * MSG_SIZE;

	c->pd = ibv_alloc_pd(c->id->verbs);
	c->send_cq = ibv_create_cq(c->id->verbs, MAX_SENDS, NULL, NULL, 0);
	c->recv_cq = ibv_create_cq(c->id->verbs, recvs + 1, NULL, NULL, 0);
	c->buf = aligned_alloc(MSG_SIZE, size);
	if (!c->pd || !c->send_cq || !c->recv_cq || !c->buf)
		return fail("resources");
	c->mr = ibv_reg_mr(c->pd, c->buf, size, IBV_ACCESS_LOCAL_WRITE);
	if (!c->mr)
		return fail("reg_mr");
	attr.send_cq = c->send_cq;
	attr.recv_cq = c->recv_cq;
	attr.cap.max_send_wr = MAX_SENDS;
	attr.cap.max_recv_wr = recvs + 1;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	if (rdma_create_qp(c->id, c->pd, &attr))
		return fail("create_qp");
	for (i = 0; i < recvs; i++)
		if (post_recv(c, i))
			return fail("post_recv");
	return 0;
}

static int address(const char *ip, const char *port, struct sockaddr_in *out)
{
	memset(out, 0, sizeof(*out));
	out->sin_family = AF_INET;
	out->sin_port = htons(atoi(port));
	return inet_pton(AF_INET, ip, &out->sin_addr) == 1 ? 0 : -1;
}

/* Waits for one expected event of address and route resolution. */
static int resolved(struct conn *c, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event = next_event(c, HANDSHAKE_MS);
	int rc;

	if (!event)
		return fail("resolve: nothing");
	rc = event->event != want;
	if (rc)
		say("error=%s %d\n", rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	return rc;
}

static struct rdma_conn_param conn_param(const uint8_t *data, long len)
{
	return (struct rdma_conn_param) {
		.private_data = data,
		.private_data_len = len,
		.flow_control = 1,
		.retry_count = 5,
		.rnr_retry_count = 6,
	};
}

/*
 * Requests a connection, whose events are the answer. The words are those
 * of connect.
 */
static int ask(struct conn *c, char **a)
{
	struct sockaddr_in src, dst;
	struct rdma_conn_param param;
	uint8_t data[256];
	long len = from_hex(a[6], data, sizeof(data));

	if (address(a[2], a[3], &src) || address(a[4], a[5], &dst) || len < 0) {
		say("error=arguments\n");
		return 1;
	}
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_create_id(c->channel, &c->id, c, RDMA_PS_TCP))
		return fail("create_id");
	if (rdma_resolve_addr(c->id, (void *)&src, (void *)&dst, 5000))
		return fail("resolve_addr");
	if (resolved(c, RDMA_CM_EVENT_ADDR_RESOLVED))
		return 1;
	if (rdma_resolve_route(c->id, 5000))
		return fail("resolve_route");
	if (resolved(c, RDMA_CM_EVENT_ROUTE_RESOLVED) || make_qp(c, atoi(a[7])))
		return 1;
	param = conn_param(data, len);
	if (rdma_connect(c->id, &param))
		return fail("connect");
	return 0;
}

/*
 * connect NAME SRC SPORT DST PORT HEX RECVS MS: prints what came back
 * within MS
 */
static int cmd_connect(char **a)
{
	struct conn *c = add(a[1]);

	if (ask(c, a))
		return 1;
	say_event(next_event(c, atol(a[8])));
	return 0;
}

/*
 * again SECONDS SRC SPORT DST PORT HEX RECVS MS: connects, and closes at once,
 * for SECONDS, until an attempt ends otherwise, or has no answer within MS.
 * Prints the number of connections.
 */
static int cmd_again(char **a)
{
	long end = now_ms() + 1000 * atol(a[1]);
	struct rdma_cm_event *event;
	struct conn *c;
	int made = 0, rc, up = 1;

	while (up && now_ms() < end) {
		c = add("again");
		rc = ask(c, a);
		event = rc ? NULL : next_event(c, atol(a[8]));
		up = event && event->event == RDMA_CM_EVENT_ESTABLISHED;
		made += up;
		if (up)
			rdma_ack_cm_event(event);
		else if (!rc)
			say_event(event);
		if (up)
			rdma_disconnect(c->id);
		forget(c);
		if (rc)
			return 1;
	}
	say("made=%d\n", made);
	return 0;
}

/* listen NAME IP PORT */
static int cmd_listen(char **a)
{
	struct sockaddr_in src;
	struct conn *c = add(a[1]);

	c->channel = rdma_create_event_channel();
	if (address(a[2], a[3], &src) || !c->channel ||
	    rdma_create_id(c->channel, &c->id, c, RDMA_PS_TCP))
		return fail("create_id");
	if (rdma_bind_addr(c->id, (void *)&src) || rdma_listen(c->id, 64))
		return fail("listen");
	return 0;
}

/* request LISTENER NAME MS: the next connection request, which becomes NAME */
static int cmd_request(char **a)
{
	struct conn *listener = find(a[1]), *c;
	struct rdma_cm_event *event;
	long end = now_ms() + atol(a[3]);

	do {
		event = next_event(listener, end - now_ms() > 0 ? end - now_ms() : 0);
		if (event && event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			break;
		if (event)
			rdma_ack_cm_event(event);
	} while (event);
	if (!event) {
		say("event=none\n");
		return 0;
	}
	c = add(a[2]);
	c->id = event->id;
	c->id->context = c;
	say_event(event);
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_migrate_id(c->id, c->channel))
		return fail("migrate_id");
	return 0;
}

/* Accepts with the private data in hex. */
static int do_accept(struct conn *c, const char *hex, int recvs)
{
	struct rdma_conn_param param;
	uint8_t data[256];
	long len = from_hex(hex, data, sizeof(data));

	if (len < 0 || make_qp(c, recvs))
		return 1;
	param = conn_param(data, len);
	if (rdma_accept(c->id, &param))
		return fail("accept");
	return 0;
}

/* accept NAME HEX RECVS */
static int cmd_accept(char **a)
{
	struct conn *c = find(a[1]);

	if (!c || do_accept(c, a[2], atoi(a[3])))
		return 1;
	say_event(next_event(c, HANDSHAKE_MS));
	return 0;
}

/* answer NAME HEX RECVS: accepts without a wait for the result */
static int cmd_answer(char **a)
{
	struct conn *c = find(a[1]);

	return !c || do_accept(c, a[2], atoi(a[3]));
}

/*
 * spoil LISTENER HEX MESSAGE RECVS MS: for MS accepts each request, sends
 * MESSAGE at once, and disconnects after the peer. Prints the number of
 * requests.
 */
static int cmd_spoil(char **a)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 }, *bad;
	long end = now_ms() + atol(a[5]), left, len;
	struct conn *listener = find(a[1]), *c;
	struct rdma_cm_event *event;
	struct ibv_sge sge;
	char name[32];
	int asked = 0;

	if (!listener)
		return 1;
	while ((left = end - now_ms()) > 0) {
		event = next_event(listener, left);
		if (!event)
			break;
		if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
			c = event->event == RDMA_CM_EVENT_DISCONNECTED ?
				event->id->context : NULL;
			rdma_ack_cm_event(event);
			if (c && c != listener) {
				rdma_disconnect(c->id);
				forget(c);
			}
			continue;
		}
		snprintf(name, sizeof(name), "spoilt%d", asked++);
		c = add(name);
		c->id = event->id;
		c->id->context = c;
		rdma_ack_cm_event(event);
		if (do_accept(c, a[2], atoi(a[4])))
			return 1;
		len = from_hex(a[3], c->buf, MSG_SIZE);
		sge = (struct ibv_sge) { (uintptr_t)c->buf, len, c->mr->lkey };
		wr.sg_list = &sge;
		if (len < 0 || ibv_post_send(c->id->qp, &wr, &bad))
			return fail("post_send");
	}
	say("asked=%d\n", asked);
	return 0;
}

/* reject NAME HEX */
static int cmd_reject(char **a)
{
	struct conn *c = find(a[1]);
	uint8_t data[256];
	long len = from_hex(a[2], data, sizeof(data));

	if (!c || len < 0)
		return 1;
	if (rdma_reject(c->id, data, len))
		return fail("reject");
	forget(c);
	return 0;
}

static int one_wc(struct ibv_cq *cq, long ms, struct ibv_wc *wc)
{
	long end = now_ms() + ms;
	int n;

	for (;;) {
		n = ibv_poll_cq(cq, 1, wc);
		if (n || now_ms() >= end)
			return n;
		usleep(1000);
	}
}

/* send NAME COUNT HEX: sends the message COUNT times, without a pause */
static int cmd_send(char **a)
{
	struct conn *c = find(a[1]);
	int count = atoi(a[2]), ok = 0, posted, i;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 }, *bad;
	const char *status = "success";
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint8_t *msg;
	long len;

	if (!c || !c->mr)
		return 1;
	msg = c->buf;
	len = from_hex(a[3], msg, MSG_SIZE);
	if (len < 0)
		return 1;
	sge = (struct ibv_sge) { (uintptr_t)msg, len, c->mr->lkey };
	wr.sg_list = &sge;
	for (posted = 0; posted < count; posted++)
		if (ibv_post_send(c->id->qp, &wr, &bad))
			break;
	for (i = 0; i < posted; i++) {
		if (one_wc(c->send_cq, HANDSHAKE_MS, &wc) != 1) {
			status = "nothing";
			break;
		}
		if (wc.status == IBV_WC_SUCCESS)
			ok++;
		else if (!strcmp(status, "success"))
			status = ibv_wc_status_str(wc.status);
	}
	say("posted=%d\nok=%d\nwc=%s\n", posted, ok, status);
	return 0;
}

/* Posts a work request, and prints the status of its completion. */
static int post_one(struct conn *c, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (ibv_post_send(c->id->qp, wr, &bad))
		return fail("post_send");
	if (one_wc(c->send_cq, HANDSHAKE_MS, &wc) != 1)
		return fail("completion");
	say("wc=%s\n", ibv_wc_status_str(wc.status));
	return 0;
}

/* immediate NAME: RDMA WRITE of no byte, with immediate data */
static int cmd_immediate(char **a)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM };
	struct conn *c = find(a[1]);

	if (!c || !c->mr)
		return 1;
	return post_one(c, &wr);
}

/*
 * invalidate NAME RKEY HEX: sends the message so that it invalidates a
 * region of the victim
 */
static int cmd_invalidate(char **a)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_INV, .num_sge = 1 };
	struct conn *c = find(a[1]);
	struct ibv_sge sge;
	long len;

	if (!c || !c->mr)
		return 1;
	len = from_hex(a[3], c->buf, MSG_SIZE);
	if (len < 0)
		return 1;
	sge = (struct ibv_sge) { (uintptr_t)c->buf, len, c->mr->lkey };
	wr.sg_list = &sge;
	wr.invalidate_rkey = strtoul(a[2], NULL, 0);
	return post_one(c, &wr);
}

/* long NAME LEN: sends LEN bytes of the buffers in one message */
static int cmd_long(char **a)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 };
	struct conn *c = find(a[1]);
	size_t len = strtoul(a[2], NULL, 0);
	struct ibv_sge sge;

	if (!c || !c->mr || len > c->mr->length)
		return 1;
	sge = (struct ibv_sge) { (uintptr_t)c->buf, len, c->mr->lkey };
	wr.sg_list = &sge;
	return post_one(c, &wr);
}

/* write NAME RKEY ADDR LEN: RDMA WRITE from the own region */
static int cmd_write(char **a)
{
	struct conn *c = find(a[1]);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .num_sge = 1 }, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!c || !c->region_mr)
		return 1;
	sge = (struct ibv_sge) { (uintptr_t)c->region, strtoul(a[4], NULL, 0),
				 c->region_mr->lkey };
	wr.sg_list = &sge;
	wr.wr.rdma.rkey = strtoul(a[2], NULL, 0);
	wr.wr.rdma.remote_addr = strtoull(a[3], NULL, 0);
	if (ibv_post_send(c->id->qp, &wr, &bad))
		return fail("post_send");
	if (one_wc(c->send_cq, HANDSHAKE_MS, &wc) != 1)
		say("wc=nothing\n");
	else
		say("wc=%s\n", ibv_wc_status_str(wc.status));
	return 0;
}

/* recv NAME MS: the next message */
static int cmd_recv(char **a)
{
	struct conn *c = find(a[1]);
	struct ibv_wc wc;

	if (!c || !c->mr)
		return 1;
	if (one_wc(c->recv_cq, atol(a[2]), &wc) != 1) {
		say("wc=nothing\n");
		return 0;
	}
	say("wc=%s\n", ibv_wc_status_str(wc.status));
	if (wc.status == IBV_WC_SUCCESS) {
		say_hex("data", c->buf + (wc.wr_id + 1) * MSG_SIZE, wc.byte_len);
		post_recv(c, wc.wr_id);
	}
	return 0;
}

/* region NAME SIZE: memory for the victim to write to, filled with 0xee */
static int cmd_region(char **a)
{
	struct conn *c = find(a[1]);

	if (!c || !c->pd || c->region)
		return 1;
	c->region_size = strtoul(a[2], NULL, 0);
	c->region = aligned_alloc(MSG_SIZE, c->region_size);
	if (!c->region)
		return fail("memory");
	memset(c->region, 0xee, c->region_size);
	c->region_mr = ibv_reg_mr(c->pd, c->region, c->region_size,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!c->region_mr)
		return fail("reg_mr");
	say("addr=%llu\nrkey=%u\n", (unsigned long long)(uintptr_t)c->region, c->region_mr->rkey);
	return 0;
}

/* touched NAME: number of bytes of the region that are not 0xee any more */
static int cmd_touched(char **a)
{
	struct conn *c = find(a[1]);
	size_t i, n = 0;

	if (!c || !c->region)
		return 1;
	for (i = 0; i < c->region_size; i++)
		n += c->region[i] != 0xee;
	say("touched=%zu\n", n);
	return 0;
}

/* event NAME MS: the next CM event */
static int cmd_event(char **a)
{
	struct conn *c = find(a[1]);

	if (!c)
		return 1;
	say_event(next_event(c, atol(a[2])));
	return 0;
}

/* close NAME */
static int cmd_close(char **a)
{
	struct conn *c = find(a[1]);

	if (!c)
		return 1;
	if (c->id->qp)
		rdma_disconnect(c->id);
	forget(c);
	return 0;
}

/*
 * Returns the index of the GID of an IPv4 address, which it makes a GID,
 * or -1.
 */
static int gid_of(struct ibv_context *verbs, const struct sockaddr_in *addr,
		  union ibv_gid *gid)
{
	union ibv_gid other;
	int i;

	memset(gid, 0, sizeof(*gid));
	memset(gid->raw + 10, 0xff, 2);
	memcpy(gid->raw + 12, &addr->sin_addr, 4);
	for (i = 0; !ibv_query_gid(verbs, 1, i, &other); i++)
		if (!memcmp(&other, gid, sizeof(other)))
			return i;
	return -1;
}

/* mad SRC DST HEX: sends a management datagram from an ordinary queue pair */
static int cmd_mad(char **a)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .sq_sig_all = 1 };
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1,
	};
	struct ibv_ah_attr to = {
		.is_global = 1, .grh.hop_limit = 64, .port_num = 1,
	};
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 }, *bad;
	struct sockaddr_in src, dst;
	union ibv_gid own;
	struct ibv_sge sge;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	struct conn *c = add("mad");
	int index, rc;
	long len;

	c->channel = rdma_create_event_channel();
	c->buf = aligned_alloc(MSG_SIZE, MSG_SIZE);
	if (address(a[1], "0", &src) || address(a[2], "0", &dst) || !c->buf ||
	    !c->channel || rdma_create_id(c->channel, &c->id, c, RDMA_PS_UDP) ||
	    rdma_bind_addr(c->id, (void *)&src))
		return fail("bind");
	len = from_hex(a[3], c->buf, MSG_SIZE);
	index = gid_of(c->id->verbs, &src, &own);
	gid_of(c->id->verbs, &dst, &to.grh.dgid);
	to.grh.sgid_index = index;
	c->pd = ibv_alloc_pd(c->id->verbs);
	c->send_cq = ibv_create_cq(c->id->verbs, 1, NULL, NULL, 0);
	if (len < 0 || index < 0 || !c->pd || !c->send_cq)
		return fail("resources");
	c->mr = ibv_reg_mr(c->pd, c->buf, MSG_SIZE, IBV_ACCESS_LOCAL_WRITE);
	ah = ibv_create_ah(c->pd, &to);
	init.send_cq = c->send_cq;
	init.recv_cq = c->send_cq;
	init.cap.max_send_wr = 1;
	init.cap.max_send_sge = 1;
	qp = ibv_create_qp(c->pd, &init);
	if (!c->mr || !ah || !qp)
		return fail("queue pair");
	rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
			   IBV_QP_PORT | IBV_QP_QKEY);
	attr.qp_state = IBV_QPS_RTR;
	rc = rc ?: ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	rc = rc ?: ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	sge = (struct ibv_sge) { (uintptr_t)c->buf, len, c->mr->lkey };
	wr.sg_list = &sge;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 1;
	wr.wr.ud.remote_qkey = 0x80010000;
	rc = rc ?: ibv_post_send(qp, &wr, &bad);
	rc = rc ?: one_wc(c->send_cq, HANDSHAKE_MS, &wc) != 1;
	ibv_destroy_qp(qp);
	ibv_destroy_ah(ah);
	forget(c);
	return rc ? fail("send") : 0;
}

static const struct {
	const char *name;
	int args;
	int (*run)(char **args);
} commands[] = {
	{ "connect", 8, cmd_connect },
	{ "again", 8, cmd_again },
	{ "listen", 3, cmd_listen },
	{ "request", 3, cmd_request },
	{ "accept", 3, cmd_accept },
	{ "answer", 3, cmd_answer },
	{ "spoil", 5, cmd_spoil },
	{ "reject", 2, cmd_reject },
	{ "send", 3, cmd_send },
	{ "immediate", 1, cmd_immediate },
	{ "invalidate", 3, cmd_invalidate },
	{ "long", 2, cmd_long },
	{ "write", 4, cmd_write },
	{ "recv", 2, cmd_recv },
	{ "region", 2, cmd_region },
	{ "touched", 1, cmd_touched },
	{ "event", 2, cmd_event },
	{ "close", 1, cmd_close },
	{ "mad", 3, cmd_mad },
};

static int run(char *line)
{
	char *a[MAX_ARGS], *word;
	size_t i;
	int n = 0;

	while ((word = strsep(&line, " \n")) && n < MAX_ARGS)
		if (*word)
			a[n++] = word;
	for (i = 0; i < ARRAY_SIZE(commands); i++)
		if (n && !strcmp(a[0], commands[i].name) && n == commands[i].args + 1)
			return commands[i].run(a);
	say("error=no such command\n");
	return 1;
}

static int local_socket(struct sockaddr_un *addr)
{
	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	strcpy(addr->sun_path, SOCKET);
	return socket(AF_UNIX, SOCK_STREAM, 0);
}

/* Runs one command at a time, each over a connection of its own. */
static int serve(void)
{
	static char line[MAX_LINE];
	struct sockaddr_un addr;
	int s = local_socket(&addr), fd;
	size_t n;
	ssize_t got;

	unlink(SOCKET);
	if (s < 0 || bind(s, (void *)&addr, sizeof(addr)) || listen(s, 8)) {
		perror("hostile_peer");
		return 1;
	}
	while ((fd = accept(s, NULL, NULL)) >= 0) {
		for (n = 0; n < MAX_LINE - 1; n += got) {
			got = read(fd, line + n, MAX_LINE - 1 - n);
			if (got <= 0)
				break;
		}
		line[n] = 0;
		answer_len = 0;
		say("rc=%d\n", run(line));
		if (write(fd, answer, answer_len) < 0)
			perror("hostile_peer");
		close(fd);
	}
	return 1;
}

static int request(int argc, char **argv)
{
	struct sockaddr_un addr;
	int s = local_socket(&addr), i;
	char buf[4096];
	ssize_t n;

	if (s < 0 || connect(s, (void *)&addr, sizeof(addr))) {
		perror("hostile_peer");
		return 2;
	}
	for (i = 1; i < argc; i++)
		if (write(s, argv[i], strlen(argv[i])) < 0 || write(s, " ", 1) < 0)
			return 2;
	shutdown(s, SHUT_WR);
	while ((n = read(s, buf, sizeof(buf))) > 0)
		fwrite(buf, 1, n, stdout);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "serve"))
		return serve();
	if (argc > 1)
		return request(argc, argv);
	fprintf(stderr, "usage: hostile_peer serve | hostile_peer command...\n");
	return 2;
}
