/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The objects that LNet and an LND share: message, MD, NI, net, LND.
 *
 * Field names are LNet's where an LND uses them. internal.h wraps
 * these structures in those of lnet_lite.
 */
#ifndef _LNL_LIB_TYPES_H
#define _LNL_LIB_TYPES_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <linux/uio.h>
#include <net/netlink.h>

#include <uapi/linux/lnet/lnet-dlc.h>
#include <uapi/linux/lnet/lnet-nl.h>
#include <uapi/linux/lnet/lnet-types.h>
#include <uapi/linux/lnet/nidstr.h>

/* LNet's limit for one MD; lnet_lite also builds larger ones on purpose */
#define LNET_MAX_IOV		256
#define LNET_MAX_HEALTH_VALUE	1000

struct lnet_msg;
struct lnet_ni;
struct net;
struct sk_buff;
struct socket;

enum lnet_msg_hstatus {
	LNET_MSG_STATUS_OK = 0,
	LNET_MSG_STATUS_LOCAL_INTERRUPT,
	LNET_MSG_STATUS_LOCAL_DROPPED,
	LNET_MSG_STATUS_LOCAL_ABORTED,
	LNET_MSG_STATUS_LOCAL_NO_ROUTE,
	LNET_MSG_STATUS_LOCAL_ERROR,
	LNET_MSG_STATUS_LOCAL_TIMEOUT,
	LNET_MSG_STATUS_REMOTE_ERROR,
	LNET_MSG_STATUS_REMOTE_DROPPED,
	LNET_MSG_STATUS_REMOTE_TIMEOUT,
	LNET_MSG_STATUS_NETWORK_TIMEOUT,
	LNET_MSG_STATUS_END,
};

/* Number of the attribute that holds LND tunables in a net's description */
#define LNET_NET_LOCAL_NI_ATTR_LND_TUNABLES	11

#define LNET_MD_FLAG_ABORTED	BIT(2)
#define LNET_MD_FLAG_GPU	BIT(5)
/* ours: the LND has damaged the fragment list, not to be used again */
#define LNET_MD_FLAG_SPOILED	BIT(31)

/* Event of an MD, handed to md_handler in the thread that finalizes */
struct lnet_event {
	enum lnet_event_kind	type;
	int			status;
	__u32			msg_type;
	unsigned int		rlength;
	unsigned int		mlength;
	unsigned int		offset;
	__u64			match_bits;
	__u64			hdr_data;
	struct lnet_nid		initiator;
	void			*md_user_ptr;
};

typedef void (*lnet_handler_t)(struct lnet_event *event);

struct lnet_libmd {
	__u64			md_cookie;
	refcount_t		md_refcount;
	struct completion	md_idle;
	lnet_handler_t		md_handler;
	void			(*md_release)(struct lnet_libmd *md);
	void			*md_user_ptr;
	unsigned int		md_options;
	unsigned int		md_flags;
	unsigned int		md_offset;
	unsigned int		md_length;
	unsigned int		md_niov;
	struct bio_vec		md_kiov[];
};

static inline bool lnet_md_is_gpu(struct lnet_libmd *md)
{
	return md && (md->md_flags & LNET_MD_FLAG_GPU);
}

struct lnet_msg {
	/* The LND may use it while it has the message. */
	struct list_head	msg_list;
	struct lnet_processid	msg_target;
	struct lnet_nid		msg_initiator;
	struct lnet_nid		msg_from;
	__u32			msg_type;
	enum lnet_msg_hstatus	msg_health_status;
	ktime_t			msg_deadline;

	unsigned int		msg_rx_delayed:1;
	unsigned int		msg_rx_ready_delay:1;
	unsigned int		msg_target_is_router:1;
	unsigned int		msg_routing:1;
	unsigned int		msg_ack:1;
	unsigned int		msg_sending:1;
	unsigned int		msg_receiving:1;
	unsigned int		msg_txcredit:1;
	unsigned int		msg_peertxcredit:1;
	unsigned int		msg_tx_delayed:1;

	void			*msg_private;
	struct lnet_libmd	*msg_md;
	unsigned int		msg_len;
	unsigned int		msg_wanted;
	unsigned int		msg_offset;
	unsigned int		msg_niov;
	struct bio_vec		*msg_kiov;

	struct lnet_event	msg_ev;
	struct lnet_hdr		msg_hdr;
};

struct lnet_lnd {
	__u32	lnd_type;

	int	(*lnd_startup)(struct lnet_ni *ni);
	void	(*lnd_shutdown)(struct lnet_ni *ni);
	int	(*lnd_ctl)(struct lnet_ni *ni, unsigned int cmd, void *arg);
	int	(*lnd_send)(struct lnet_ni *ni, void *private, struct lnet_msg *msg);
	int	(*lnd_recv)(struct lnet_ni *ni, void *private, struct lnet_msg *msg,
			    int delayed, struct iov_iter *to, unsigned int rlen);
	int	(*lnd_eager_recv)(struct lnet_ni *ni, void *private,
				  struct lnet_msg *msg, void **new_private);
	void	(*lnd_notify_peer_down)(struct lnet_nid *peer);
	int	(*lnd_accept)(struct lnet_ni *ni, struct socket *sock);
	unsigned int (*lnd_get_dev_prio)(struct lnet_ni *ni, unsigned int dev_idx);
	int	(*lnd_get_timeout)(void);
	int	(*lnd_tun_defaults)(struct lnet_lnd_tunables *tun,
				    struct lnet_ioctl_config_lnd_cmn_tunables *cmn);
	int	(*lnd_nl_get)(int cmd, struct sk_buff *msg, int type, void *data,
			      bool export_backup);
	int	(*lnd_nl_set)(int cmd, struct nlattr *attr, int type, void *data);

	const struct ln_key_list *lnd_keys;
};

enum lnet_ni_state {
	LNET_NI_STATE_INIT = 0,
	LNET_NI_STATE_ACTIVE,
	LNET_NI_STATE_DELETING,
};

struct lnet_net {
	__u32			net_id;
	struct lnet_ioctl_config_lnd_cmn_tunables net_tunables;
	const struct lnet_lnd	*net_lnd;
};

struct lnet_ni {
	struct lnet_nid		ni_nid;
	void			*ni_data;
	struct lnet_net		*ni_net;
	enum lnet_ni_state	ni_state;
	int			ni_ncpts;
	__u32			*ni_cpts;
	int			ni_dev_cpt;
	struct lnet_lnd_tunables ni_lnd_tunables;
	bool			ni_lnd_tunables_set;
	atomic_t		ni_healthv;
	atomic_t		ni_fatal_error_on;
	char			*ni_interface;
	struct net		*ni_net_ns;
};

#endif
