/* SPDX-License-Identifier: GPL-2.0 */
/* LNet's interface for an LND, with LNet's names and prototypes */
#ifndef _LNL_LIB_LNET_H
#define _LNL_LIB_LNET_H

#include <linux/if.h>
#include <linux/lnet/lib-cpt.h>
#include <linux/lnet/lib-types.h>
#include <linux/time64.h>

/* Only the stand-in has this; who is built for it may want to say so. */
#define LNET_LITE 1

struct net_device;

void lnet_register_lnd(const struct lnet_lnd *lnd);
void lnet_unregister_lnd(const struct lnet_lnd *lnd);

/* Thread context, nothing held. 0: lnd_recv() is or will be called exactly once */
int lnet_parse(struct lnet_ni *ni, struct lnet_hdr *hdr, struct lnet_nid *from_nid,
	       void *private, int rdma_req);
/* Thread context, nothing held; may call lnd_send(). A NULL @msg is accepted */
void lnet_finalize(struct lnet_msg *msg, int rc);
struct lnet_msg *lnet_create_reply_msg(struct lnet_ni *ni, struct lnet_msg *get_msg);
void lnet_set_reply_msg_len(struct lnet_ni *ni, struct lnet_msg *reply, unsigned int len);
/* @when: ktime_get_seconds() of the last sign of life, never in the future */
int lnet_notify(struct lnet_ni *ni, struct lnet_nid *peer, bool alive, bool reset,
		time64_t when);

struct lnet_ni *lnet_nid_to_ni_addref(struct lnet_nid *nid);
void lnet_ni_decref(struct lnet_ni *ni);
int lnet_nid2cpt(struct lnet_nid *nid, struct lnet_ni *ni);

int lnet_ni_add_interface(struct lnet_ni *ni, char *iface);
int lnet_ni_set_default_cpts(struct lnet_ni *ni);
__u32 lnet_set_link_fatal_state(struct lnet_ni *ni, unsigned int link_state);
int lnet_get_link_status(struct net_device *dev);
int lnet_get_link_status_locked(struct net_device *dev);
void lnet_mark_ping_buffer_for_update(void);
unsigned int lnet_get_lnd_timeout(void);
bool lnet_send_error_simulation(struct lnet_msg *msg, enum lnet_msg_hstatus *hstatus);
/* Ours: whether a message that is finalized with that health is sent again. LNet has no such function */
bool lnet_lite_resends(struct lnet_msg *msg, enum lnet_msg_hstatus hstatus);
char *lnet_msgtyp2str(int type);

/* One usable address of the host; addresses in network order */
struct lnet_inetdev {
	u32	li_cpt;
	union {
		struct {
			u32	li_ipaddr;
			u32	li_netmask;
		};
		u32	li_ipv6addr[4];
	};
	u32	li_index;
	bool	li_iff_master;
	u32	li_size;
	char	li_name[IFNAMSIZ];
};

/* The array is the caller's to kfree(). Sleeps. Number of entries or -errno */
int lnet_inet_enumerate(struct lnet_inetdev **dev_list, struct net *ns, bool v6_first);
int lnet_inet_select(struct lnet_ni *ni, struct lnet_inetdev *ifaces, int num_ifaces);

static inline void lnet_hdr_from_nid4(struct lnet_hdr *hdr, const struct lnet_hdr_nid4 *vhdr)
{
	const struct _lnet_hdr_nid4 *w = (const void *)vhdr;

	lnet_nid4_to_nid(le64_to_cpu((__force __le64)w->dest_nid), &hdr->dest_nid);
	lnet_nid4_to_nid(le64_to_cpu((__force __le64)w->src_nid), &hdr->src_nid);
	hdr->dest_pid = le32_to_cpu((__force __le32)w->dest_pid);
	hdr->src_pid = le32_to_cpu((__force __le32)w->src_pid);
	hdr->type = le32_to_cpu((__force __le32)w->type);
	hdr->payload_length = le32_to_cpu((__force __le32)w->payload_length);
	hdr->msg = w->msg;
}

static inline void lnet_hdr_to_nid4(const struct lnet_hdr *hdr, struct lnet_hdr_nid4 *vhdr)
{
	struct _lnet_hdr_nid4 *w = (void *)vhdr;

	w->dest_nid = (__force u64)cpu_to_le64(lnet_nid_to_nid4(&hdr->dest_nid));
	w->src_nid = (__force u64)cpu_to_le64(lnet_nid_to_nid4(&hdr->src_nid));
	w->dest_pid = (__force u32)cpu_to_le32(hdr->dest_pid);
	w->src_pid = (__force u32)cpu_to_le32(hdr->src_pid);
	w->type = (__force u32)cpu_to_le32(hdr->type);
	w->payload_length = (__force u32)cpu_to_le32(hdr->payload_length);
	w->msg = hdr->msg;
}

#endif
