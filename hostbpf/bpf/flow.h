/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FLOW_H
#define FLOW_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

#include "frame.h"
#include "maps.h"
#include "vlan.h"

/*
 * Which way a TCP flow takes into a guest. XDP comes before GRO: a stream of full
 * segments that it redirects one by one costs the guest's stack several times
 * what a few merged ones do. So a flow that sends a long segment passes XDP whole,
 * is merged, and takes the tc hook; it comes back when it has sent none for a
 * while. The first long segment decides, not the second or tenth: a flow that
 * changes its way in the midst of a burst is reordered, because GRO hands up a
 * full skb before XDP's queue to the tap is flushed.
 */

static __always_inline __u64 flow_mix(__u64 h, __u64 v)
{
	h = (h ^ v) * 0xff51afd7ed558ccdULL;
	return h ^ h >> 32;
}

/* Gives a hash of the TCP flow that a frame belongs to; 0 if it is no TCP, or has
 * its TCP header behind options, extension headers or in another fragment. */
static __always_inline __u64 flow_hash(const struct switch_control *ctl, const struct frame *f)
{
	/* The type stands behind the tag, and what it is the type of behind the type. */
	const __be16 *type = (const void *)&f->eth->h_proto + f->tags;
	const struct iphdr *ip = (const void *)(type + 1);
	const struct ipv6hdr *ip6 = (const void *)(type + 1);
	const void *end = f->end;
	const __u32 *ports;
	__u64 h = ctl->seed[0] + (f->tag & VLAN_VID);

	if ((const void *)ip > end)
		return 0;
	if (*type == bpf_htons(ETH_P_IP)) {
		ports = (const void *)(ip + 1);
		if ((const void *)(ports + 1) > end || ip->protocol != IPPROTO_TCP ||
		    *(const __u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_FRAGMENT))
			return 0;
		h = flow_mix(h, (__u64)ip->saddr << 32 | ip->daddr);
	} else if (*type == bpf_htons(ETH_P_IPV6)) {
		ports = (const void *)(ip6 + 1);
		if ((const void *)(ports + 1) > end || ip6->nexthdr != IPPROTO_TCP)
			return 0;
		const __u32 *a = ip6->saddr.in6_u.u6_addr32;

#pragma unroll
		for (int i = 0; i < 8; i += 2) /* both addresses, which lie side by side */
			h = flow_mix(h, (__u64)a[i] << 32 | a[i + 1]);
	} else {
		return 0;
	}
	return flow_mix(h, *ports) | 1;
}

/* Says whether a frame is of a bulk flow, and makes its flow one if the frame is
 * long. */
static __always_inline bool flow_bulk(const struct switch_control *ctl, const struct frame *f,
				      __u32 bridge, __u32 now)
{
	__u64 hash = ctl->bulk_len ? flow_hash(ctl, f) : 0;
	__u32 at, tag;
	__u64 *flow;

	if (!hash)
		return false;
	hash += bridge * 0x9e3779b97f4a7c15ULL;
	at = hash >> (64 - FLOW_BITS);
	tag = (__u32)hash | 1;
	flow = bpf_map_lookup_elem(&flows, &at);
	if (!flow)
		return false;
	if (f->len >= ctl->bulk_len) {
		__u64 entry = (__u64)tag << 32 | now;

		/* Once a jiffy: CPUs don't pull the line from each other. */
		if (*flow != entry)
			*(volatile __u64 *)flow = entry;
		return true;
	}
	__u64 entry = *(volatile __u64 *)flow;

	return entry >> 32 == tag && now - (__u32)entry < ctl->bulk_idle;
}

#endif
