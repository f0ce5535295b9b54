/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef ETHER_H
#define ETHER_H

#include <linux/if_ether.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* What programs on hosts and in guests read in frames alike. */

#define VLAN_VID    0xfff
#define VLAN_LEN    4

#define IP_FRAGMENT 0x3fff /* more to come, or an offset */

struct vlan_tag {
	__be16 tpid;
	__be16 tci;
};

static __always_inline bool is_tpid(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

#endif
