/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Hook between the verbs and a software device. The module's operations replace
 * those of each soft-RoCE device, and of each soft-iWARP device on request, that is
 * registered after the module was loaded. The RDMA core, the MAD layer and all
 * other users see only the module's operations. The hook cannot be removed,
 * because a call may always be under way.
 *
 * With several such modules, the operations of the module that was loaded first
 * call those of the next one.
 */
#ifndef OPS_HOOK_H
#define OPS_HOOK_H

#include <linux/kprobes.h>
#include <linux/ptrace.h>
#include <linux/version.h>
#include <rdma/ib_verbs.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(4, 20, 0)
/* Argument @n of a function at its first instruction, on x86-64 */
static inline unsigned long regs_get_kernel_argument(struct pt_regs *regs,
						     unsigned int n)
{
	const unsigned long args[] = { regs->di, regs->si, regs->dx, regs->cx };

	return args[n];
}
#endif

struct ops_hook {
	struct kprobe probe;
	/* Operations of the module; the others stay those of the device */
	const struct ib_device_ops *by;
	/* Operations of the device */
	struct ib_device_ops *real;
	bool siw;
	/* Changes other properties of the device. May neither lock nor allocate. */
	void (*adapt)(struct ib_device *dev, struct pt_regs *regs);
};

/* Replaces operations before ib_register_device(dev, name, dma_device). */
static int ops_hook_replace(struct kprobe *probe, struct pt_regs *regs)
{
	struct ops_hook *hook = container_of(probe, struct ops_hook, probe);
	struct ib_device *dev = (struct ib_device *)regs_get_kernel_argument(regs, 0);
	const unsigned long *by = (const unsigned long *)hook->by;
	unsigned long *ops = (unsigned long *)&dev->ops;
	u32 driver = dev->ops.driver_id;
	unsigned int i;

	if (driver != RDMA_DRIVER_RXE && !(hook->siw && driver == RDMA_DRIVER_SIW))
		return 0;
	/* Devices of one driver have the same operations. */
	if (hook->real->post_send && hook->real->driver_id != driver)
		return 0;
	*hook->real = dev->ops;
	for (i = 0; i < sizeof(dev->ops) / sizeof(*ops); i++)
		if (by[i])
			ops[i] = by[i];
	if (hook->adapt)
		hook->adapt(dev, regs);
	return 0;
}

/*
 * Lets soft-RoCE wait as long for an acknowledgement as an adapter on InfiniBand
 * does, 2.15 s instead of the CM's 0.54 s for RoCE. An acknowledgement of a WRITE
 * that it is retransmitting advances its sequence number (COMPST_UPDATE_COMP in
 * rxe_comp.c), so the next retransmission may send later messages twice.
 */
static inline void ops_hook_ack_timeout(struct ib_qp_attr *attr, int attr_mask)
{
	if (attr_mask & IB_QP_TIMEOUT && attr->timeout < 18)
		attr->timeout = 19;
}

static int ops_hook_add(struct ops_hook *hook)
{
	hook->probe.symbol_name = "ib_register_device";
	hook->probe.pre_handler = ops_hook_replace;
	return register_kprobe(&hook->probe);
}

#endif
