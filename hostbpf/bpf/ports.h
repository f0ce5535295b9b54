/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PORTS_H
#define PORTS_H

#include "maps.h"

/* Gives the slot of the port with this ifindex and points *port at it; 0 if the
 * device is no port. */
static __always_inline __u32 port_slot(__u32 ifindex, struct port **port)
{
#pragma unroll
	for (int i = 0; i < PORT_INDEX_PROBES; i++) {
		__u32 at = (ifindex + i) % PORT_INDEX_SIZE;
		__u64 *index = bpf_map_lookup_elem(&port_index, &at);

		if (!index)
			return 0;
		__u32 slot = *index;

		if (!slot)
			continue;
		struct port *p = bpf_map_lookup_elem(&ports, &slot);

		if (p && p->ifindex == ifindex) {
			*port = p;
			return slot;
		}
	}
	return 0;
}

#endif
