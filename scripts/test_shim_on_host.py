# SPDX-License-Identifier: GPL-2.0
"""Functions of the shim on the host: their text is compiled with stubs of the kernel and called. Run: pytest scripts"""

import ctypes
import errno
import os
import re
import subprocess

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

KERNEL = """
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
typedef uint32_t u32;
typedef int64_t s64;
typedef uint32_t __be32;
#define U16_MAX UINT16_MAX
#define U32_MAX UINT32_MAX
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define max_t(t, a, b) max((t)(a), (t)(b))
#define clamp(v, lo, hi) min(max(v, lo), hi)
"""

# One NI, whose peers never answer the disconnect.
LINK = """
#define HZ 1000
#define ARPHRD_ETHER 1
enum { RO2IB_FATAL_LINK = 1, RO2IB_LINK_DOWN, RO2IB_LINK_LEAVING };
struct net_device { int type; struct { int lower; } adj_list; };
struct ro2ib_ni { bool leaving; int fatal, link; void *priv; };
struct ops { void (*link_event)(void *, int); bool (*link_busy)(void *); };
static void link_event(void *ni, int event) { }
static bool link_busy(void *ni) { return true; }
static const struct ops ops = { link_event, link_busy }, *const ro2ib_ops = &ops;
static struct ro2ib_ni the_ni;
unsigned long jiffies = 1000000;
#define list_for_each_entry(ni, head, member) for (ni = &the_ni; ni; ni = NULL)
#define ro2ib_ni_loses_link(ni, dev, below, ip) true
#define ro2ib_ni_fatal(ni, mask, bits) ((ni)->fatal = 0)
#define time_after_eq(a, b) ((long)((a) - (b)) >= 0)
#define msecs_to_jiffies(ms) ((unsigned long)(ms))
#define msleep(ms) (jiffies += (ms))
#define mutex_lock(lock) ((void)0)
#define mutex_unlock(lock) ((void)0)
#define ASSERT_RTNL() ((void)0)
#define list_empty(list) true
#define synchronize_rcu() ((void)0)
"""

# Interfaces above each other, and one NI, on interface 0. Each peer answers at once.
STACK = """
#define ARPHRD_ETHER 1
#define ARPHRD_INFINIBAND 32
enum { NOTIFY_DONE, RO2IB_FATAL_LINK };
enum { NETDEV_GOING_DOWN, NETDEV_BONDING_FAILOVER, NETDEV_CHANGEADDR, NETDEV_CHANGEMTU, NETDEV_UP, NETDEV_DOWN,
       NETDEV_CHANGE, NETDEV_UNREGISTER, NETDEV_CHANGEUPPER, NETDEV_PRECHANGEUPPER };
enum ro2ib_link_event { RO2IB_LINK_DOWN, RO2IB_LINK_UP, RO2IB_LINK_LEAVING, RO2IB_LINK_MOVED, RO2IB_LINK_MTU,
			RO2IB_LINK_NO_CARRIER };
struct net_device;
struct adjacent { struct net_device *dev[4]; int n; };
struct net_device { int ifindex, type; bool carrier; struct net_device *master;
		    struct { struct adjacent lower; } adj_list; };
struct netdev_nested_priv { void *data; };
struct notifier_block { int unused; };
struct netdev_notifier_changeupper_info { struct net_device *dev, *upper_dev; bool linking; };
struct ro2ib_ni { bool leaving; int fatal, ifindex; enum ro2ib_link_event link; void *net, *priv; __be32 ip; };
struct ops { void (*link_event)(void *, int); bool (*link_busy)(void *); };
int events[16], nr_events;
static void link_event(void *ni, int event) { events[nr_events++] = event; }
static bool link_busy(void *ni) { return false; }
static const struct ops ops = { link_event, link_busy }, *const ro2ib_ops = &ops;
static struct net_device devs[4];
static struct ro2ib_ni the_ni = { .link = RO2IB_LINK_UP };
static unsigned long jiffies;
static int netdev_walk_all_lower_dev_rcu(struct net_device *dev,
					 int (*fn)(struct net_device *, struct netdev_nested_priv *),
					 struct netdev_nested_priv *priv)
{
	int i, rc = 0;

	for (i = 0; i < dev->adj_list.lower.n && !rc; i++) {
		rc = fn(dev->adj_list.lower.dev[i], priv);
		if (!rc)
			rc = netdev_walk_all_lower_dev_rcu(dev->adj_list.lower.dev[i], fn, priv);
	}
	return rc;
}
static bool netdev_has_upper_dev_all_rcu(struct net_device *dev, struct net_device *upper)
{
	int i;

	for (i = 0; i < upper->adj_list.lower.n; i++)
		if (upper->adj_list.lower.dev[i] == dev ||
		    netdev_has_upper_dev_all_rcu(dev, upper->adj_list.lower.dev[i]))
			return true;
	return false;
}
#define HZ 1000
#define netdev_notifier_info_to_dev(ptr) (*(struct net_device **)(ptr))
#define netdev_master_upper_dev_get_rcu(d) ((d)->master)
#define netif_running(d) true
#define netif_carrier_ok(d) ((d)->carrier)
#define netif_oper_up(d) true
#define netif_is_lag_master(d) false
#define dev_get_by_index_rcu(net, index) (&devs[index])
#define ro2ib_ni_netdev(ni) (&devs[(ni)->ifindex])
#define ro2ib_address_stays(ni) false
#define ro2ib_ni_check_arp(ni) ((void)0)
#define net_eq(a, b) true
#define dev_net(d) NULL
#define list_for_each_entry(ni, head, member) for (ni = &the_ni; ni; ni = NULL)
#define list_empty(list) (!(list)->n)
#define ro2ib_ni_fatal(ni, mask, on) ((ni)->fatal = (on))
#define time_after_eq(a, b) ((long)((a) - (b)) >= 0)
#define msecs_to_jiffies(ms) ((unsigned long)(ms))
#define msleep(ms) (jiffies += (ms))
#define mutex_lock(lock) ((void)0)
#define mutex_unlock(lock) ((void)0)
#define ASSERT_RTNL() ((void)0)
#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)
#define synchronize_rcu() ((void)0)
"""

