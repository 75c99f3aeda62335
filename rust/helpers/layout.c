// SPDX-License-Identifier: GPL-2.0
/* What C thinks of the structures that Rust looks into; see rust/rdma/layout.rs. */
#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_helpers.h"

static const struct ro2ib_layout layout = { {
	sizeof(struct ib_send_wr),
	sizeof(struct ib_rdma_wr),
	sizeof(struct ib_reg_wr),
	sizeof(struct ib_recv_wr),
	sizeof(struct ib_sge),
	sizeof(struct ib_wc),
	sizeof(struct ib_cqe),
	sizeof(struct ib_event),
	sizeof(struct ib_event_handler),
	sizeof(struct work_struct),
	sizeof(struct delayed_work),
	sizeof(spinlock_t),
	sizeof(struct mutex),
	sizeof(struct completion),
	sizeof(struct bio_vec),
	sizeof(struct sg_table),
} };

const struct ro2ib_layout *ro2ib_layout(void)
{
	return &layout;
}
