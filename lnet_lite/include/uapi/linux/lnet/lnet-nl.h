/* SPDX-License-Identifier: GPL-2.0 */
/* The part of LNet's netlink vocabulary that an LND names */
#ifndef _LNL_UAPI_LNET_NL_H
#define _LNL_UAPI_LNET_NL_H

#include <linux/types.h>

enum lnet_nl_key_format {
	LNKF_FLOW	= 1,
	LNKF_MAPPING	= 2,
	LNKF_SEQUENCE	= 4,
};

enum lnet_nl_scalar_attrs {
	LN_SCALAR_ATTR_UNSPEC		= 0,
	LN_SCALAR_ATTR_LIST		= 1,
	LN_SCALAR_ATTR_LIST_SIZE	= 2,
	LN_SCALAR_ATTR_INDEX		= 3,
	LN_SCALAR_ATTR_NLA_TYPE		= 4,
	LN_SCALAR_ATTR_VALUE		= 5,
	LN_SCALAR_ATTR_INT_VALUE	= 6,
	LN_SCALAR_ATTR_KEY_FORMAT	= 7,
};

struct ln_key_props {
	char	*lkp_value;
	__u16	lkp_key_format;
	__u16	lkp_data_type;
};

struct ln_key_list {
	__u16			lkl_maxattr;
	struct ln_key_props	lkl_list[];
};

#endif
