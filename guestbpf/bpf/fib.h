/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FIB_H
#define FIB_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "l3fwd.h"

/* The kernel's own answer to where a packet goes. */

#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

static __always_inline void ask_about(struct bpf_fib_lookup *ask, const struct ip_packet *p)
{
	__builtin_memset(ask, 0, sizeof(*ask));
	ask->l4_protocol = p->proto;
	ask->sport = p->sport;
	ask->dport = p->dport;
	ask->ifindex = p->in->ifindex;
	if (p->family == 4) {
		ask->family = FAMILY_IPV4;
		ask->tos = p->tos;
		ask->ipv4_src = p->from[0];
		ask->ipv4_dst = p->to[0];
		return;
	}
	ask->family = FAMILY_IPV6;
	ask->flowinfo = p->flow;
	__builtin_memcpy(ask->ipv6_src, p->from, sizeof(p->from));
	__builtin_memcpy(ask->ipv6_dst, p->to, sizeof(p->to));
}

/* Says whether the way to a packet's source leads out of the device that it came by. The
 * kernel never asks for more than that: if it does, it is right in all settings of
 * rp_filter. Of IPv6 it does not ask. */
static __always_inline bool fib_knows_source(struct xdp_md *ctx, const struct ip_packet *p)
{
	struct bpf_fib_lookup ask;
	long answer;

	if (p->family != 4)
		return true;
	ask_about(&ask, p);
	ask.ipv4_src = p->to[0];
	ask.ipv4_dst = p->from[0];
	answer = bpf_fib_lookup(ctx, &ask, sizeof(ask), 0);
	return (answer == BPF_FIB_LKUP_RET_SUCCESS || answer == BPF_FIB_LKUP_RET_NO_NEIGH) &&
	       ask.ifindex == p->in->ifindex;
}

static __always_inline enum verdict fib_find(struct xdp_md *ctx, const struct ip_packet *p,
					     struct hop *hop)
{
	struct bpf_fib_lookup ask;

	ask_about(&ask, p);
	ask.tot_len = p->len;
	switch (bpf_fib_lookup(ctx, &ask, sizeof(ask), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		break;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return VERDICT_PASS_OFF;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return VERDICT_PASS_TOO_LONG;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return VERDICT_PASS_NO_NEIGHBOUR;
	default:
		return VERDICT_PASS_NO_ROUTE;
	}
	hop->ifindex = ask.ifindex;
	__builtin_memcpy(hop->dest, ask.dmac, ETH_ALEN);
	__builtin_memcpy(hop->source, ask.smac, ETH_ALEN);
	/* Before Linux 6.6 the kernel gives a neighbour that has never answered, too. */
	if (!(hop->dest[0] | hop->dest[1] | hop->dest[2] | hop->dest[3] | hop->dest[4] |
	      hop->dest[5]))
		return VERDICT_PASS_NO_NEIGHBOUR;
	return VERDICT_FORWARD;
}

#endif
