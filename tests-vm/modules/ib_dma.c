// SPDX-License-Identifier: GPL-2.0
/*
 * Gives soft-RoCE devices the DMA of an adapter. soft-RoCE uses "virtual DMA":
 * ib_dma_map_*() return CPU addresses, and nothing is mapped, bounced or
 * synchronised. With this module each device has a DMA device of its own, so
 * the kernel's DMA layer maps for it as for an adapter: swiotlb=force bounces
 * all, mask= bounces what lies beyond it, DMA_API_DEBUG checks each call. DMA
 * addresses are never those of the CPU. The module stands between the verbs and
 * soft-RoCE and translates addresses back.
 *
 * It checks rules that an adapter relies on: an element has a DMA address, inline
 * data have a CPU address, posted memory belongs to the device (the driver has
 * synchronised it after the CPU had it), and memory is unmapped after the work
 * requests that use it have ended and after keys for it are invalid. A broken rule
 * is a warning, and is counted in the parameter "violations".
 *
 * Load it before the devices are made. It cannot be unloaded, because a call may
 * always be under way.
 */
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/hashtable.h>
#include <linux/interval_tree_generic.h>
#include <linux/kprobes.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

static unsigned int mask = 64;
module_param(mask, uint, 0444);
MODULE_PARM_DESC(mask, "bits of an address that the device can reach");
static unsigned long long shift = 1ULL << 42;
module_param(shift, ullong, 0444);
MODULE_PARM_DESC(shift, "DMA address of the first byte of memory");

static char skip[16];
module_param_string(skip, skip, sizeof(skip), 0644);
MODULE_PARM_DESC(skip, "calls that do nothing, to test the tests: cpu or device, then the direction (1: to, 2: from the device)");

static atomic_t violations;

static int violations_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(&violations));
}

static const struct kernel_param_ops violations_ops = { .get = violations_get };
module_param_cb(violations, &violations_ops, NULL, 0444);
MODULE_PARM_DESC(violations, "rules that the users of the devices broke");

#define violation(...) ({		\
	atomic_inc(&violations);	\
	WARN(1, "ib_dma: " __VA_ARGS__);\
})

#define MOST_SGES 32

/* A range of DMA addresses that the device may read or write. */
struct piece {
	struct rb_node rb;
	u64 first, last, last_below;
	const struct use *use;
};

/* A work request that has not ended, or a memory region that has a valid key. */
struct use {
	struct list_head list;
	const struct ib_qp *qp;
	const struct ib_cqe *cqe;
	/* Memory region that a work request validates, or invalidates on completion. */
	const struct ib_mr *mr;
	u32 inv_rkey;
	int n;
	struct piece pieces[];
};

/* Effects of a queue pair's work requests, in order of completion. */
struct queues {
	struct hlist_node hash;
	const struct ib_qp *qp;
	struct list_head sends, recvs;
};

static DEFINE_SPINLOCK(lock);
static DEFINE_HASHTABLE(all_queues, 8);
static LIST_HEAD(regions);
/* Memory that regions map, until they have a key. */
static DEFINE_XARRAY(mapped);
static struct rb_root_cached used = RB_ROOT_CACHED;
/* Memory that belongs to the CPU since it was synchronised for the CPU. */
static struct rb_root_cached cpus = RB_ROOT_CACHED;

static struct ib_device_ops real;
static struct platform_device *dma_device;
/* Past all memory, unless the device cannot reach so far. */
static struct bus_dma_region ranges[2];

/* Returns the CPU address that soft-RoCE finds at a DMA address, 0 if none. */
static u64 cpu_address(u64 addr)
{
	phys_addr_t phys = dma_to_phys(&dma_device->dev, addr);

	if (phys == (phys_addr_t)-1 || !pfn_valid(PHYS_PFN(phys)))
		return 0;
	return (u64)(uintptr_t)phys_to_virt(phys);
}

static bool is_cpu_address(u64 addr)
{
	return (s64)addr < 0;
}

#define FIRST(piece) ((piece)->first)
#define LAST(piece) ((piece)->last)
INTERVAL_TREE_DEFINE(struct piece, rb, u64, last_below, FIRST, LAST,
		     static __maybe_unused, pieces);

static struct use *new_use(const struct ib_qp *qp, int n)
{
	struct use *use = kzalloc(struct_size(use, pieces, n), GFP_ATOMIC);