# As the kernel's __netdev_upper_dev_link() and __netdev_upper_dev_unlink(), and linkwatch.
CHANGES = """
static void notify(int event, void *ptr)
{
	ro2ib_netdev_early_event(NULL, event, ptr);
	ro2ib_netdev_event(NULL, event, ptr);
}
void set_up(void)
{
	int i;

	memset(devs, 0, sizeof(devs));
	for (i = 0; i < 4; i++)
		devs[i] = (struct net_device){ .ifindex = i, .type = ARPHRD_ETHER, .carrier = true };
	the_ni = (struct ro2ib_ni){ .link = RO2IB_LINK_UP };
	nr_events = 0;
}
void carrier(int dev, bool on)
{
	struct net_device *changed = &devs[dev];

	changed->carrier = on;
	notify(NETDEV_CHANGE, &changed);
}
void put_on(int upper, int lower, bool master)
{
	struct netdev_notifier_changeupper_info info = { &devs[lower], &devs[upper], true };
	struct adjacent *below = &devs[upper].adj_list.lower;

	notify(NETDEV_PRECHANGEUPPER, &info);
	below->dev[below->n++] = &devs[lower];
	devs[lower].master = master ? &devs[upper] : devs[lower].master;
	notify(NETDEV_CHANGEUPPER, &info);
}
void take_off(int upper, int lower)
{
	struct netdev_notifier_changeupper_info info = { &devs[lower], &devs[upper], false };
	struct adjacent *below = &devs[upper].adj_list.lower;
	int i;

	notify(NETDEV_PRECHANGEUPPER, &info);
	for (i = 0; below->dev[i] != &devs[lower]; i++)
		;
	below->dev[i] = below->dev[--below->n];
	devs[lower].master = NULL;
	notify(NETDEV_CHANGEUPPER, &info);
}
"""

