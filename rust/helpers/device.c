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
	struct device *parent = dev->dma_device ?: dev->dev.parent;

	*out = (struct ro2ib_device_attrs){
		.max_qp_wr = a->max_qp_wr,
		.max_send_sge = a->max_send_sge,
		.max_recv_sge = a->max_recv_sge,
		.max_cqe = a->max_cqe,
		.max_fast_reg_page_list_len = a->max_fast_reg_page_list_len,
		.num_comp_vectors = dev->num_comp_vectors,
		.phys_port_cnt = dev->phys_port_cnt,
		.numa_node = parent ? dev_to_node(parent) : NUMA_NO_NODE,
		.mem_mgt_extensions =
			a->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS,
		.sg_gaps = a->kernel_cap_flags & IBK_SG_GAPS_REG,
	};
}

bool ro2ib_device_is_software(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
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

void ro2ib_client_init(struct ib_client *c, const char *name,
		       int (*add)(struct ib_device *),
		       void (*remove)(struct ib_device *, void *))
{
	*c = (struct ib_client){
		.name = name,
		.add = add,
		.remove = remove,
	};
}
