// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the RDMA device of a network interface send events that real devices
 * send, and software devices never do:
 *
 *	echo 'eth0 fatal' >/sys/module/ib_event/parameters/tell
 */
#include <linux/module.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

#include "netdev_device.h"

static const struct {
	const char *name;
	enum ib_event_type type;
} events[] = {
	{ "fatal", IB_EVENT_DEVICE_FATAL },
	{ "port_err", IB_EVENT_PORT_ERR },
	{ "port_active", IB_EVENT_PORT_ACTIVE },
	{ "lid_change", IB_EVENT_LID_CHANGE },
	{ "pkey_change", IB_EVENT_PKEY_CHANGE },
	{ "sm_change", IB_EVENT_SM_CHANGE },
	{ "client_reregister", IB_EVENT_CLIENT_REREGISTER },
	{ "gid_change", IB_EVENT_GID_CHANGE },
};

static int tell(const char *value, const struct kernel_param *kp)
{
	struct ib_event event = { .element.port_num = 1 };
	char words[IFNAMSIZ + 16];
	char *interface, *what;
	unsigned int i;

	if (strscpy(words, value, sizeof(words)) < 0)
		return -EINVAL;
	what = strim(words);
	interface = strsep(&what, " ");
	if (!what)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (!strcmp(what, events[i].name))
			break;
	if (i == ARRAY_SIZE(events))
		return -EINVAL;
	event.event = events[i].type;
	event.device = device_of(interface);
	if (!event.device)
		return -ENODEV;
	ib_dispatch_event(&event);
	ib_device_put(event.device);
	return 0;
}

static const struct kernel_param_ops tell_ops = { .set = tell };
module_param_cb(tell, &tell_ops, NULL, 0200);
MODULE_PARM_DESC(tell, "interface and event");

MODULE_DESCRIPTION("Events of RDMA devices, for tests");
MODULE_LICENSE("GPL");
