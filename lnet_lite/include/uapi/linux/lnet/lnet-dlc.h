/* SPDX-License-Identifier: GPL-2.0 */
/* Tunables shared between LNet and its LNDs */
#ifndef _LNL_UAPI_LNET_DLC_H
#define _LNL_UAPI_LNET_DLC_H

#include <linux/types.h>
#include <uapi/linux/lnet/libcfs_ioctl.h>
#include <uapi/linux/lnet/lnet-types.h>

enum lnet_commands {
	LNET_CMD_UNSPEC		= 0,
	LNET_CMD_CONFIGURE	= 1,
	LNET_CMD_NETS		= 2,
	LNET_CMD_PEERS		= 3,
};

/* -1 stands for "not given, the LND decides" */
struct lnet_ioctl_config_lnd_cmn_tunables {
	__u32 lct_version;
	__s32 lct_peer_timeout;
	__s32 lct_peer_tx_credits;
	__s32 lct_peer_rtr_credits;
	__s32 lct_max_tx_credits;
};

struct lnet_ioctl_config_o2iblnd_tunables {
	__u32 lnd_version;
	__u32 lnd_peercredits_hiw;
	__u32 lnd_map_on_demand;
	__u32 lnd_concurrent_sends;
	__u32 lnd_fmr_pool_size;
	__u32 lnd_fmr_flush_trigger;
	__u32 lnd_fmr_cache;
	__u16 lnd_conns_per_peer;
	__u16 lnd_ntx;
	__u32 lnd_timeout;
	__s16 lnd_tos;
};

struct lnet_ioctl_config_socklnd_tunables {
	__u32 lnd_version;
	__u16 lnd_conns_per_peer;
	__u16 lnd_pad;
	__u32 lnd_timeout;
	__s16 lnd_tos;
};

struct lnet_lnd_tunables {
	union {
		struct lnet_ioctl_config_o2iblnd_tunables lnd_o2ib;
		struct lnet_ioctl_config_socklnd_tunables lnd_sock;
	} lnd_tun_u;
};

struct lnet_ioctl_config_lnd_tunables {
	struct lnet_ioctl_config_lnd_cmn_tunables lt_cmn;
	struct lnet_lnd_tunables lt_tun;
};

#endif