# An NI with 8 credits of LNet for a peer, and connections of depth 32, if `runs` is set.
TUNABLES = """
#define LNET_CMD_NETS 1
#define LN_SCALAR_ATTR_INT_VALUE 1
#define RO2IB_CONNS_PER_PEER_MAX 127
struct nlattr { s64 v; };
struct tunables { u32 lnd_peercredits_hiw, lnd_concurrent_sends, lnd_fmr_pool_size, lnd_fmr_flush_trigger;
		  u32 lnd_fmr_cache, lnd_ntx, lnd_conns_per_peer; int lnd_tos; };
#define lnet_ioctl_config_o2iblnd_tunables tunables
struct lnet_lnd_tunables { struct { struct tunables lnd_o2ib; } lnd_tun_u; };
struct ro2ib_ni { int unused; };
static struct { struct { const char *lkp_value; } lkl_list[99]; } ro2ib_tunables_keys;
int runs, stores;
#define WRITE_ONCE(x, v) (stores++, (x) = (v))
#define nla_type(attr) LN_SCALAR_ATTR_INT_VALUE
#define nla_get_s64(attr) ((attr)->v)
#define ro2ib_ni_with_tunables(tun) (runs ? &(struct ro2ib_ni){ 0 } : NULL)
#define ro2ib_ni_peer_credits(ni) 32U
#define ro2ib_ni_lnet_credits(ni) 8U
#define ro2ib_ni_conns_per_peer(ni) 1
#define ro2ib_ni_tos(ni) 0
#define ro2ib_param_peer_credits_hiw() 0U
#define ro2ib_param_tos() 106
#define ro2ib_log_tunable(ni, name, old, new) ((void)(name))
#define pr_err_ratelimited(...) ((void)0)
#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)
"""

# LNet, and the module list, of which a driver takes the name of ko2iblnd. `calls` has a letter for each step.
REGISTER = """
#define READ_ONCE(x) (x)
#define pr_err(...) ((void)0)
#define pr_warn(...) ((void)0)
enum { O2IBLND = 5 };
struct ro2ib_lnd_ops;
struct lnet_lnd { int type; };
static struct { const struct lnet_lnd *ln_lnds[8]; } the_lnet;
static struct lnet_lnd ro2ib_lnd, other;
static const struct ro2ib_lnd_ops *ro2ib_ops;
static void *ro2ib_driver;
struct kobject { struct kobject *parent; };
static struct module { const char *name; struct { struct kobject kobj; } mkobj; } the_module = { "ro2iblnd" };
#define THIS_MODULE (&the_module)
static int ro2ib_late_work, name_error;
char calls[99];
static void call(char c) { calls[strlen(calls)] = c; }
static int sysfs_create_link_nowarn(struct kobject *k, struct kobject *t, const char *name)
{ call('n'); return name_error; }
static void sysfs_remove_link(struct kobject *k, const char *name) { call('N'); }
static int libcfs_setup(void) { return 0; }
static int ro2ib_notifiers_register(void) { call('w'); return 0; }
static void ro2ib_notifiers_unregister(void) { call('W'); }
static void lnet_register_lnd(struct lnet_lnd *lnd) { call('r'); }
static void lnet_unregister_lnd(struct lnet_lnd *lnd) { call('R'); }
static void flush_work(int *work) { }
static void ro2ib_print_version(void) { }
int ro2ib_shim_register(const struct ro2ib_lnd_ops *ops, void *driver);
int load(int error, int registered)
{
	memset(calls, 0, sizeof(calls));
	name_error = error;
	the_lnet.ln_lnds[O2IBLND] = registered ? &other : NULL;
	return ro2ib_shim_register((void *)calls, NULL);
}
"""


def part(file, pattern):
    """Returns a definition of a file of the shim."""
    with open(os.path.join(TOP, "rust/shim", file), encoding="utf-8") as f:
        return re.search(pattern, f.read(), re.MULTILINE | re.DOTALL)[0] + "\n"


def function(file, name):
    return part(file, rf"^(?:static )?(?:enum )?\w+ {name}\(.*?^}}$")


def header(name):
    """Returns a header of the driver without what it includes."""
    with open(os.path.join(TOP, "include", name), encoding="utf-8") as f:
        return re.sub(r"^#include.*$", "", f.read(), flags=re.MULTILINE)


def compiled(tmp_path, *parts):
    """Returns the library of these parts."""
    lib = tmp_path / "shim.so"
    cmd = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused", "-o", lib, "-x", "c", "-"]
    subprocess.run(cmd, input=KERNEL + "".join(parts), text=True, check=True)
    return ctypes.CDLL(str(lib))


