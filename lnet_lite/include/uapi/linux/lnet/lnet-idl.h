/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Wire types of LNet, as far as an LND meets them.
 *
 * The layouts are those of the LNet protocol; everything that travels is
 * little-endian except the 16-byte wire handles, which only their creator reads.
 */
#ifndef _LNL_UAPI_LNET_IDL_H
#define _LNL_UAPI_LNET_IDL_H

#include <linux/types.h>

typedef __u64 lnet_nid_t;
typedef __u32 lnet_pid_t;

/* A NID of up to 128 address bits; nid_size is the number of bytes beyond 8 */
struct lnet_nid {
	__u8	nid_size;
	__u8	nid_type;
	__be16	nid_num;
	__be32	nid_addr[4];
} __attribute__((packed));

#define NID_BYTES(nid)		((nid)->nid_size + 8)
#define NID_ADDR_BYTES(nid)	((nid)->nid_size + 4)

/* Names one MD of one life of one node */
struct lnet_handle_wire {
	__u64	wh_interface_cookie;
	__u64	wh_object_cookie;
} __attribute__((packed));

enum lnet_msg_type {
	LNET_MSG_ACK	= 0,
	LNET_MSG_PUT	= 1,
	LNET_MSG_GET	= 2,
	LNET_MSG_REPLY	= 3,
	LNET_MSG_HELLO	= 4,
};

struct lnet_ack {
	struct lnet_handle_wire	dst_wmd;
	__u64			match_bits;
	__u32			mlength;
} __attribute__((packed));

struct lnet_put {
	struct lnet_handle_wire	ack_wmd;
	__u64			match_bits;
	__u64			hdr_data;
	__u32			ptl_index;
	__u32			offset;
} __attribute__((packed));

struct lnet_get {
	struct lnet_handle_wire	return_wmd;
	__u64			match_bits;
	__u32			ptl_index;
	__u32			src_offset;
	__u32			sink_length;
} __attribute__((packed));

struct lnet_reply {
	struct lnet_handle_wire	dst_wmd;
} __attribute__((packed));

struct lnet_hello {
	__u64			incarnation;
	__u32			type;
} __attribute__((packed));

union lnet_cmd_hdr {
	struct lnet_ack		ack;
	struct lnet_put		put;
	struct lnet_get		get;
	struct lnet_reply	reply;
	struct lnet_hello	hello;
} __attribute__((packed));

/* In memory: fixed part in host order, command part still little-endian */
struct lnet_hdr {
	struct lnet_nid		dest_nid;
	struct lnet_nid		src_nid;
	lnet_pid_t		dest_pid;
	lnet_pid_t		src_pid;
	__u32			type;
	__u32			payload_length;
	union lnet_cmd_hdr	msg;
} __attribute__((packed));

/* On the wire, 72 bytes, little-endian; converted by lnet_hdr_{to,from}_nid4 */
struct _lnet_hdr_nid4 {
	lnet_nid_t		dest_nid;
	lnet_nid_t		src_nid;
	lnet_pid_t		dest_pid;
	lnet_pid_t		src_pid;
	__u32			type;
	__u32			payload_length;
	union lnet_cmd_hdr	msg;
} __attribute__((packed));

struct lnet_hdr_nid4 {
	char	_bytes[sizeof(struct _lnet_hdr_nid4)];
} __attribute__((packed));

/* Answer to a GET of the reserved portal ("lnet ping") */
#define LNET_PROTO_PING_MAGIC		0x70696E67
#define LNET_PROTO_PING_MATCHBITS	0x8000000000000000ULL
#define LNET_PING_FEAT_BASE		(1 << 0)
#define LNET_PING_FEAT_NI_STATUS	(1 << 1)
#define LNET_NI_STATUS_UP		0x15aac0de
#define LNET_NI_STATUS_DOWN		0xdeadface

struct lnet_ni_status {
	lnet_nid_t	ns_nid;
	__u32		ns_status;
	__u32		ns_msg_size;
} __attribute__((packed));

struct lnet_ping_info {
	__u32			pi_magic;
	__u32			pi_features;
	lnet_pid_t		pi_pid;
	__u32			pi_nnis;
	struct lnet_ni_status	pi_ni[];
} __attribute__((packed));

#endif