	if (use) {
		INIT_LIST_HEAD(&use->list);
		use->qp = qp;
	}
	return use;
}

static void add_piece(struct use *use, u64 addr, u32 len)
{
	struct piece *piece = &use->pieces[use->n++];

	piece->use = use;
	piece->first = addr;
	piece->last = addr + len - 1;
}

/* Under the lock. */
static void begin_use(struct use *use, struct list_head *list)
{
	int i;

	list_add_tail(&use->list, list);
	for (i = 0; i < use->n; i++)
		pieces_insert(&use->pieces[i], &used);
}

/* Under the lock. */
static void end_use(struct use *use)
{
	int i;

	list_del(&use->list);
	for (i = 0; i < use->n; i++)
		pieces_remove(&use->pieces[i], &used);
	kfree(use);
}

/* Under the lock: gives a range to the CPU. */
static void give_to_cpu(u64 first, u64 last)
{
	struct piece *piece = kzalloc(sizeof(*piece), GFP_ATOMIC);

	if (!piece || first > last) {
		kfree(piece);
		return;
	}
	piece->first = first;
	piece->last = last;
	pieces_insert(piece, &cpus);
}

/* Under the lock: takes a range from the CPU. */
static void take_from_cpu(u64 first, u64 last)
{
	struct piece *piece;

	while ((piece = pieces_iter_first(&cpus, first, last))) {
		u64 before = piece->first, after = piece->last;

		pieces_remove(piece, &cpus);
		kfree(piece);
		if (before < first)
			give_to_cpu(before, first - 1);
		if (after > last)
			give_to_cpu(last + 1, after);
	}
}

/* Checks memory at @addr that is being unmapped. */
static void check_unused(u64 addr, u64 len)
{
	struct piece *piece;
	unsigned long flags;
	const struct use *use;

	if (!len)
		return;
	spin_lock_irqsave(&lock, flags);
	take_from_cpu(addr, addr + len - 1);
	piece = pieces_iter_first(&used, addr, addr + len - 1);
	if (piece) {
		use = piece->use;
		violation("%llx+%llx is unmapped, and %s of queue pair %u uses it\n",
			  addr, len, use->mr ? "a region" : "a work request",
			  use->qp->qp_num);
	}
	spin_unlock_irqrestore(&lock, flags);
}

/* Under the lock. */
static struct queues *queues_of(const struct ib_qp *qp)
{
	struct queues *queues;

	hash_for_each_possible(all_queues, queues, hash, (uintptr_t)qp)
		if (queues->qp == qp)
			return queues;
	queues = kzalloc(sizeof(*queues), GFP_ATOMIC);
	if (!queues)
		return NULL;
	queues->qp = qp;
	INIT_LIST_HEAD(&queues->sends);
	INIT_LIST_HEAD(&queues->recvs);
	hash_add(all_queues, &queues->hash, (uintptr_t)qp);
	return queues;
}

/* Under the lock: ends a region, which cannot be used any more. */
static void end_region(const struct ib_qp *qp, const struct ib_mr *mr, u32 rkey)
{
	struct use *use, *next;

	list_for_each_entry_safe(use, next, &regions, list)
		if (mr ? use->mr == mr : use->qp == qp &&
		    (!rkey || use->mr->rkey == rkey))
			end_use(use);
}

/* Notes what a work request uses, before it is posted. */
static struct use *post_use(struct ib_qp *qp, const struct ib_sge *list, int n,
			    const struct ib_cqe *cqe, bool send)
{
	struct use *use = new_use(qp, n);
	struct queues *queues;
	unsigned long flags;
	int i;

	if (!use)
		return NULL;
	use->cqe = cqe;
	for (i = 0; i < n; i++)
		if (list[i].length)
			add_piece(use, list[i].addr, list[i].length);
	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < use->n; i++)
		if (pieces_iter_first(&cpus, use->pieces[i].first,
				      use->pieces[i].last))
			violation("queue pair %u: %llx belongs to the CPU\n",
				  qp->qp_num, use->pieces[i].first);
	queues = queues_of(qp);
	if (queues) {
		begin_use(use, send ? &queues->sends : &queues->recvs);
	} else {
		kfree(use);
		use = NULL;
	}
	spin_unlock_irqrestore(&lock, flags);
	return use;
}