def test_links_that_go_down_hold_rtnl_for_a_second_in_ten(tmp_path):
    lib = compiled(
        tmp_path,
        LINK,
        part("ni_link.c", r"^#define RO2IB_LEAVE_MAX.*?^#define RO2IB_LEAVE_STEP.*?$"),
        part("ni_link.c", r"^#define RO2IB_LEAVE_TOTAL.*?^#define RO2IB_LEAVE_PERIOD.*?$"),
        function("ni_link.c", "ro2ib_close_before_down"),
        "void down(int type) { struct net_device dev = { type }; ro2ib_close_before_down(&dev, &dev, 0); }\n",
    )
    now = ctypes.c_ulong.in_dll(lib, "jiffies")

    def holds():
        begun = now.value
        lib.down(1)
        return now.value - begun

    begun = now.value
    assert 500 <= holds() <= 510
    assert 500 <= holds() <= 510
    # One look at the NIs, at most, is left for each of the other links.
    assert sum(holds() for _ in range(100)) <= 20
    now.value = begun + 9_999
    assert holds() <= 10
    now.value = begun + 10_100
    assert 500 <= holds() <= 510
    begun = now.value
    lib.down(32)
    assert now.value == begun


# Values of enum ro2ib_link_event in STACK.
DOWN, UP, LEAVING = range(3)
MASTER = True


@pytest.fixture(name="stack")
def stack_of_interfaces(tmp_path):
    """Provides a function that changes the interfaces, and returns the events that the driver gets."""
    lib = compiled(
        tmp_path,
        STACK,
        header("ro2iblnd_netdev_carrier.h"),
        part("ni_link.c", r"^#define RO2IB_LEAVE_MAX.*?^#define RO2IB_LEAVE_STEP.*?$"),
        part("ni_link.c", r"^#define RO2IB_LEAVE_TOTAL.*?^#define RO2IB_LEAVE_PERIOD.*?$"),
        *(
            function("ni_link.c", f"ro2ib_{name}")
            for name in (
                *("link_state", "ni_check_link", "ni_is_on", "ni_rests_on", "ni_loses_link", "close_before_down"),
                *("netdev_event", "netdev_early_event"),
            )
        ),
        CHANGES,
    )
    number = ctypes.c_int.in_dll(lib, "nr_events")
    events = (ctypes.c_int * 16).in_dll(lib, "events")

    def events_of(change, *args):
        number.value = 0
        getattr(lib, change)(*args)
        return list(events[: number.value])

    lib.set_up()
    return events_of


def test_ni_on_a_vxlan_follows_it_to_another_interface(stack):
    """The kernel links the new lower interface before it unlinks the old one."""
    stack("put_on", 0, 1, False)
    assert stack("put_on", 0, 2, False) == []
    assert stack("take_off", 0, 1) == [LEAVING, UP]
    assert stack("carrier", 2, False) == [DOWN]
    assert stack("put_on", 0, 1, False) == []
    assert stack("take_off", 0, 2) == [UP]
    assert stack("put_on", 0, 2, False) == [DOWN]
    assert stack("take_off", 0, 1) == []


def test_ni_on_a_master_follows_its_ports(stack):
    """The master keeps its carrier, as an interface of Open vSwitch does, or a bridge whose port is a VXLAN."""
    stack("put_on", 0, 1, MASTER)
    assert stack("put_on", 0, 2, MASTER) == []
    assert stack("take_off", 0, 1) == []
    assert stack("take_off", 0, 2) == [LEAVING]
    assert stack("put_on", 0, 1, MASTER) == [UP]
    assert stack("carrier", 1, False) == [DOWN]
    assert stack("put_on", 0, 2, MASTER) == [UP]
    assert stack("take_off", 0, 2) == [LEAVING]
    assert stack("take_off", 0, 1) == []


def test_ni_above_a_bond_follows_the_slaves(stack):
    """The NI is on a VLAN of a bond."""
    stack("put_on", 0, 1, False)
    stack("put_on", 1, 2, MASTER)
    assert stack("take_off", 1, 2) == [LEAVING]
    assert stack("put_on", 1, 3, MASTER) == [UP]


