// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: who has memory of GPUs, and where the traffic gets some from.
 *
 * Each mapping, and each call that is under way, counts as a user of the
 * provider. Unlike LNet's, an unregistration lets what is mapped be unmapped
 * while it waits for that.
 */
#include <linux/export.h>
#include <linux/limits.h>
#include <linux/lnet/lnet_rdma.h>
#include <linux/module.h>

#include "internal.h"

#define FEATURES	(nvfs_ft_prep_sglist | nvfs_ft_map_sglist | nvfs_ft_is_gpu_page | \
			 nvfs_ft_device_priority)

static struct nvfs_dma_rw_ops *provider;	/* until its last user is gone */
static unsigned int users;
static bool leaving;
static DEFINE_SPINLOCK(provider_lock);		/* of the three; bottom halves off */
static DECLARE_WAIT_QUEUE_HEAD(provider_wait);

static const struct lnet_lite_gpu *memory;
static DEFINE_SPINLOCK(memory_lock);

int lustre_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	int rc = 0;

	if (!ops || (ops->ft_bmap & FEATURES) != FEATURES)
		return -EINVAL;
	spin_lock_bh(&provider_lock);
	if (provider)
		rc = -EBUSY;
	else
		provider = ops;
	spin_unlock_bh(&provider_lock);
	return rc;
}
EXPORT_SYMBOL_GPL(lustre_v1_register_nvfs_dma_ops);

static bool unused(void)
{
	bool none;

	spin_lock_bh(&provider_lock);
	none = !users;
	if (none) {
		provider = NULL;
		leaving = false;
	}
	spin_unlock_bh(&provider_lock);
	return none;
}

void lustre_v1_unregister_nvfs_dma_ops(void)
{
	spin_lock_bh(&provider_lock);
	leaving = true;
	spin_unlock_bh(&provider_lock);
	wait_event(provider_wait, unused());
}
EXPORT_SYMBOL_GPL(lustre_v1_unregister_nvfs_dma_ops);

/* @mapped: for what is mapped, which keeps it */
static struct nvfs_dma_rw_ops *provider_get(bool mapped)
{
	struct nvfs_dma_rw_ops *ops = NULL;

	spin_lock_bh(&provider_lock);
	if (provider && (mapped || !leaving)) {
		ops = provider;
		users++;
	}
	spin_unlock_bh(&provider_lock);
	return ops;
}

static void provider_put(unsigned int n)
{
	spin_lock_bh(&provider_lock);
	users -= n;
	if (!users)
		wake_up(&provider_wait);
	spin_unlock_bh(&provider_lock);
}

unsigned int lnet_get_dev_idx(struct page *page)
{
	struct nvfs_dma_rw_ops *ops = provider_get(false);
	unsigned int idx = UINT_MAX;

	if (ops) {
		idx = ops->nvfs_gpu_index(page);
		provider_put(1);
	}
	return idx;
}

unsigned int lnet_get_dev_prio(struct device *dev, unsigned int dev_idx)
{
	struct nvfs_dma_rw_ops *ops = dev ? provider_get(false) : NULL;
	unsigned int prio = UINT_MAX;

	if (ops) {
		prio = ops->nvfs_device_priority(dev, dev_idx);
		provider_put(1);
	}
	return prio;
}
EXPORT_SYMBOL_GPL(lnet_get_dev_prio);

int lnet_rdma_map_sg_attrs(struct device *dev, struct scatterlist *sg, int nents,
			   enum dma_data_direction dir)
{
	struct nvfs_dma_rw_ops *ops = provider_get(false);
	int n;

	lnl_check_context("lnet_rdma_map_sg_attrs");
	if (!ops)
		return 0;
	n = ops->nvfs_dma_map_sg_attrs(dev, sg, nents, dir, 0);
	if (n > 0) {
		lnl_count(gpu_maps);
		return n;
	}
	lnl_count(gpu_map_errors);
	provider_put(1);
	if (n == NVFS_CPU_REQ)
		return 0;
	return n == NVFS_IO_ERR ? -EIO : n;
}
EXPORT_SYMBOL_GPL(lnet_rdma_map_sg_attrs);

int lnet_rdma_unmap_sg(struct device *dev, struct scatterlist *sg, int nents,
		       enum dma_data_direction dir)
{
	struct nvfs_dma_rw_ops *ops = provider_get(true);
	int n = ops ? ops->nvfs_dma_unmap_sg(dev, sg, nents, dir) : 0;

	if (!n)
		lnl_fault(gpu_unmap_misuse, "%d elements at %p\n", nents, sg);
	else
		lnl_count(gpu_unmaps);
	if (ops)
		provider_put(n ? 2 : 1);
	return n;
}
EXPORT_SYMBOL_GPL(lnet_rdma_unmap_sg);

bool lnet_is_rdma_only_page(struct page *page)
{
	struct nvfs_dma_rw_ops *ops = provider_get(false);
	bool is = false;

	if (ops) {
		is = ops->nvfs_is_gpu_page(page);
		provider_put(1);
	}
	return is;
}
EXPORT_SYMBOL_GPL(lnet_is_rdma_only_page);

int lnet_lite_gpu_add(const struct lnet_lite_gpu *gpu)
{
	int rc = 0;

	spin_lock(&memory_lock);
	if (memory)
		rc = -EBUSY;
	else
		memory = gpu;
	spin_unlock(&memory_lock);
	return rc;
}
EXPORT_SYMBOL_GPL(lnet_lite_gpu_add);

void lnet_lite_gpu_del(void)
{
	spin_lock(&memory_lock);
	memory = NULL;
	spin_unlock(&memory_lock);
}
EXPORT_SYMBOL_GPL(lnet_lite_gpu_del);

/* The owner stays until lnl_gpu_free() */
const struct lnet_lite_gpu *lnl_gpu_alloc(unsigned int n, struct page **pages, struct page **data)
{
	const struct lnet_lite_gpu *gpu;

	spin_lock(&memory_lock);
	gpu = memory && try_module_get(memory->owner) ? memory : NULL;
	spin_unlock(&memory_lock);
	if (gpu && gpu->alloc(n, pages, data)) {
		module_put(gpu->owner);
		gpu = NULL;
	}
	return gpu;
}

void lnl_gpu_free(const struct lnet_lite_gpu *gpu, unsigned int n, struct page **pages)
{
	gpu->free(n, pages);
	module_put(gpu->owner);
}

/* The number of the GPU whose memory the traffic gets; UINT_MAX: there is none */
unsigned int lnl_gpu_index(void)
{
	const struct lnet_lite_gpu *gpu;
	struct page *page, *data;
	unsigned int idx;

	gpu = lnl_gpu_alloc(1, &page, &data);
	if (!gpu)
		return UINT_MAX;
	idx = lnet_get_dev_idx(page);
	lnl_gpu_free(gpu, 1, &page);
	return idx;
}
