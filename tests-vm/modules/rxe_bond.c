// SPDX-License-Identifier: GPL-2.0
/*
 * Lets rxe receive on the slaves of a bond. rxe looks for the device of the
 * packet's interface, which is the bond by then, and knows none. This module
 * finds the device on the active slave, like adapters that receive below the
 * bond.
 *
 * It does so only in packet processing. Elsewhere rxe looks for devices in order
 * to follow changes of an interface, and the end of a bond is not that of a slave.
 */
#include <linux/bottom_half.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/preempt.h>
#include <net/bonding.h>

/*
 * Runs before ib_device_get_by_netdev(ndev, driver), under RCU if
 * in_softirq().
 */
static int ask_the_slave(struct kprobe *probe, struct pt_regs *regs)
{
	struct net_device *ndev = (struct net_device *)regs->di;
	struct net_device *slave;

	if (!in_softirq() || !netif_is_bond_master(ndev))
		return 0;
	slave = bond_option_active_slave_get_rcu(netdev_priv(ndev));
	if (slave)
		regs->di = (unsigned long)slave;
	return 0;
}

static struct kprobe probe = {
	.symbol_name = "ib_device_get_by_netdev",
	.pre_handler = ask_the_slave,
};

static int __init rxe_bond_init(void)
{
	return register_kprobe(&probe);
}
module_init(rxe_bond_init);

static void __exit rxe_bond_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(rxe_bond_exit);

MODULE_DESCRIPTION("Lets rxe receive below a bond");
MODULE_LICENSE("GPL");
