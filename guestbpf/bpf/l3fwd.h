/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef L3FWD_H
#define L3FWD_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../bpf/ether.h"
#include "guest.h"
#include "packet.h"

/*
 * A router's way with a packet, up to the question where it goes: fib.h asks the
 * kernel, routes.h tables of its own. Packets that need more than a new Ethernet header
 * and a lower TTL are the stack's.
 */

/* By VLAN ID; what has no tag comes by 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ingress);
	__uint(max_entries, NUM_VIDS);
} ingresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, MAX_ROUTERS);
} routers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct vlan_device);
	__uint(max_entries, NUM_VIDS);
} vlan_devices SEC(".maps");

#define REFRESH_SLOTS 256

/* When the kernel last saw a packet for a neighbour, in jiffies, by a hash of it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, REFRESH_SLOTS);
} refreshed SEC(".maps");

volatile const __u64 refresh_every = 0; /* jiffies; 0: never */

struct icmp_start {
	__u8 type;
	__u8 code;
	__be16 check;
};

struct ip_packet {
	const struct ingress *in;
	__u8 family; /* 4 or 6 */
	__u8 proto;
	__u8 tos;
	bool tagged;
	__u16 len; /* from the IP header on */
	__be16 sport;
	__be16 dport;
	__be32 flow;    /* traffic class and flow label */
	__be32 from[4]; /* of IPv4 the first */
	__be32 to[4];
};

/* Where a packet goes next. */
struct hop {
	__u32 ifindex;
	__u8 dest[ETH_ALEN];
	__u8 source[ETH_ALEN];
};

/* Reads what follows the IP header. The kernel chooses among several paths by ports, or
 * by what an ICMP error is about, which is left to it as is all that is rare. */
static __always_inline enum verdict read_payload(struct cursor *c, struct ip_packet *p, bool first)
{
	const struct ports *ports;
	const struct icmp_start *icmp;

	switch (p->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
		if (!first)
			return VERDICT_FORWARD;
		ports = take(c, struct ports);
		if (!ports)
			return VERDICT_PASS_MALFORMED;
		p->sport = ports->source;
		p->dport = ports->dest;
		return VERDICT_FORWARD;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (!first)
			return VERDICT_FORWARD;
		icmp = take(c, struct icmp_start);
		if (!icmp)
			return VERDICT_PASS_MALFORMED;
		/* Echo requests and replies. */
		if (p->family == 4) {
			if (icmp->type == 8 || icmp->type == 0)
				return VERDICT_FORWARD;
		} else if (icmp->type == 128 || icmp->type == 129) {
			return VERDICT_FORWARD;
		}
		return VERDICT_PASS_NOT_ROUTED;
	case IPPROTO_GRE:
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return VERDICT_FORWARD;
	default:
		return VERDICT_PASS_NOT_ROUTED;
	}
}

/* Says whether packets to or from an address cross no router: this network, loopback,
 * groups, what is reserved. */
