// SPDX-License-Identifier: GPL-2.0
/* struct ib_device, its clients and its asynchronous events. */
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
		.max_qp_wr = a->max_qp_wr,
		.max_send_sge = a->max_send_sge,
		.max_cqe = a->max_cqe,
		.max_fast_reg_page_list_len = a->max_fast_reg_page_list_len,
		.mem_mgt_extensions =
			a->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS,
	};
}

bool ro2ib_device_is_software(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
}

/* See push_reg() in rust/rdma/sq.rs. */
bool ro2ib_device_repeats_local(struct ib_device *dev)
{
	return dev->ops.driver_id == RDMA_DRIVER_RXE;
}

bool ro2ib_port_active(struct ib_device *dev, u32 port)
{
	struct ib_port_attr attr;

	return !ib_query_port(dev, port, &attr) &&
	       attr.state == IB_PORT_ACTIVE;
}

const char *ro2ib_device_name(struct ib_device *dev)
{
	return dev_name(&dev->dev);
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
