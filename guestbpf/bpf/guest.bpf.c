// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "fib.h"
#include "guest.h"
#include "l3fwd.h"
#include "packet.h"
#include "routes.h"
#include "rules.h"
#include "spread.h"

/*
 * entry is what is attached to a device, for as long as anything is. What it does
 * is the program in programs: that is swapped in one step, while swapping the
 * attached program makes virtio_net stop its queues.
 */

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct count);
	__uint(max_entries, NUM_VERDICTS);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} devices SEC(".maps");

volatile const struct l2fwd_peer peer = {};

/* The types that Go is told of, which no map has. */
const enum verdict *verdict_unused __attribute__((unused));
const enum rule_action *action_unused __attribute__((unused));
const enum rule_field *field_unused __attribute__((unused));
const enum fragment *fragment_unused __attribute__((unused));
const enum rule_index *index_unused __attribute__((unused));
const enum address_side *side_unused __attribute__((unused));
const enum family_bit *family_unused __attribute__((unused));

static __always_inline __u32 length(const struct xdp_md *ctx)
{
	return ctx->data_end - ctx->data;
}

static __always_inline int counted(const struct xdp_md *ctx, __u32 verdict, int action)
{
	struct count *c = bpf_map_lookup_elem(&counts, &verdict);

	if (c) {
		c->frames++;
		c->bytes += length(ctx);
	}
	return action;
}

SEC("xdp")
int tapswitch_guest(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &programs, 0);
	return XDP_PASS; /* nothing is there, for a moment */
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return counted(ctx, VERDICT_PASS, XDP_PASS);
}

SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u8 dest[ETH_ALEN];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return counted(ctx, VERDICT_PASS_SHORT, XDP_PASS);
	if (eth->h_dest[0] & 1)
		return counted(ctx, VERDICT_PASS_GROUP, XDP_PASS);
	__builtin_memcpy(dest, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, dest, ETH_ALEN);
	return counted(ctx, VERDICT_REFLECT, XDP_TX);
}

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	struct packet p = {};

	read_packet(ctx, &p);
	if (apply_rules(&p, length(ctx)) == ACTION_DROP)
		return counted(ctx, VERDICT_DROP, XDP_DROP);
	return counted(ctx, VERDICT_PASS, XDP_PASS);
}

SEC("xdp")
int l2fwd(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	int action;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return counted(ctx, VERDICT_PASS_SHORT, XDP_PASS);
	/* The kernel would drop it, and no counter of the devices tell. */
	if (length(ctx) > peer.max_len)
		return counted(ctx, VERDICT_PASS_TOO_LONG, XDP_PASS);
	action = bpf_redirect_map(&devices, 0, XDP_PASS);
	if (action != XDP_REDIRECT)
		return counted(ctx, VERDICT_PASS_NO_DEVICE, action);
	if (peer.rewrite) {
		/* Not by memcpy, which would take the zeros of compile time. */
#pragma unroll
		for (int i = 0; i < ETH_ALEN; i++) {
			eth->h_dest[i] = peer.dest[i];
			eth->h_source[i] = peer.source[i];
		}
	}
	return counted(ctx, VERDICT_FORWARD, action);
}

static __always_inline int routed(const struct xdp_md *ctx, enum verdict v)
{
	switch (v) {
	case VERDICT_FORWARD:
		return counted(ctx, v, XDP_REDIRECT);
	case VERDICT_DROP:
		return counted(ctx, v, XDP_DROP);
	default:
		return counted(ctx, v, XDP_PASS);
	}
}

SEC("xdp")
int l3fwd_fib(struct xdp_md *ctx)
{
	struct ip_packet p = {};
	struct hop hop = {};
	enum verdict v = read_ip(ctx, &p);

	if (v == VERDICT_FORWARD)
		v = fib_find(ctx, &p, &hop);
	if (v == VERDICT_FORWARD && !fib_knows_source(ctx, &p))
		v = VERDICT_PASS_SOURCE;
	if (v == VERDICT_FORWARD)
		v = route_to(ctx, &p, &hop);
	return routed(ctx, v);
}

SEC("xdp")
int l3fwd_routes(struct xdp_md *ctx)
{
	struct ip_packet p = {};
	struct hop hop = {};
	enum verdict v = VERDICT_PASS_EXPIRED;

	if (in_step())
		v = read_ip(ctx, &p);
	if (v == VERDICT_FORWARD)
		v = routes_find(&p, &hop);
	if (v == VERDICT_FORWARD && !routes_know_source(&p))
		v = VERDICT_PASS_SOURCE;
	if (v == VERDICT_FORWARD)
		v = route_to(ctx, &p, &hop);
	return routed(ctx, v);
}

SEC("xdp")
int spread(struct xdp_md *ctx)
{
	struct packet p = {};

	read_packet(ctx, &p);
	return counted(ctx, VERDICT_SPREAD, redirect_to_cpu(&p));
}

/* Run by the process that keeps the routes in step, which does not know jiffies. */
SEC("xdp")
int renew(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct route_lease *l = bpf_map_lookup_elem(&lease, &zero);

	if (l)
		l->deadline = bpf_jiffies64() + l->length;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
