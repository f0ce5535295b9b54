/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef ROUTES_H
#define ROUTES_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "l3fwd.h"

/* Routes and neighbours as a process has them from the kernel. A packet that these
 * tables have no answer for is the kernel's. */

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct route_key4);
	__type(value, struct route);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} routes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct route_key6);
	__type(value, struct route);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} routes6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct neighbour_key);
	__type(value, struct neighbour);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} neighbours SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct route_lease);
	__uint(max_entries, 1);
} lease SEC(".maps");

static __always_inline bool in_step(void)
{
	__u32 zero = 0;
	struct route_lease *l = bpf_map_lookup_elem(&lease, &zero);

	return l && bpf_jiffies64() < l->deadline;
}

static __always_inline const struct route *find_route(__u8 family, const __be32 *addr)
{
	if (family == 4) {
		struct route_key4 key = { .bits = 32 };

		__builtin_memcpy(key.addr, addr, sizeof(key.addr));
		return bpf_map_lookup_elem(&routes4, &key);
	}
	struct route_key6 key = { .bits = 128 };

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&routes6, &key);
}

/* As fib_knows_source(). */
static __always_inline bool routes_know_source(const struct ip_packet *p)
{
	const struct route *back;

	if (p->family != 4)
		return true;
	back = find_route(4, p->from);
	return back && back->ifindex == p->in->ifindex;
}

static __always_inline enum verdict routes_find(const struct ip_packet *p, struct hop *hop)
{
	const struct route *r = find_route(p->family, p->to);
	struct neighbour_key key = { .family = p->family };
	const struct neighbour *n;

	if (!r || !r->ifindex)
		return VERDICT_PASS_NO_ROUTE;
	key.ifindex = r->ifindex;
	__builtin_memcpy(key.addr, r->gateway, sizeof(key.addr));
	if (!(((__u64 *)key.addr)[0] | ((__u64 *)key.addr)[1]))
		__builtin_memcpy(key.addr, p->to, sizeof(key.addr));
	n = bpf_map_lookup_elem(&neighbours, &key);
	if (!n)
		return VERDICT_PASS_NO_NEIGHBOUR;
	if (p->len > n->mtu || (r->mtu && p->len > r->mtu))
		return VERDICT_PASS_TOO_LONG;
	hop->ifindex = r->ifindex;
	__builtin_memcpy(hop->dest, n->dest, ETH_ALEN);
	__builtin_memcpy(hop->source, n->source, ETH_ALEN);
	return VERDICT_FORWARD;
}

#endif
