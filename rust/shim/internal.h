/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Definitions shared by the C files of rust/shim/, private to them; only this
 * header includes LNet's headers.
 *
 * LNet differs between releases. scripts/lnet-probe reads the headers of the
 * LNet tree that the module is built for and defines RO2IB_HAVE_* for each
 * thing it found; no version numbers are compared anywhere.
 */
#ifndef RO2IB_SHIM_PRIVATE_H
#define RO2IB_SHIM_PRIVATE_H

#include <linux/completion.h>
#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>

/* The headers moved after 2.17; libcfs's too. */
#if __has_include("linux/lnet/lib-lnet.h")
#include <linux/lnet/lib-lnet.h>
#include <linux/lnet/lnet_rdma.h>
#else
#include <lnet/lib-lnet.h>
#include <lnet/lnet_rdma.h>
#endif
#if __has_include("linux/libcfs/libcfs.h")
#include <linux/libcfs/libcfs.h>
#else
#include <libcfs/libcfs.h>
#endif
#include <uapi/linux/lnet/libcfs_ioctl.h>

#include "lnet_2_15.h"
#include "params.h"
#include "ro2iblnd_compat.h"
#include "ro2iblnd_shim.h"

/* Kernels without this attribute clear the variable. */
#ifndef __uninitialized
#define __uninitialized
#endif

/* Reasons why an NI is marked fatal; bits of ro2ib_ni.fatal. */
#define RO2IB_FATAL_LINK	BIT(0)	/* interface or address is down */
#define RO2IB_FATAL_PORT	BIT(1)	/* the driver found the HCA port down */
#define RO2IB_FATAL_TOLD	BIT(2)	/* the driver has logged the fault */

/* State of one NI; lnet_ni.ni_data points here. */
struct ro2ib_ni {
	struct list_head list;		/* on ro2ib_ni_list */
	struct lnet_ni *ni;
	void *priv;			/* the driver's NI, NULL while it starts */
	refcount_t users;		/* references held by the driver + 1 */
	struct completion released;	/* users fell to 0 */
	struct net *net;		/* referenced by @ni */
	__be32 ip;
	int ifindex;			/* written under ro2ib_ni_mutex */
	unsigned long fatal;		/* protected by ro2ib_ni_mutex */
	enum ro2ib_link_event link;	/* last one given to the driver; as fatal */
	bool arp_told;			/* see ro2ib_ni_check_arp(); as fatal */
	bool leaving;	/* of ro2ib_close_before_down(); as fatal */
	struct device __rcu *dma_dev;	/* counted */
	u64 nid;
	u32 peer_credits;		/* as given, or as chosen last */
	bool peer_credits_open;		/* the user gave none */
	bool credits_open;		/* nor credits; of the first NI of the net */
	u32 credits;			/* chosen for that depth */
	u32 mbps;			/* speed of that choice; 0: unknown */
	struct ro2ib_tuning tune;	/* written under ro2ib_ni_mutex */
	char name[32];
};

#define RO2IB_CONNS_PER_PEER_MAX 127

/* lnet_lnd.c */
extern const struct ro2ib_lnd_ops *ro2ib_ops;

/* Fills the request to send a message whose NIDs the driver can name. */
static inline void ro2ib_send_req_fill(struct ro2ib_send_req *req,
				       struct lnet_msg *msg)
{
	struct lnet_libmd *md = msg->msg_md;

	*req = (struct ro2ib_send_req) {
		.msg = msg,
		.target = lnet_nid_to_nid4(&msg->msg_target.nid),
		.type = msg->msg_type,
		.to_router = msg->msg_target_is_router,
		.routing = msg->msg_routing,
	};
	lnet_hdr_to_nid4(&msg->msg_hdr, (struct lnet_hdr_nid4 *)req->hdr);

	/* A GET has no payload of its own, and no MD when it is forwarded. */
	if (msg->msg_type != LNET_MSG_GET) {
		if (msg->msg_len) {
			req->pages.bv = msg->msg_kiov;
			req->pages.nr = msg->msg_niov;
			req->pages.offset = msg->msg_offset;
			req->pages.nob = msg->msg_len;
			req->pages.gpu = lnet_md_is_gpu(md);
		}
	} else if (md && md->md_length) {
		req->pages.bv = md->md_kiov;
		req->pages.nr = md->md_niov;
		req->pages.nob = md->md_length;
		req->pages.gpu = lnet_md_is_gpu(md);
	}
}

/* tunable_defaults.c */
extern const struct ln_key_list ro2ib_tunables_keys;
int ro2ib_tunables_startup(struct lnet_ni *lni, struct ro2ib_ni_cfg *cfg);
void ro2ib_tunables_derive(struct ro2ib_ni *ni);
u32 ro2ib_clamp_hiw(u32 hiw, u32 pc);
void ro2ib_ni_chosen(struct ro2ib_ni *ni, u32 *depth, u32 *credits);
int ro2ib_tun_defaults(struct lnet_lnd_tunables *tun,
		       struct lnet_ioctl_config_lnd_cmn_tunables *cmn);
int ro2ib_nl_get_all(int cmd, struct sk_buff *skb, int type, void *data,
		     bool export_backup);
int ro2ib_nl_set(int cmd, struct nlattr *attr, int type, void *data);

/* ni_iface.c */
int ro2ib_ni_select(struct lnet_ni *lni, struct ro2ib_ni_cfg *cfg);
struct ro2ib_ni *ro2ib_ni_alloc(struct lnet_ni *lni,
				const struct ro2ib_ni_cfg *cfg);
void ro2ib_ni_release(struct ro2ib_ni *ni);
unsigned int ro2ib_get_dev_prio(struct lnet_ni *lni, unsigned int dev_idx);

/* ni_link.c */
void ro2ib_ni_publish(struct ro2ib_ni *ni);
void ro2ib_ni_unpublish(struct ro2ib_ni *ni);
void ro2ib_ni_retune(void);
const struct ro2ib_ni *ro2ib_ni_with_tunables(const void *tunables);
const struct ro2ib_ni *ro2ib_ni_of_net(const struct lnet_net *net);
int ro2ib_notifiers_register(void);
void ro2ib_notifiers_unregister(void);

/* sysfs_ko2iblnd.c */
int ro2ib_module_link_add(void);
void ro2ib_module_link_remove(void);

/* text_params.c */
void ro2ib_tuning_of(u64 nid, struct ro2ib_tuning *out);

/* tunables_running.c */
void ro2ib_tune_init(struct ro2ib_ni *ni);
void ro2ib_tune_apply(struct ro2ib_ni *ni, bool tell);
void ro2ib_set_chosen_depth(struct ro2ib_ni *ni, u32 depth);
void ro2ib_log_tunable(const struct ro2ib_ni *ni, const char *key, s32 was,
		       s32 is);

/* version.c */
void ro2ib_print_version(void);

#endif /* RO2IB_SHIM_PRIVATE_H */
