// SPDX-License-Identifier: GPL-2.0
/*
 * Layout, as C has it, of structures that Rust uses; see
 * rust/rdma/layout_check.rs.
 */
#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/lockdep.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/stddef.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_helpers.h"
#include "ro2iblnd_shim.h"

static const struct ro2ib_layout layout = {
	.size = {
		sizeof(struct ib_send_wr),
		sizeof(struct ib_rdma_wr),
		sizeof(struct ib_reg_wr),
		sizeof(struct ib_recv_wr),
		sizeof(struct ib_sge),
		sizeof(struct ib_wc),
		sizeof(struct ib_event),
		sizeof(struct ib_event_handler),
		sizeof(struct work_struct),
		sizeof(struct delayed_work),
		sizeof(spinlock_t),
		sizeof(struct mutex),
		sizeof(struct completion),
		sizeof(struct bio_vec),
		sizeof(struct sg_table),
		sizeof(struct ro2ib_sg_list),
		sizeof(struct lock_class_key),
		sizeof(struct ro2ib_ni_cfg),
		sizeof(struct ro2ib_send_req),
		sizeof(struct ro2ib_recv_req),
		sizeof(struct ro2ib_lnd_ops),
		sizeof(struct ro2ib_tuning),
	},
	.offset = {
		offsetof(struct ib_wc, wr_id),
		offsetof(struct ib_wc, status),
		offsetof(struct ib_wc, opcode),
		offsetof(struct ib_wc, vendor_err),
		offsetof(struct ib_wc, byte_len),
		offsetof(struct ib_wc, wc_flags),
		offsetof(struct ib_send_wr, next),
		offsetof(struct ib_send_wr, wr_id),
		offsetof(struct ib_send_wr, sg_list),
		offsetof(struct ib_send_wr, num_sge),
		offsetof(struct ib_send_wr, opcode),
		offsetof(struct ib_send_wr, send_flags),
		offsetof(struct ib_send_wr, ex),
		offsetof(struct ib_rdma_wr, remote_addr),
		offsetof(struct ib_rdma_wr, rkey),
		offsetof(struct ib_reg_wr, mr),
		offsetof(struct ib_reg_wr, key),
		offsetof(struct ib_reg_wr, access),
		offsetof(struct ib_recv_wr, next),
		offsetof(struct ib_recv_wr, wr_id),
		offsetof(struct ib_recv_wr, sg_list),
		offsetof(struct ib_recv_wr, num_sge),
		offsetof(struct ib_sge, addr),
		offsetof(struct ib_sge, length),
		offsetof(struct ib_sge, lkey),
		offsetof(struct ib_event, event),
		offsetof(struct sg_table, sgl),
		offsetof(struct sg_table, nents),
		offsetof(struct bio_vec, bv_page),
		offsetof(struct bio_vec, bv_len),
		offsetof(struct bio_vec, bv_offset),
		offsetof(struct delayed_work, work),
	},
};

const struct ro2ib_layout *ro2ib_layout(void)
{
	return &layout;
}
