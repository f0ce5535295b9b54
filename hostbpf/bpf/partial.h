/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PARTIAL_H
#define PARTIAL_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

/*
 * Whether a guest that is said to send complete frames did so. XDP doesn't see
 * the virtio-net header, but it sees what a sender writes where it leaves the
 * checksum to others: the sum of the pseudo-header alone. One complete frame of
 * 65,536 looks like that too, and only takes the slower way.
 */

static __always_inline __u16 partial_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Says whether a frame's checksum may be left to its receiver: it is, or that can't
 * be told, because it is behind options, in a tunnel or no Internet checksum. A
 * tunnel in UDP is known by having no checksum itself. */
static __always_inline bool partial(const struct ethhdr *eth, const void *end)
{
	const struct iphdr *ip = (const void *)(eth + 1);
	const struct ipv6hdr *ip6 = (const void *)(eth + 1);
	const void *l4;
	__u8 protocol;
	__u16 len;
	__u64 sum;

	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		l4 = ip + 1;
		if (l4 > end || *(const __u8 *)ip != 0x45)
			return true;
		if (ip->frag_off & bpf_htons(0x3fff)) /* nobody leaves a fragment's */
			return false;
		protocol = ip->protocol;
		len = bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip));
		sum = (__u64)ip->saddr + ip->daddr;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		l4 = ip6 + 1;
		if (l4 > end)
			return true;
		protocol = ip6->nexthdr;
		len = ip6->payload_len;
		sum = 0;
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum += (__u64)ip6->saddr.in6_u.u6_addr32[i] + ip6->daddr.in6_u.u6_addr32[i];
	} else {
		return eth->h_proto == bpf_htons(ETH_P_8021Q) ||
		       eth->h_proto == bpf_htons(ETH_P_8021AD);
	}
	sum += len + bpf_htons(protocol);
	if (protocol == IPPROTO_TCP) {
		const struct tcphdr *tcp = l4;

		return (const void *)(tcp + 1) > end || tcp->check == partial_fold(sum);
	}
	if (protocol == IPPROTO_UDP) {
		const struct udphdr *udp = l4;

		return (const void *)(udp + 1) > end || !udp->check ||
		       udp->check == partial_fold(sum);
	}
	return protocol != IPPROTO_ICMP && protocol != IPPROTO_ICMPV6;
}

#endif
