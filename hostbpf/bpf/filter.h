/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FILTER_H
#define FILTER_H

#include <linux/ip.h>
#include <bpf/bpf_endian.h>

#include "frame.h"
#include "maps.h"

/*
 * What a filter of a port is sure to let through. No more of a frame is looked at than
 * its addresses and its type: fragments have these too, and so has the frame that is to
 * be cut into segments.
 */

/* Says whether the filter of the port in a slot lets a frame through that comes in by
 * it, or leaves by it. tag is the frame's at the port. */
static __always_inline bool filter_lets(const struct frame *f, __u32 slot, __u32 tag, bool in)
{
	/* The type stands behind the tag, and what it is the type of behind the type. */
	const __be16 *type = (const void *)&f->eth->h_proto + f->tags;
	const struct iphdr *ip = (const void *)(type + 1);
	struct port_filter *p = bpf_map_lookup_elem(&port_filters, &slot);
	__u32 kind = FRAME_OTHER;

	if (!p || (const void *)ip > f->end)
		return false;
	if (!tag && *type == bpf_htons(ETH_P_IP))
		kind = FRAME_IPV4;
	else if (!tag && *type == bpf_htons(ETH_P_IPV6))
		kind = FRAME_IPV6;
	if (!(p->kinds >> (in ? 0 : FILTER_OUT) & kind))
		return false;
	if (!in)
		return true;
	if (p->source && p->source != mac_key(f->eth->h_source))
		return false;
	if (kind != FRAME_IPV4 || !p->sources)
		return true;
	if ((const void *)(ip + 1) > f->end)
		return false;
#pragma unroll
	for (int i = 0; i < FILTER_SOURCES; i++)
		if (ip->saddr == p->ipv4[i])
			return true;
	return false;
}

#endif
