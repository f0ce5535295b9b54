/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PACKET_H
#define PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../bpf/ether.h"
#include "guest.h"

#define MAX_TAGS       2
#define MAX_EXTENSIONS 6

/* A frame as rules see it. */
struct packet {
	__u8 family; /* 4, 6, or 0 for neither */
	__u8 proto;
	__u8 fragment; /* enum fragment */
	bool has_ports;
	bool has_flags;
	__u8 flags; /* of TCP */
	__u16 sport;
	__u16 dport;
	__u8 from[16];
	__u8 to[16];
};

/* The next header in a frame. */
struct cursor {
	const void *at;
	const void *end;
};

/* Gives a header at the cursor, which moves behind it; NULL if it is not whole. */
#define take(c, type)                                      \
	({                                                 \
		const type *header = (c)->at;              \
		if ((const void *)(header + 1) > (c)->end) \
			header = (void *)0;                \
		else                                       \
			(c)->at = header + 1;              \
		header;                                    \
	})

struct ports {
	__be16 source;
	__be16 dest;
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset; /* times 8, and two reserved bits and the one for more */
	__be32 id;
};

struct extension_header {
	__u8 next;
	__u8 words; /* of 8 bytes, beyond the first */
	__u8 rest[6];
};

static __always_inline void read_transport(struct cursor *c, struct packet *p)
{
	struct cursor again = *c;
	const struct ports *ports;
	const struct tcphdr *tcp;

	if (p->fragment == FRAGMENT_LATER)
		return;
	switch (p->proto) {
	case IPPROTO_TCP:
		tcp = take(&again, struct tcphdr);
		if (tcp) {
			p->has_flags = true;
			p->flags = ((const __u8 *)tcp)[13];
		}
		break;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		break;
	default:
		return;
	}
	ports = take(c, struct ports);
	if (ports) {
		p->has_ports = true;
		p->sport = bpf_ntohs(ports->source);
		p->dport = bpf_ntohs(ports->dest);
	}
}

static __always_inline void read_ipv4(struct cursor *c, struct packet *p)
{
	const struct iphdr *ip = take(c, struct iphdr);
	__u16 fragment;
	__u32 options;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return;
	p->family = 4;
	p->proto = ip->protocol;
	__builtin_memcpy(p->from, &ip->saddr, 4);
	__builtin_memcpy(p->to, &ip->daddr, 4);
	fragment = bpf_ntohs(ip->frag_off) & IP_FRAGMENT;
	if (fragment & 0x1fff)
		p->fragment = FRAGMENT_LATER;
	else if (fragment)
		p->fragment = FRAGMENT_FIRST;
	options = (ip->ihl - 5) * 4;
	c->at += options & 0x3c;
	read_transport(c, p);
}

static __always_inline void read_ipv6(struct cursor *c, struct packet *p)
{
	const struct ipv6hdr *ip = take(c, struct ipv6hdr);
	const struct extension_header *extension;
	const struct fragment_header *fragment;

	if (!ip || ip->version != 6)
		return;
	p->family = 6;
	p->proto = ip->nexthdr;
	__builtin_memcpy(p->from, &ip->saddr, 16);
	__builtin_memcpy(p->to, &ip->daddr, 16);
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		switch (p->proto) {
		case IPPROTO_FRAGMENT:
			fragment = take(c, struct fragment_header);
			if (!fragment)
				return;
			p->proto = fragment->next;
			if (fragment->offset & bpf_htons(0xfff8)) {
				p->fragment = FRAGMENT_LATER;
				return;
			}
			if (fragment->offset & bpf_htons(1))
				p->fragment = FRAGMENT_FIRST;
			break;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			extension = take(c, struct extension_header);
			if (!extension)
				return;
			p->proto = extension->next;
			c->at += extension->words * 8;
			break;
		default:
			read_transport(c, p);
			return;
		}
	}
	read_transport(c, p);
}

/* Reads a frame. What is not there, or is cut off, stays 0. */
static __always_inline void read_packet(const struct xdp_md *ctx, struct packet *p)
{
	struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	const struct ethhdr *eth = take(&c, struct ethhdr);
	const struct vlan_tag *tag;
	__be16 proto;

	if (!eth)
		return;
	proto = eth->h_proto;
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		/* Behind the type: the tag's number, then the next type. */
		if (!is_tpid(proto))
			break;
		tag = take(&c, struct vlan_tag);
		if (!tag)
			return;
		proto = tag->tci;
	}
	if (proto == bpf_htons(ETH_P_IP))
		read_ipv4(&c, p);
	else if (proto == bpf_htons(ETH_P_IPV6))
		read_ipv6(&c, p);
}

#endif
