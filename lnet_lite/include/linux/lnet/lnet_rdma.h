/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory of accelerators: who has it registers itself with LNet, and maps it for
 * LNDs. The names are those that nvidia-fs and LNDs use.
 */
#ifndef _LNL_LNET_RDMA_H
#define _LNL_LNET_RDMA_H

#include <linux/dma-direction.h>
#include <linux/types.h>

struct device;
struct page;
struct request;
struct request_queue;
struct scatterlist;

/* Abilities of a provider, in ft_bmap; LNet wants all of them */
enum ft_bits {
	nvfs_ft_prep_sglist	= 1ULL << 0,
	nvfs_ft_map_sglist	= 1ULL << 1,
	nvfs_ft_is_gpu_page	= 1ULL << 2,
	nvfs_ft_device_priority	= 1ULL << 3,
};

/* Results of nvfs_dma_map_sg_attrs() when it has mapped nothing */
#define NVFS_IO_ERR	-1	/* it could not */
#define NVFS_CPU_REQ	-2	/* the pages are not the provider's */

struct nvfs_dma_rw_ops {
	unsigned long long ft_bmap;
	int (*nvfs_blk_rq_map_sg)(struct request_queue *q, struct request *req,
				  struct scatterlist *sg);
	/* How many elements have DMA addresses, or one of the above */
	int (*nvfs_dma_map_sg_attrs)(struct device *dev, struct scatterlist *sg, int nents,
				     enum dma_data_direction dir, unsigned long attrs);
	/* 0: this was not mapped by the provider */
	int (*nvfs_dma_unmap_sg)(struct device *dev, struct scatterlist *sg, int nents,
				 enum dma_data_direction dir);
	bool (*nvfs_is_gpu_page)(struct page *page);
	unsigned int (*nvfs_gpu_index)(struct page *page);
	unsigned int (*nvfs_device_priority)(struct device *dev, unsigned int dev_idx);
};

/* For providers. There is one at a time; unregistering waits for what is mapped. */
int lustre_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
void lustre_v1_unregister_nvfs_dma_ops(void);

/* The provider's number of the owner of the memory; UINT_MAX: none */
unsigned int lnet_get_dev_idx(struct page *page);

/* For LNDs */
unsigned int lnet_get_dev_prio(struct device *dev, unsigned int dev_idx);
/* > 0: number of elements; 0: pages of no owner; otherwise an errno */
int lnet_rdma_map_sg_attrs(struct device *dev, struct scatterlist *sg, int nents,
			   enum dma_data_direction dir);
int lnet_rdma_unmap_sg(struct device *dev, struct scatterlist *sg, int nents,
		       enum dma_data_direction dir);
bool lnet_is_rdma_only_page(struct page *page);

#endif