static __always_inline bool never_routed4(__be32 addr)
{
	__u8 first = bpf_ntohl(addr) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

/* The same: unspecified, loopback, what has an IPv4 address inside, the link's own,
 * groups. */
static __always_inline bool never_routed6(const __be32 *addr)
{
	__u32 first = bpf_ntohl(addr[0]);

	return (!addr[0] && !addr[1]) || first >= 0xfe000000;
}

static __always_inline bool right_sum(const struct iphdr *ip)
{
	const __be16 *word = (const void *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < sizeof(*ip) / 2; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

static __always_inline enum verdict read_header4(struct cursor *c, struct ip_packet *p)
{
	const struct iphdr *ip = take(c, struct iphdr);
	__u16 fragment;

	if (!ip || ip->version != 4)
		return VERDICT_PASS_MALFORMED;
	if (ip->ihl != 5)
		return VERDICT_PASS_NOT_ROUTED;
	p->len = bpf_ntohs(ip->tot_len);
	if (!right_sum(ip) || p->len < sizeof(*ip))
		return VERDICT_PASS_MALFORMED;
	p->proto = ip->protocol;
	p->tos = ip->tos;
	p->from[0] = ip->saddr;
	p->to[0] = ip->daddr;
	if (never_routed4(ip->saddr) || never_routed4(ip->daddr))
		return VERDICT_PASS_NOT_ROUTED;
	if (ip->ttl <= 1)
		return VERDICT_PASS_TTL;
	fragment = bpf_ntohs(ip->frag_off) & IP_FRAGMENT;
	return read_payload(c, p, !fragment);
}

static __always_inline enum verdict read_header6(struct cursor *c, struct ip_packet *p)
{
	const struct ipv6hdr *ip = take(c, struct ipv6hdr);
	__u32 len;

	if (!ip || ip->version != 6)
		return VERDICT_PASS_MALFORMED;
	len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (len > 0xffff)
		return VERDICT_PASS_TOO_LONG;
	p->len = len;
	p->proto = ip->nexthdr;
	p->flow = *(const __be32 *)ip & bpf_htonl(0x0fffffff);
	__builtin_memcpy(p->from, &ip->saddr, sizeof(p->from));
	__builtin_memcpy(p->to, &ip->daddr, sizeof(p->to));
	if (never_routed6(p->from) || never_routed6(p->to))
		return VERDICT_PASS_NOT_ROUTED;
	if (ip->hop_limit <= 1)
		return VERDICT_PASS_TTL;
	return read_payload(c, p, true);
}

/* The shortest frame on a wire, with a tag: what is no longer may have padding. */
#define SHORT_FRAME 64

/* Reads a frame. VERDICT_FORWARD says that it is a packet to be routed. */
static __always_inline enum verdict read_ip(const struct xdp_md *ctx, struct ip_packet *p)
{
	struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	const struct ethhdr *eth = take(&c, struct ethhdr);
	__u32 vid = 0, header = sizeof(*eth), len = c.end - (void *)(long)ctx->data;
	enum verdict v;
	__be16 proto;

	if (!eth)
		return VERDICT_PASS_SHORT;
	proto = eth->h_proto;
	if (proto == bpf_htons(ETH_P_8021Q)) {
		const struct vlan_tag *tag = take(&c, struct vlan_tag);

		if (!tag)
			return VERDICT_PASS_SHORT;
		/* Behind the type: the tag's number, then the next type. */
		vid = bpf_ntohs(tag->tpid) & VLAN_VID;
		if (!vid)
			return VERDICT_PASS_NOT_ROUTED;
		proto = tag->tci;
		p->tagged = true;
		header += VLAN_LEN;
	}
	p->in = bpf_map_lookup_elem(&ingresses, &vid);
	if (!p->in || !p->in->ifindex)
		return VERDICT_PASS_NO_DEVICE;
#pragma unroll
	for (int i = 0; i < ETH_ALEN; i++)
		if (eth->h_dest[i] != p->in->mac[i])
			return VERDICT_PASS_NOT_ROUTED;
	if (proto == bpf_htons(ETH_P_IP)) {
		if (!(p->in->families & ROUTE_IPV4))
			return VERDICT_PASS_OFF;
		p->family = 4;
		v = read_header4(&c, p);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		if (!(p->in->families & ROUTE_IPV6))
			return VERDICT_PASS_OFF;
		p->family = 6;
		v = read_header6(&c, p);
	} else {
		return VERDICT_PASS_NOT_ROUTED;
	}
	if (v != VERDICT_FORWARD)
		return v;
	/* The stack cuts off what is behind the packet; this program doesn't, and so the
	 * frame may be longer than the packet's MTU allows. */
	if (len < header + p->len || (len > header + p->len && len > SHORT_FRAME))
		return VERDICT_PASS_MALFORMED;
	return VERDICT_FORWARD;
}

/* Says whether the kernel should see a packet to a neighbour again. It probes those that
 * are in use, and gives up those that don't answer; but it knows of no packet that goes
 * by XDP. */
static __always_inline bool wants_refresh(const struct hop *hop)
{
	__u32 slot = (hop->dest[5] ^ hop->ifindex) & (REFRESH_SLOTS - 1);
	__u64 *last = bpf_map_lookup_elem(&refreshed, &slot), now;

	if (!refresh_every || !last)
		return false;
	now = bpf_jiffies64();
	if (now - *last < refresh_every)
		return false;
	*last = now;
	return true;
}

/* Lowers a TTL by one. The new checksum is that of RFC 1624, equation 3. */
static __always_inline void age4(struct iphdr *ip)
{
	__u32 sum = (__u16)~bpf_ntohs(ip->check) + 0xfeff;

	ip->check = bpf_htons(~((sum & 0xffff) + (sum >> 16)));
	ip->ttl--;
}

/* Sends a packet on its way; what is not VERDICT_FORWARD leaves it as it is. */
static __always_inline enum verdict route_to(struct xdp_md *ctx, const struct ip_packet *p,
					     const struct hop *hop)
{
	struct vlan_device *vlan = (void *)0;
	struct cursor c;
	struct ethhdr *eth;
	struct vlan_tag *tag = (void *)0;
	const __u8 *version;
	__be16 proto;

	/* The stack tells the sender of the better way. */
	if (hop->ifindex == p->in->ifindex)
		return VERDICT_PASS_NO_ROUTE;
	if (bpf_redirect_map(&routers, hop->ifindex, XDP_PASS) != XDP_REDIRECT) {
		vlan = bpf_map_lookup_elem(&vlan_devices, &hop->ifindex);
		if (!vlan || bpf_redirect_map(&routers, vlan->carrier, XDP_PASS) != XDP_REDIRECT)
			return VERDICT_PASS_NO_DEVICE;
	}
	if (wants_refresh(hop))
		return VERDICT_PASS_REFRESH;
	if (p->tagged && !vlan) {
		if (bpf_xdp_adjust_head(ctx, VLAN_LEN))
			return VERDICT_PASS_NO_DEVICE;
	} else if (!p->tagged && vlan) {
		if (bpf_xdp_adjust_head(ctx, -VLAN_LEN))
			return VERDICT_PASS_NO_DEVICE;
	}
	c.at = (void *)(long)ctx->data;
	c.end = (void *)(long)ctx->data_end;
	eth = (void *)take(&c, struct ethhdr);
	if (!eth)
		return VERDICT_DROP; /* can't be, as below: it was as long before */
	if (vlan) {
		tag = (void *)take(&c, struct vlan_tag);
		if (!tag)
			return VERDICT_DROP;
	}
	version = c.at;
	if ((const void *)(version + 1) > c.end)
		return VERDICT_DROP;
	/* Not p->family: Linux 5.10 takes one side of that branch for dead, and out. */
	if (*version >> 4 == 4) {
		struct iphdr *ip = (void *)take(&c, struct iphdr);

		if (!ip)
			return VERDICT_DROP;
		age4(ip);
		proto = bpf_htons(ETH_P_IP);
	} else {
		struct ipv6hdr *ip = (void *)take(&c, struct ipv6hdr);

		if (!ip)
			return VERDICT_DROP;
		ip->hop_limit--;
		proto = bpf_htons(ETH_P_IPV6);
	}
	__builtin_memcpy(eth->h_dest, hop->dest, ETH_ALEN);
	__builtin_memcpy(eth->h_source, hop->source, ETH_ALEN);
	eth->h_proto = proto;
	if (tag) {
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tpid = bpf_htons(vlan->vid);
		tag->tci = proto;
	}
	return VERDICT_FORWARD;
}

#endif