static void unpost_use(struct use *use)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	end_use(use);
	spin_unlock_irqrestore(&lock, flags);
}

/*
 * Under the lock: ends work requests up to @cqe. Returns false if there is
 * none.
 */
static bool completed(struct list_head *list, const struct ib_cqe *cqe,
		      bool well)
{
	struct use *use, *next;
	bool found = false;

	list_for_each_entry(use, list, list)
		if (use->cqe == cqe) {
			found = true;
			break;
		}
	if (!found)
		return false;
	list_for_each_entry_safe(use, next, list, list) {
		bool last = use->cqe == cqe;

		if (use->inv_rkey && well)
			end_region(use->qp, NULL, use->inv_rkey);
		end_use(use);
		if (last)
			break;
	}
	return true;
}

static int dma_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	int i, got = real.poll_cq(cq, n, wc);
	struct queues *queues;
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < got; i++) {
		bool well = wc[i].status == IB_WC_SUCCESS;

		queues = queues_of(wc[i].qp);
		if (queues &&
		    !completed(&queues->recvs, wc[i].wr_cqe, well))
			completed(&queues->sends, wc[i].wr_cqe, well);
	}
	spin_unlock_irqrestore(&lock, flags);
	return got;
}

static int dma_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	int rc = real.destroy_qp(qp, udata);
	struct use *use, *next;
	struct queues *queues;
	unsigned long flags;

	if (rc)
		return rc;
	spin_lock_irqsave(&lock, flags);
	end_region(qp, NULL, 0);
	queues = queues_of(qp);
	if (queues) {
		list_for_each_entry_safe(use, next, &queues->sends, list)
			end_use(use);
		list_for_each_entry_safe(use, next, &queues->recvs, list)
			end_use(use);
		hash_del(&queues->hash);
		kfree(queues);
	}
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

static int dma_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	unsigned long flags;
	int rc = real.dereg_mr(mr, udata);

	if (rc)
		return rc;
	kfree(xa_erase(&mapped, (uintptr_t)mr));
	spin_lock_irqsave(&lock, flags);
	end_region(NULL, mr, 0);
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/*
 * Translates elements to @to. Elements of a memory region have its
 * addresses.
 */
static int translate(struct ib_qp *qp, const struct ib_sge *from, int n,
		     struct ib_sge *to)
{
	int i;

	if (n > MOST_SGES)
		return -EINVAL;
	for (i = 0; i < n; i++) {
		to[i] = from[i];
		if (from[i].lkey != qp->pd->local_dma_lkey || !from[i].length)
			continue;
		to[i].addr = cpu_address(from[i].addr);
		if (!to[i].addr) {
			violation("element %d of %d: no DMA address: %llx\n",
				  i, n, from[i].addr);
			return -EINVAL;
		}
	}
	return 0;
}

static int check_inline(const struct ib_send_wr *wr)
{
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		if (is_cpu_address(wr->sg_list[i].addr))
			continue;
		violation("inline element %d of %d: no CPU address: %llx\n", i,
			  wr->num_sge, wr->sg_list[i].addr);
		return -EINVAL;
	}
	return 0;
}

static int begin_region(struct ib_qp *qp, struct ib_mr *mr)
{
	struct use *use = xa_erase(&mapped, (uintptr_t)mr);
	unsigned long flags;

	/* The same pages again, with another key. */
	if (!use)
		return 0;
	use->qp = qp;
	spin_lock_irqsave(&lock, flags);
	end_region(NULL, mr, 0);
	begin_use(use, &regions);
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/*
 * Posts one work request after the other: each is changed while soft-RoCE reads
 * it. When a region gets a key, the memory that it maps is in use.
 */
static int dma_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct ib_sge sges[MOST_SGES];
	int rc;

	for (; wr; wr = wr->next) {
		struct ib_send_wr *one = (struct ib_send_wr *)wr;
		bool inlined = one->send_flags & IB_SEND_INLINE;
		struct ib_send_wr *next = one->next;
		struct ib_sge *list = one->sg_list;
		struct use *use = NULL;

		rc = inlined ? check_inline(one) :
			       translate(qp, list, one->num_sge, sges);
		if (!rc) {
			use = post_use(qp, list, inlined ? 0 : one->num_sge,
				       one->wr_cqe, true);
			rc = use ? 0 : -ENOMEM;
		}
		if (!rc) {
			if (one->opcode == IB_WR_LOCAL_INV)
				use->inv_rkey = one->ex.invalidate_rkey;
			if (one->opcode == IB_WR_REG_MR)
				rc = begin_region(qp, reg_wr(one)->mr);
		}
		if (!rc) {
			if (!inlined)
				one->sg_list = sges;
			one->next = NULL;
			rc = real.post_send(qp, one, bad);
			one->sg_list = list;
			one->next = next;
		}
		if (rc) {
			if (use)
				unpost_use(use);
			*bad = wr;
			return rc;
		}
	}
	return 0;
}

