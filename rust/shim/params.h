/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Module parameters as the other files of rust/shim/ read them; private to
 * them. Parameters that may change at run time are in ro2iblnd_shim.h, for the
 * driver too.
 */
#ifndef RO2IB_SHIM_PARAMS_H
#define RO2IB_SHIM_PARAMS_H

#include <linux/module.h>
#include <linux/types.h>

struct ro2ib_ni_cfg;

/* Changes are logged; values that are set while the module loads are no changes. */
static inline bool ro2ib_params_logged(void)
{
	return THIS_MODULE->state == MODULE_STATE_LIVE;
}

/* Returns the configured value: 0 stands for LNet's own value. Any context. */
u32 ro2ib_param_timeout_raw(void);

/* Fixed at load time. */
int ro2ib_param_credits(void);
int ro2ib_param_peer_credits(void);
int ro2ib_param_peer_credits_hiw(void);
int ro2ib_param_peer_buffer_credits(void);
int ro2ib_param_peer_timeout(void);
int ro2ib_param_concurrent_sends(void);
int ro2ib_param_ntx(void);
int ro2ib_param_conns_per_peer(void);
int ro2ib_param_map_on_demand(void);
int ro2ib_param_fmr_pool_size(void);
int ro2ib_param_fmr_flush_trigger(void);
int ro2ib_param_fmr_cache(void);
int ro2ib_param_tos(void);
const char *ro2ib_param_ipif_name(void);

/* Returns whether the user gave the parameter, maybe with its default value. */
bool ro2ib_param_credits_given(void);
bool ro2ib_param_peer_credits_given(void);

/* Copies the parameters that are fixed at load time and not tunable per NI. */
void ro2ib_params_fill(struct ro2ib_ni_cfg *cfg);

/* Makes the driver derive its values from the parameters again. In ni_link.c. */
void ro2ib_ni_settings_changed(void);

#endif /* RO2IB_SHIM_PARAMS_H */