def test_ni_on_a_deleted_vlan_stays_down(stack):
    """The kernel unlinks the VLAN first, and the VLAN keeps its carrier until it is closed."""
    stack("put_on", 0, 1, False)
    assert stack("take_off", 0, 1) == [LEAVING]


def netlink(tmp_path, code):
    """Compiles the function that sets a tunable, with `code` that calls it."""
    return compiled(
        tmp_path,
        TUNABLES,
        part("netlink.c", r"^enum ro2ib_tun_attr \{.*?^};$"),
        function("tunable_defaults.c", "ro2ib_clamp_hiw"),
        function("netlink.c", "ro2ib_nl_range"),
        function("netlink.c", "ro2ib_nl_set"),
        "static struct lnet_lnd_tunables tun;\n"
        "u32 hiw(void) { return tun.lnd_tun_u.lnd_o2ib.lnd_peercredits_hiw; }\n",
        code,
    )


def test_hiw_of_a_running_ni_is_clamped(tmp_path):
    lib = netlink(
        tmp_path,
        "int set(s64 v) { struct nlattr a = { v }; return ro2ib_nl_set(LNET_CMD_NETS, &a, RO2IB_TUN_HIW, &tun); }\n",
    )
    runs, stores = (ctypes.c_int.in_dll(lib, name) for name in ("runs", "stores"))
    lib.set.argtypes = [ctypes.c_int64]

    def after(value):
        stores.value = 0
        assert lib.set(value) == 0
        # Readers of a running NI take no lock.
        assert stores.value == 1
        return lib.hiw()

    # The values of an NI that has not started are completed by its start.
    assert [after(v) for v in (0, 1, 64)] == [0, 1, 64]
    runs.value = 1
    assert [after(v) for v in (0, 1, 4, 5, 7, 8, 64, 2**32 - 1)] == [4, 4, 4, 5, 7, 7, 7, 7]
    assert lib.set(2**32) != 0
    assert lib.set(-1) != 0
    assert lib.hiw() == 7


def test_defaults_for_an_import_of_lnet_2_16(tmp_path):
    """LNet asks with a structure without values, in which 0 stands for a default, except in tos."""
    lib = netlink(
        tmp_path,
        "int defaults(void) {\n"
        "\tint rc = 0;\n"
        "\tfor (int type = 0; type <= RO2IB_TUN_TOS; type++) rc |= ro2ib_nl_set(LNET_CMD_NETS, NULL, type, &tun);\n"
        "\treturn rc;\n"
        "}\n"
        "int tos(void) { return tun.lnd_tun_u.lnd_o2ib.lnd_tos; }\n",
    )
    assert lib.defaults() == 0
    assert (lib.tos(), lib.hiw()) == (106, 0)


def test_the_name_of_ko2iblnd_is_taken_while_the_driver_is_registered(tmp_path):
    lib = compiled(
        tmp_path,
        REGISTER,
        part("sysfs_ko2iblnd.c", r"^#define RO2IB_LINK_NAME.*?^static bool ro2ib_module_linked;$"),
        function("sysfs_ko2iblnd.c", "ro2ib_module_link_add"),
        function("sysfs_ko2iblnd.c", "ro2ib_module_link_remove"),
        "#define RO2IB_HAVE_LN_LNDS\n",
        function("lnet_lnd.c", "ro2ib_shim_register"),
        function("lnet_lnd.c", "ro2ib_shim_unregister"),
    )
    calls = (ctypes.c_char * 99).in_dll(lib, "calls")
    assert (lib.load(0, 0), calls.value) == (0, b"wnr")
    lib.ro2ib_shim_unregister()
    assert calls.value == b"wnrRNW"
    # Another driver is there: its module has the name, and may not have registered yet.
    assert (lib.load(-errno.EEXIST, 0), calls.value) == (-errno.EBUSY, b"wnW")
    # It has another name.
    assert (lib.load(0, 1), calls.value) == (-errno.EBUSY, b"wnNW")
    # The name is for lnetctl only.
    assert (lib.load(-errno.ENOMEM, 0), calls.value) == (0, b"wnr")
    lib.ro2ib_shim_unregister()
    assert calls.value == b"wnrRW"