static int dma_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	struct ib_sge sges[MOST_SGES];
	int rc;

	for (; wr; wr = wr->next) {
		struct ib_recv_wr *one = (struct ib_recv_wr *)wr;
		struct ib_recv_wr *next = one->next;
		struct ib_sge *list = one->sg_list;
		struct use *use = NULL;

		rc = translate(qp, list, one->num_sge, sges);
		if (!rc) {
			use = post_use(qp, list, one->num_sge, one->wr_cqe,
				       false);
			rc = use ? 0 : -ENOMEM;
		}
		if (!rc) {
			one->sg_list = sges;
			one->next = NULL;
			rc = real.post_recv(qp, one, bad);
			one->sg_list = list;
			one->next = next;
		}
		if (rc) {
			if (use)
				unpost_use(use);
			*bad = wr;
			return rc;
		}
	}
	return 0;
}

/*
 * Gives the region DMA addresses, also for the peer. soft-RoCE keeps its
 * pages.
 */
static int dma_map_mr_sg(struct ib_mr *mr, struct scatterlist *list, int n,
			 unsigned int *offset)
{
	struct scatterlist *sg;
	u64 *addrs, first;
	struct use *use;
	int i, rc = 0;

	addrs = kmalloc_array(n, sizeof(*addrs), GFP_ATOMIC);
	use = new_use(NULL, n);
	if (!addrs || !use) {
		kfree(addrs);
		kfree(use);
		return -ENOMEM;
	}
	use->mr = mr;
	for_each_sg(list, sg, n, i) {
		addrs[i] = sg_dma_address(sg);
		add_piece(use, addrs[i], sg_dma_len(sg));
		sg_dma_address(sg) = cpu_address(addrs[i]);
		if (!sg_dma_address(sg)) {
			violation("piece %d of %d: no DMA address: %llx\n", i,
				  n, addrs[i]);
			rc = -EINVAL;
		}
	}
	first = sg_dma_address(list);
	if (!rc)
		rc = real.map_mr_sg(mr, list, n, offset);
	if (rc > 0) {
		mr->iova = mr->iova - first + addrs[0];
		/* The last mapping, if no work request followed it. */
		kfree(xa_store(&mapped, (uintptr_t)mr, use, GFP_ATOMIC));
	} else {
		kfree(use);
	}
	for_each_sg(list, sg, n, i)
		sg_dma_address(sg) = addrs[i];
	kfree(addrs);
	return rc;
}

/* Runs before ib_register_device(device, name, dma_device). */
static int register_device(struct kprobe *probe, struct pt_regs *regs)
{
#ifdef CONFIG_X86_64
	struct ib_device *dev = (struct ib_device *)regs->di;
	unsigned long *dma = &regs->dx;
#else
	struct ib_device *dev = (struct ib_device *)regs->regs[0];
	u64 *dma = &regs->regs[2];
#endif

	if (dev->ops.driver_id != RDMA_DRIVER_RXE || *dma)
		return 0;
	real = dev->ops;
	dev->ops.post_send = dma_post_send;
	dev->ops.post_recv = dma_post_recv;
	dev->ops.poll_cq = dma_poll_cq;
	dev->ops.destroy_qp = dma_destroy_qp;
	dev->ops.dereg_mr = dma_dereg_mr;
	dev->ops.map_mr_sg = dma_map_mr_sg;
	*dma = (uintptr_t)&dma_device->dev;
	return 0;
}

/* Runs before dma_unmap_page_attrs(dev, addr, len, ...), or its successor. */
static int unmap(struct kprobe *probe, struct pt_regs *regs)
{
	if (regs_get_kernel_argument(regs, 0) == (uintptr_t)&dma_device->dev)
		check_unused(regs_get_kernel_argument(regs, 1),
			     regs_get_kernel_argument(regs, 2));
	return 0;
}

