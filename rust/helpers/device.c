// SPDX-License-Identifier: GPL-2.0
/* struct ib_device, its ports and its asynchronous events. */
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_helpers.h"

bool ro2ib_device_try_get(struct ib_device *dev)
{
	return ib_device_try_get(dev);
}

void ro2ib_device_attrs(struct ib_device *dev, struct ro2ib_device_attrs *out)
{
	const struct ib_device_attr *a = &dev->attrs;

	*out = (struct ro2ib_device_attrs){
		.max_qp = max(a->max_qp, 0),
		.max_qp_wr = a->max_qp_wr,
		.max_send_sge = a->max_send_sge,
		.max_cqe = a->max_cqe,
		.max_mr = max(a->max_mr, 0),
		.max_fast_reg_page_list_len = a->max_fast_reg_page_list_len,
		.page_size_cap = a->page_size_cap,
		.mem_mgt_extensions =
			a->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS,
		/*
		 * hns claims the extensions, and refuses IB_WR_LOCAL_INV when
		 * it is posted: the hardware has a defect ("RDMA/hns: Disable
		 * local invalidate operation", 6.2 and stable).
		 */
		.local_inv = dev->ops.driver_id != RDMA_DRIVER_HNS,
	};
}

/* Not ib_uses_virt_dma(): hfi1 and qib do their DMA by themselves, but have interrupts. */
bool ro2ib_device_is_software(struct ib_device *dev)
{
	return (dev->ops.driver_id == RDMA_DRIVER_RXE ||
		dev->ops.driver_id == RDMA_DRIVER_SIW) &&
	       !ro2ib_as_hardware();
}

/* See cq.c. */
bool ro2ib_device_uses_irq(struct ib_device *dev)
{
	return !ro2ib_device_is_software(dev) || ro2ib_in_softirq();
}

/* The core looks ports up in an array, and does not check the number. */
bool ro2ib_device_is_iwarp(struct ib_device *dev, u32 port)
{
	return rdma_is_port_valid(dev, port) && rdma_protocol_iwarp(dev, port);
}

bool ro2ib_device_is_roce(struct ib_device *dev, u32 port)
{
	return rdma_is_port_valid(dev, port) && rdma_protocol_roce(dev, port);
}

/* InfiniBand or OPA: a path is a LID, which the subnet manager assigns. */
bool ro2ib_device_is_ib(struct ib_device *dev, u32 port)
{
	return rdma_cap_ib_sa(dev, port);
}

/*
 * See push_reg() in rust/rdma/sq_reg.rs. It is a defect of rxe, which rxe also
 * has when ro2ib_as_hardware() is true.
 */
bool ro2ib_device_replays_local_wrs(struct ib_device *dev)
{
	return dev->ops.driver_id == RDMA_DRIVER_RXE;
}

/* See Qp::signals_all() in rust/rdma/qp.rs. */
bool ro2ib_device_reads_after_completion(struct ib_device *dev)
{
	return dev->ops.driver_id == RDMA_DRIVER_SIW;
}

/* All 0 if there is no such port. Sleeps. */
void ro2ib_port_query(struct ib_device *dev, u32 port, struct ro2ib_port *out)
{
	struct ib_port_attr attr;

	*out = (struct ro2ib_port){};
	if (ib_query_port(dev, port, &attr))
		return;
	out->active = attr.state == IB_PORT_ACTIVE;
	out->mtu = max(ib_mtu_enum_to_int(attr.active_mtu), 0);
	out->lid = attr.lid;
	out->speed = attr.active_speed;
	out->width = attr.active_width;
	out->bad_pkeys = attr.bad_pkey_cntr;
}

static void ro2ib_gsi_no_send(struct ib_mad_agent *agent,
			      struct ib_mad_send_wc *wc)
{
}

/*
 * Returns whether the queue pair that the CM sends its messages with is in the
 * error state. A temporary MAD agent that sends nothing gives access to it.
 * Sleeps.
 */
bool ro2ib_gsi_failed(struct ib_device *dev, u32 port)
{
	struct ib_qp_init_attr init;
	struct ib_mad_agent *agent;
	struct ib_qp_attr attr;
	bool failed;

	/*
	 * The MAD layer reads the port's capabilities before it checks the
	 * number.
	 */
	if (!rdma_is_port_valid(dev, port))
		return false;
	agent = ib_register_mad_agent(dev, port, IB_QPT_GSI, NULL, 0,
				      ro2ib_gsi_no_send, NULL, NULL, 0);
	if (IS_ERR(agent))
		return false;
	failed = !ib_query_qp(agent->qp, &attr, IB_QP_STATE, &init) &&
		 attr.qp_state == IB_QPS_ERR;
	ib_unregister_mad_agent(agent);
	return failed;
}

struct device *ro2ib_device_dma(struct ib_device *dev)
{
	return dev->dma_device;
}

/*
 * Copies at most @len bytes: the name of the struct device is freed when the
 * device is renamed. The name that is copied here is overwritten instead.
 */
void ro2ib_device_name(struct ib_device *dev, char *buf, size_t len)
{
	strscpy(buf, dev->name, len);
}

void ro2ib_register_event_handler(struct ib_event_handler *h,
				  struct ib_device *dev,
				  void (*fn)(struct ib_event_handler *,
					     struct ib_event *))
{
	INIT_IB_EVENT_HANDLER(h, dev, fn);
	ib_register_event_handler(h);
}

/* u8 before 5.13 */
u32 ro2ib_event_port(const struct ib_event *ev)
{
	return ev->element.port_num;
}
