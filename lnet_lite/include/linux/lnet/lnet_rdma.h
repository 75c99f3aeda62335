/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of accelerators: there is none here, all answers are "not mine" */
#ifndef _LNL_LNET_RDMA_H
#define _LNL_LNET_RDMA_H

#include <linux/dma-direction.h>
#include <linux/limits.h>
#include <linux/types.h>

struct device;
struct page;
struct scatterlist;

static inline unsigned int lnet_get_dev_prio(struct device *dev, unsigned int dev_idx)
{
	return UINT_MAX;
}

/* 0 entries mapped means failure, as in LNet */
static inline int lnet_rdma_map_sg_attrs(struct device *dev, struct scatterlist *sg,
					 int nents, enum dma_data_direction dir)
{
	return 0;
}

static inline int lnet_rdma_unmap_sg(struct device *dev, struct scatterlist *sg,
				     int nents, enum dma_data_direction dir)
{
	return 0;
}

static inline bool lnet_is_rdma_only_page(struct page *page)
{
	return false;
}

#endif