/* Runs before dma_unmap_sg_attrs(dev, list, n, ...). */
static int unmap_sg(struct kprobe *probe, struct pt_regs *regs)
{
	struct scatterlist *sg;
	int i;

	if (regs_get_kernel_argument(regs, 0) != (uintptr_t)&dma_device->dev)
		return 0;
	for_each_sg((struct scatterlist *)regs_get_kernel_argument(regs, 1), sg,
		    regs_get_kernel_argument(regs, 2), i)
		check_unused(sg_dma_address(sg), sg_dma_len(sg));
	return 0;
}

static bool skips(const char *owner, struct pt_regs *regs)
{
	char name[sizeof(skip)];

	if (!skip[0])
		return false;
	snprintf(name, sizeof(name), "%s %lu", owner,
		 (unsigned long)regs_get_kernel_argument(regs, 3));
	return sysfs_streq(name, skip);
}

/* Returns from the function that is about to run. */
static int leave(struct pt_regs *regs)
{
#ifdef CONFIG_X86_64
	instruction_pointer_set(regs, *(unsigned long *)regs->sp);
	regs->sp += sizeof(long);
#else
	instruction_pointer_set(regs, regs->regs[30]);
#endif
	return 1;
}

/* Runs before dma_sync_single_for_cpu(dev, addr, len, dir). */
static int for_cpu(struct kprobe *probe, struct pt_regs *regs)
{
	u64 addr = regs_get_kernel_argument(regs, 1);
	u64 len = regs_get_kernel_argument(regs, 2);
	unsigned long flags;

	if (regs_get_kernel_argument(regs, 0) != (uintptr_t)&dma_device->dev)
		return 0;
	if (skips("cpu", regs))
		return leave(regs);
	spin_lock_irqsave(&lock, flags);
	take_from_cpu(addr, addr + len - 1);
	give_to_cpu(addr, addr + len - 1);
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/* Runs before dma_sync_single_for_device(dev, addr, len, dir). */
static int for_device(struct kprobe *probe, struct pt_regs *regs)
{
	u64 addr = regs_get_kernel_argument(regs, 1);
	u64 len = regs_get_kernel_argument(regs, 2);
	unsigned long flags;

	if (regs_get_kernel_argument(regs, 0) != (uintptr_t)&dma_device->dev)
		return 0;
	if (skips("device", regs))
		return leave(regs);
	spin_lock_irqsave(&lock, flags);
	take_from_cpu(addr, addr + len - 1);
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/* Lets the other handlers change where the kernel continues. */
static void after(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

/* Since Linux 6.10 an inline function precedes these two. */
#ifdef CONFIG_DMA_NEED_SYNC
#define SYNC(name) "__dma_sync_single_for_" name
#else
#define SYNC(name) "dma_sync_single_for_" name
#endif

static struct kprobe probes[] = {
	{ .symbol_name = "ib_register_device", .pre_handler = register_device },
	{ .symbol_name = "dma_unmap_page_attrs", .pre_handler = unmap },
	{ .symbol_name = "dma_unmap_sg_attrs", .pre_handler = unmap_sg },
	{ .symbol_name = SYNC("cpu"), .pre_handler = for_cpu, .post_handler = after },
	{ .symbol_name = SYNC("device"), .pre_handler = for_device, .post_handler = after },
};

static int __init ib_dma_init(void)
{
	struct platform_device_info info = {
		.name = "ib_dma",
		.id = PLATFORM_DEVID_NONE,
		.dma_mask = DMA_BIT_MASK(mask),
	};
	int i, rc;

	dma_device = platform_device_register_full(&info);
	if (IS_ERR(dma_device))
		return PTR_ERR(dma_device);
	if (shift) {
		ranges[0].dma_start = shift;
		ranges[0].size = 1ULL << 40;
		dma_device->dev.dma_range_map = ranges;
	}
	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		rc = register_kprobe(&probes[i]);
		if (rc)
			goto undo;
	}
	return 0;

undo:
	while (i--)
		unregister_kprobe(&probes[i]);
	platform_device_unregister(dma_device);
	return rc;
}
module_init(ib_dma_init);

MODULE_DESCRIPTION("Gives soft-RoCE devices the DMA of an adapter");
MODULE_LICENSE("GPL");
