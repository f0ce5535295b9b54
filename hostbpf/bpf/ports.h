/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PORTS_H
#define PORTS_H

#include "maps.h"
#include "vlan.h"

/* Finds what the index has for frames with a tag (see vlan_key(), 0: all) from a
 * device: a slot, 0 if the device is no port, and PORT_CARRIER. */
static __always_inline __u32 port_find(__u32 ifindex, __u32 tag)
{
	__u64 key = (__u64)ifindex << 16 | tag;

#pragma unroll
	for (int i = 0; i < PORT_INDEX_PROBES; i++) {
		__u32 at = (ifindex + (tag & VLAN_VID) * PORT_INDEX_STRIDE + i) % PORT_INDEX_SIZE;
		__u64 *entry = bpf_map_lookup_elem(&port_index, &at);

		if (!entry)
			return 0;
		__u64 found = *(volatile __u64 *)entry;

		if (found >> 16 == key)
			return found & 0xffff;
	}
	return 0;
}

/* The upper half of what an index's entry is about, for a tag as in vlan.h. */
static __always_inline __u32 vlan_key(__u32 tag)
{
	return PORT_VLAN | (tag & VLAN_VID) | (tag >> 16 == ETH_P_8021AD ? PORT_VLAN_AD : 0);
}

#endif
